//! The hang that the collector noticed before the run ended: its event has what `probe hang` would have said then.

use probe_client::Client;
use probe_collector::hang_details;
use probe_common::error::Result;
use probe_proto::v1::HangAnswer;
use serde_json::Value;

use crate::small_rows::rows;

/// The newest hang; None where none was noticed, or steps went on after it.
///
/// # Errors
/// The query's.
pub(crate) async fn noticed(client: &mut Client) -> Result<Option<HangAnswer>> {
    // A process that was started anew also goes on, and no event says so.
    let sql = "SELECT ts, severity, message, details FROM probe.events AS e WHERE kind = 'hang' \
               AND NOT EXISTS (SELECT 1 FROM python.steps AS s WHERE s.ts > e.ts) ORDER BY id DESC LIMIT 1";
    let found = rows(client, sql).await?;
    let event = found.first().filter(|event| event.text(1).is_some_and(|severity| severity != "info"));
    Ok(event.map(|event| {
        let details = event.text(3).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null);
        hang_details::answer(event.text(2).unwrap_or_default(), event.int(0).unwrap_or_default(), &details)
    }))
}
