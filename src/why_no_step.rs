//! Why a run has no steps, as far as its agents say.

use probe_client::Client;
use probe_common::error::Result;

use crate::small_rows::rows;

/// What an agent says of why no step of its program has ended (`no_steps.rs` of the agent); None where none says anything.
pub(crate) async fn why_no_step(client: &mut Client) -> Result<Option<String>> {
    let sql = "SELECT MIN(problem) FROM probe.agents WHERE problem LIKE 'no step has ended%'";
    Ok(rows(client, sql).await?.first().and_then(|row| row.text(0)))
}
