//! [`JournalReplay`]: the records of a journal on their way into the store.

use std::collections::HashMap;
use std::sync::Arc;

use probe_proto::v1::{self, agent_message, record};
use probe_store::journal::Journal;
use probe_store::journal::replay::{BatchRanges, RecordReceiver};
use probe_store::{BatchOrigin, BatchRows, ProcessIdentity, Store};

use super::destination::BatchDestination;
use super::session::IngestSession;
use crate::agent::batches::{BatchSource, ConnectionSuperseded};
use crate::hello::understand;
use crate::written::AllWritten;

/// The sessions of a journal, as they were at the record that is read.
pub(crate) struct JournalReplay<'a> {
    run: &'a Arc<str>,
    sessions: HashMap<u64, IngestSession>,
    rows: ReplayedRows<'a>,
}

/// The number of rows that a replay brings, by instance and table.
pub(crate) type ReplayedCounts = HashMap<Arc<str>, HashMap<String, u64>>;

/// Batches that only the journal has.
struct ReplayedRows<'a> {
    store: &'a Store,
    /// Batches that files have, which must not come again.
    written: &'a AllWritten,
    /// Batches that were evicted, which must not come again either.
    evicted: HashMap<(String, String), BatchRanges>,
    appended: ReplayedCounts,
}

impl<'a> JournalReplay<'a> {
    /// A replay for the run `run`, of which files have `written`, and of which `evicted` is gone.
    pub(crate) fn new(
        run: &'a Arc<str>,
        store: &'a Store,
        written: &'a AllWritten,
        evicted: HashMap<(String, String), BatchRanges>,
    ) -> Self {
        let rows = ReplayedRows { store, written, evicted, appended: HashMap::new() };
        Self { run, sessions: HashMap::new(), rows }
    }

    /// How many rows the replay has brought.
    pub(crate) fn appended(self) -> ReplayedCounts {
        self.rows.appended
    }

    fn open(&mut self, connection: u64, hello: v1::Hello) {
        // A Hello in the journal was valid when it was written.
        let Ok(greeting) = understand(hello.clone(), self.run, self.rows.store) else { return };
        match self.sessions.get_mut(&connection) {
            Some(session) => session.renew(hello, greeting.declaration, &self.rows),
            None => {
                let session = IngestSession::open(connection, hello, greeting.declaration, 0, &self.rows);
                self.sessions.insert(connection, session);
            }
        }
    }

    /// Takes strings. Batches that use strings that can't be taken are missing.
    fn strings(&mut self, connection: u64, strings: v1::Strings) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            let _ = session.strings(strings, &self.rows);
        }
    }

    /// Takes a batch. Rows that can't be taken are missing in the end, and are counted then.
    fn batch(&mut self, connection: u64, batch: v1::Batch) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            let _ = session.batch(batch, &mut self.rows);
        }
    }
}

impl RecordReceiver for JournalReplay<'_> {
    fn restart(&mut self, connections: &[v1::Connection]) {
        self.sessions.clear();
        for connection in connections {
            let Some(hello) = connection.hello.clone() else { continue };
            self.open(connection.connection, hello);
            self.strings(connection.connection, v1::Strings { first: 0, values: connection.strings.clone() });
        }
    }

    fn receive(&mut self, record: record::Record) {
        use record::Record;
        match record {
            Record::Opened(v1::Opened { connection, hello: Some(hello), .. }) => self.open(connection, hello),
            Record::AgentMessage(v1::AgentMessage { connection, content: Some(content), .. }) => match content {
                agent_message::Content::Strings(strings) => self.strings(connection, strings),
                agent_message::Content::Batch(batch) => self.batch(connection, batch),
                agent_message::Content::Status(_) | agent_message::Content::StatusChange(_) => {}
            },
            Record::Closed(closed) => {
                self.sessions.remove(&closed.connection);
            }
            _ => {}
        }
    }
}

impl BatchDestination for ReplayedRows<'_> {
    fn journal(&self) -> Option<&Journal> {
        None
    }

    fn has(&self, from: &BatchSource<'_>) -> bool {
        let key = (from.instance.to_string(), from.table.to_owned());
        let within = |ranges: &BatchRanges| ranges.iter().any(|(first, last)| (*first..=*last).contains(&from.seq));
        self.written.get(&key).is_some_and(|written| within(&written.ranges))
            || self.evicted.get(&key).is_some_and(within)
    }

    fn store(
        &mut self,
        from: &BatchSource<'_>,
        identity: &Arc<ProcessIdentity>,
        rows: BatchRows,
        _batch: v1::Batch,
    ) -> Result<(), ConnectionSuperseded> {
        let tables = match self.appended.get_mut(from.instance) {
            Some(tables) => tables,
            None => self.appended.entry(Arc::clone(from.instance)).or_default(),
        };
        match tables.get_mut(from.table) {
            Some(appended) => *appended += rows.len() as u64,
            None => {
                tables.insert(from.table.to_owned(), rows.len() as u64);
            }
        }
        self.store.append(identity, BatchOrigin::batch(from.instance, from.seq), rows);
        Ok(())
    }

    /// Does nothing: lost rows were counted by the collector that kept the journal.
    fn lose(&mut self, _from: &BatchSource<'_>, _rows: u64, _reason: &'static str) -> Result<(), ConnectionSuperseded> {
        Ok(())
    }
}
