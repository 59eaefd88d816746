//! How rows come in from every source: a live agent, a process that has ended, the collector itself, or the journal of a
//! collector that died. All of them feed an [`IngestSession`], and differ in its
//! [`BatchDestination`](destination::BatchDestination).

mod agent_destination;
mod destination;
mod replay;
mod session;

pub(crate) use agent_destination::AgentDestination;
pub(crate) use replay::JournalReplay;
pub(crate) use session::{IngestError, IngestSession};
