//! Why a run that has ended hung: by the Flight Recorder dumps that were imported into it, by the collectives that were recorded
//! of it, or by what the collector noticed while it was live. Made by queries alone.

mod dumps;
mod facts;
mod noticed;
mod page;
mod recorded;
mod sentences;
mod stall;
mod verdict;

use probe_client::Client;
use probe_common::error::Result;

pub(crate) use facts::HangFacts;
pub(crate) use noticed::noticed;
pub(crate) use page::page;
pub(crate) use stall::{RecordedStall, StallReason};
pub(crate) use verdict::{HangVerdict, judge};

/// Asks for the facts of a run that has ended: of dumps where there are some, else of its rows.
///
/// # Errors
/// The queries'.
pub(crate) async fn ask(client: &mut Client) -> Result<HangFacts> {
    let facts = dumps::ask(client).await?;
    if facts.is_empty() { recorded::ask(client, None).await } else { Ok(facts) }
}

/// In one sentence, which ranks had not entered a collective that others waited in, or did something else, among the processes
/// that had connected by `before` (ns since 1970); None where nothing shows that.
///
/// # Errors
/// The queries'.
pub(crate) async fn sentence(client: &mut Client, before: i64) -> Result<Option<String>> {
    let facts = recorded::ask(client, Some(before)).await?;
    let verdict = judge(&facts);
    let shows = verdict.stalls.first().is_some_and(|stall| stall.why != StallReason::NotFinished);
    Ok(shows.then_some(verdict.sentence))
}
