//! The hang that the collector noticed before the run ended: its event has what `probe hang` would have said then.

use probe_client::Client;
use probe_common::error::Result;
use probe_proto::v1::{Collective, HangAnswer, RankState, StackFrame};
use serde_json::Value;

use crate::small_rows::rows;

/// The newest hang; None where none was noticed, or steps went on after it.
///
/// # Errors
/// The query's.
pub(crate) async fn noticed(client: &mut Client) -> Result<Option<HangAnswer>> {
    // Steps go on after it also in a process that was started anew, of which no event says so.
    let sql = "SELECT ts, severity, message, details FROM probe.events AS e WHERE kind = 'hang' \
               AND NOT EXISTS (SELECT 1 FROM python.steps AS s WHERE s.ts > e.ts) ORDER BY id DESC LIMIT 1";
    let found = rows(client, sql).await?;
    let event = found.first().filter(|event| event.text(1).is_some_and(|severity| severity != "info"));
    Ok(event.map(|event| {
        // Without details, as of an older collector, the sentence is left.
        let details = event.text(3).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null);
        HangAnswer {
            verdict: event.text(2).unwrap_or_default(),
            why: text(&details["why"]),
            ranks: list(&details["ranks"], rank),
            collective: details["collective"].is_object().then(|| collective(&details["collective"])),
            capture: number(&details["capture"]).unwrap_or_default(),
            unix_ns: event.int(0).unwrap_or_default(),
        }
    }))
}

fn rank(of: &Value) -> RankState {
    let frame = of["function"].as_str().map(|function| StackFrame {
        function: function.to_owned(),
        file: text(&of["file"]),
        line: number(&of["line"]),
        user_code: true,
        ..StackFrame::default()
    });
    RankState {
        host: text(&of["host"]),
        pid: number(&of["pid"]).unwrap_or_default(),
        rank: number(&of["rank"]),
        step: number(&of["step"]).unwrap_or_default(),
        step_ago_s: of["step_ago_s"].as_f64().unwrap_or_default(),
        step_s: of["step_s"].as_f64(),
        record_ago_s: of["record_ago_s"].as_f64(),
        operation: text(&of["operation"]),
        frame,
        waits_for: text(&of["waits_for"]),
        gil: flag(&of["gil"]),
        running: flag(&of["running"]),
        moving: flag(&of["moving"]),
        problem: text(&of["problem"]),
        validates: flag(&of["validates"]),
        flight_recorder: text(&of["flight_recorder_line"]),
    }
}

fn collective(of: &Value) -> Collective {
    Collective {
        group: text(&of["group"]),
        size: number(&of["size"]).unwrap_or_default(),
        seq: number(&of["seq"]).unwrap_or_default(),
        operation_type: text(&of["operation_type"]),
        bytes: number(&of["bytes"]).unwrap_or_default(),
        waited_s: of["waited_s"].as_f64().unwrap_or_default(),
        entered: list(&of["entered"], |rank| number(rank).unwrap_or_default()),
        missing: list(&of["missing"], |rank| number(rank).unwrap_or_default()),
    }
}

fn list<T>(of: &Value, each: impl Fn(&Value) -> T) -> Vec<T> {
    of.as_array().map(|values| values.iter().map(each).collect()).unwrap_or_default()
}

fn text(of: &Value) -> String {
    of.as_str().unwrap_or_default().to_owned()
}

fn number<T: TryFrom<i64>>(of: &Value) -> Option<T> {
    T::try_from(of.as_i64()?).ok()
}

fn flag(of: &Value) -> bool {
    of.as_bool().unwrap_or_default()
}
