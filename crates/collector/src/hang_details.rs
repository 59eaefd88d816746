//! The details of an event about a hang (JSON): written by the collector, and read again when the run has ended.

use probe_proto::v1::{Collective, HangAnswer, RankState, StackFrame};
use serde_json::{Value, json};

use super::flight_recorder::FlightRecording;

/// The answers of Flight Recorders, by host and pid.
pub(crate) type FlightRecordings = Vec<((String, u32), FlightRecording)>;

pub(crate) fn recorded_by<'a>(recorded: &'a FlightRecordings, rank: &RankState) -> Option<&'a FlightRecording> {
    recorded.iter().find(|((host, pid), _)| (host, pid) == (&rank.host, &rank.pid)).map(|(_, recorded)| recorded)
}

/// The details of the event that says `answer`.
pub(crate) fn details(answer: &HangAnswer, recorded: &FlightRecordings) -> serde_json::Value {
    let rank = |rank: &RankState| {
        json!({
            "rank": rank.rank, "pid": rank.pid, "host": rank.host, "step": rank.step, "step_ago_s": rank.step_ago_s,
            "step_s": rank.step_s, "record_ago_s": rank.record_ago_s, "operation": rank.operation,
            "waits_for": rank.waits_for, "gil": rank.gil, "running": rank.running, "moving": rank.moving,
            "problem": rank.problem, "validates": rank.validates,
            "function": rank.frame.as_ref().map(|frame| &frame.function),
            "file": rank.frame.as_ref().map(|frame| &frame.file),
            "line": rank.frame.as_ref().and_then(|frame| frame.line),
            "flight_recorder": recorded_by(recorded, rank), "flight_recorder_line": rank.flight_recorder,
        })
    };
    let collective = answer.collective.as_ref().map(|collective| {
        json!({
            "group": collective.group, "size": collective.size, "seq": collective.seq,
            "operation_type": collective.operation_type, "bytes": collective.bytes,
            "waited_s": collective.waited_s, "entered": collective.entered, "missing": collective.missing,
        })
    });
    let ranks: Vec<_> = answer.ranks.iter().map(rank).collect();
    json!({ "why": answer.why, "collective": collective, "ranks": ranks, "capture": answer.capture })
}

/// The answer that an event gives: `verdict` is its message. Without details, as of an older collector, that is all.
pub fn answer(verdict: String, unix_ns: i64, details: &Value) -> HangAnswer {
    HangAnswer {
        verdict,
        why: text(&details["why"]),
        ranks: list(&details["ranks"], rank_state),
        collective: details["collective"].is_object().then(|| collective(&details["collective"])),
        capture: number(&details["capture"]).unwrap_or_default(),
        unix_ns,
    }
}

fn rank_state(of: &Value) -> RankState {
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
        step_ago_s: of["step_ago_s"].as_f64(),
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_again_is_what_was_written() {
        let frame = StackFrame {
            function: "train".into(),
            file: "train.py".into(),
            line: Some(7),
            user_code: true,
            ..StackFrame::default()
        };
        let rank = RankState {
            host: "node".into(),
            pid: 4711,
            rank: Some(1),
            step: 30,
            step_ago_s: Some(5.5),
            step_s: Some(0.25),
            record_ago_s: Some(4.5),
            operation: "all_reduce 30 of default_pg".into(),
            frame: Some(frame),
            waits_for: "lock".into(),
            gil: true,
            running: true,
            moving: true,
            problem: "torn".into(),
            validates: true,
            flight_recorder: "gloo:all_reduce 31".into(),
        };
        let collective = Collective {
            group: "default_pg".into(),
            size: 2,
            seq: 30,
            operation_type: "all_reduce".into(),
            bytes: 256,
            waited_s: 1.5,
            entered: vec![0],
            missing: vec![1],
        };
        let ranks = vec![rank, RankState::default()];
        let said = HangAnswer {
            verdict: "rank 1".into(),
            why: "not entered".into(),
            ranks,
            collective: Some(collective),
            capture: 3,
            unix_ns: 9,
        };
        let written: Value = serde_json::from_str(&details(&said, &Vec::new()).to_string()).unwrap();
        assert_eq!(answer("rank 1".into(), 9, &written), said);
        let older = HangAnswer { verdict: "rank 1".into(), unix_ns: 9, ..HangAnswer::default() };
        assert_eq!(answer("rank 1".into(), 9, &Value::Null), older);
    }
}
