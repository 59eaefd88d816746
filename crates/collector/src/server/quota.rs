//! How many connections of each kind of listener may be open: those over TCP must not keep out commands of this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::events::{RunEvent, RunEvents, Severity};
use crate::registry::MAX_LIVE;

/// Most connections of a kind: all agents that may be live, and 256 commands beside them.
const MAX_CONNECTIONS: usize = MAX_LIVE + 256;
/// File descriptors for everything else: files of rows, the journal, queries.
const OTHERS: u64 = 256;
/// File descriptors of an agent's connection over a unix socket: the connection, the process, its rings, and one to spare.
const PER_UNIX: u64 = 4;
const PER_TCP: u64 = 1;

/// Lets this process open as many files as it may. Only a process of the collector's own may call this: the programs that it
/// starts inherit the limit, and one that calls `select` can't use numbers above 1023.
pub fn raise_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Where that is refused, the collector has fewer connections.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Most connections of each kind, in a process that may have `files` files open.
fn most(files: u64, over_tcp: bool) -> usize {
    let each = PER_UNIX + if over_tcp { PER_TCP } else { 0 };
    let room = files.saturating_sub(OTHERS).max(files / 2) / each;
    usize::try_from(room).unwrap_or(MAX_CONNECTIONS).clamp(1, MAX_CONNECTIONS)
}

/// Most refused connections that are told the reason at a time; others are only closed.
const MAX_LEAVING: usize = 16;

/// The connections of one kind of listener.
#[derive(Debug)]
pub(super) struct ConnectionQuota {
    /// Completes "connections are open …".
    kind: &'static str,
    most: usize,
    open: Arc<Semaphore>,
    leaving: Arc<Semaphore>,
    refused: AtomicU64,
    events: Arc<RunEvents>,
}

impl ConnectionQuota {
    /// The quotas of unix sockets and of TCP.
    pub(super) fn for_unix_and_tcp(over_tcp: bool, events: &Arc<RunEvents>) -> [Arc<Self>; 2] {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
        let most = most(files, over_tcp);
        ["on unix sockets", "over TCP"].map(|kind| Self::new(kind, most, events))
    }

    pub(super) fn new(kind: &'static str, most: usize, events: &Arc<RunEvents>) -> Arc<Self> {
        let (open, leaving) = (Arc::new(Semaphore::new(most)), Arc::new(Semaphore::new(MAX_LEAVING)));
        Arc::new(Self { kind, most, open, leaving, refused: AtomicU64::new(0), events: Arc::clone(events) })
    }

    /// The largest number of connections.
    pub(super) fn max_connections(&self) -> usize {
        self.most
    }

    /// Takes one more connection. Refusals are recorded: the first, the second, the fourth, the eighth …
    pub(super) fn acquire(&self) -> Result<OwnedSemaphorePermit, RefusedConnection> {
        Arc::clone(&self.open).try_acquire_owned().map_err(|_| {
            let why = format!("{} connections are open {}, and there may be no more", self.most, self.kind);
            let count = 1 + self.refused.fetch_add(1, Ordering::Relaxed);
            if count.is_power_of_two() {
                let times = if count == 1 { String::new() } else { format!(" ({count} by now)") };
                let message = format!("a connection was refused{times}: {why}");
                tracing::warn!("{message}");
                self.events.record(RunEvent::new("refused", Severity::Warning, message));
            }
            RefusedConnection { why, leaving: Arc::clone(&self.leaving).try_acquire_owned().ok() }
        })
    }
}

/// A connection that is refused.
#[derive(Debug)]
pub(super) struct RefusedConnection {
    pub(super) why: String,
    /// Permit to stay open until the client has read the reason.
    pub(super) leaving: Option<OwnedSemaphorePermit>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_agents_and_their_commands_find_room_where_there_are_descriptors() {
        for (files, unix_only, with_tcp) in
            [(1024, 192, 153), (4096, 960, 768), (1 << 20, MAX_CONNECTIONS, MAX_CONNECTIONS), (16, 2, 1)]
        {
            assert_eq!((most(files, false), most(files, true)), (unix_only, with_tcp), "{files}");
        }
        assert_eq!((most(u64::MAX, true), most(0, true)), (MAX_CONNECTIONS, 1));
    }
}
