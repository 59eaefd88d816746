//! Rows that the collector itself finds out about a process: kept like the agent's own, with the same identity, in the same
//! store, journal and files.
//!
//! They come in under an instance of the collector's ([`is_local`](super::instance::is_local)), so that their batches have
//! numbers of their own. No agent is connected under such an instance, and
//! [`AgentRegistry`](super::registry::AgentRegistry) does not list it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use probe_common::error::{Error, Result};
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Table;
use probe_proto::v1;
use probe_proto::{MAX_ROWS, PROTOCOL, VERSION};
use probe_store::journal::Journal;
use probe_store::{ProcessIdentity, Store};

use super::agent::batches::RowDestination;
use super::agent::{Agent, AgentDescription};
use super::hello::{ConnectionDeclaration, HelloRefusal, understand};
use super::ingest::{AgentDestination, IngestSession};
use super::instance::PREFIX;
use super::registry::AgentRegistry;

/// The largest number of open feeds: where more processes have rows within [`IDLE`], all feeds are closed and opened again.
const MAX_FEEDS: usize = 4096;
/// When a feed is opened, those without rows for this long are closed, because their processes have most likely ended. If one has not,
/// its feed is opened again.
const IDLE: Duration = Duration::from_secs(600);

/// Keeps rows of one table.
#[derive(Debug)]
pub(crate) struct SelfIngest {
    table: &'static Table,
    store: Arc<Store>,
    journal: Arc<Journal>,
    registry: Arc<AgentRegistry>,
    feeds: Mutex<HashMap<Arc<ProcessIdentity>, ProcessFeed>>,
}

/// The rows that the collector adds about one process.
#[derive(Debug)]
struct ProcessFeed {
    agent: Agent,
    ingest: IngestSession,
    texts: StringTable,
    /// How many of `texts` the session has.
    session_texts: usize,
    seq: u64,
    recorded: u64,
    /// When it last had rows.
    used: Instant,
}

impl SelfIngest {
    pub(crate) fn new(
        table: &'static Table,
        store: Arc<Store>,
        journal: Arc<Journal>,
        registry: Arc<AgentRegistry>,
    ) -> Self {
        Self { table, store, journal, registry, feeds: Mutex::default() }
    }

    /// Keeps what `fill` pushes as rows of the process `identity`.
    ///
    /// # Errors
    /// The system gives no random numbers, or what was pushed does not fit the table's declaration.
    pub(crate) fn store_rows(
        &self,
        identity: &Arc<ProcessIdentity>,
        fill: impl FnOnce(&mut BatchBuilder, &mut StringTable),
    ) -> Result<()> {
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        if !feeds.contains_key(identity) {
            let idle = if feeds.len() < MAX_FEEDS { IDLE } else { Duration::ZERO };
            self.close_idle(&mut feeds, idle);
            feeds.insert(Arc::clone(identity), self.open(identity)?);
        }
        let Some(feed) = feeds.get_mut(identity) else { return Ok(()) };
        feed.used = Instant::now();
        let mut builder = BatchBuilder::new(self.table);
        fill(&mut builder, &mut feed.texts);
        let rows = builder.rows();
        if rows == 0 {
            return Ok(());
        }
        if rows > MAX_ROWS {
            return Err(Error::limit(format!("{rows} rows of {} at once", self.table.full_name())));
        }
        feed.ingest(builder.take(), self.to())
    }

    fn close_idle(&self, feeds: &mut HashMap<Arc<ProcessIdentity>, ProcessFeed>, longest: Duration) {
        for (_, feed) in feeds.extract_if(|_, feed| feed.used.elapsed() >= longest) {
            feed.ingest.close(true, &self.journal);
        }
    }

    fn open(&self, identity: &Arc<ProcessIdentity>) -> Result<ProcessFeed> {
        let mut random = [0_u8; 8];
        getrandom::fill(&mut random).map_err(|error| Error::failed("no random numbers").because(error))?;
        let instance = format!("{PREFIX}{:016x}", u64::from_le_bytes(random));
        let connection = self.registry.new_connection();
        let hello = v1::Hello {
            protocol: PROTOCOL,
            instance: instance.clone(),
            run: identity.run.to_string(),
            agent_version: VERSION.into(),
            tables: vec![self.table.wire_schema()],
            ..identity.to_hello()
        };
        let greeting = understand(hello.clone(), &identity.run, &self.store).map_err(|unwelcome| match unwelcome {
            HelloRefusal::Refused(why) | HelloRefusal::Malformed(why) => Error::failed(why),
        })?;
        let agent = Agent::new(0, &instance, Arc::clone(identity), AgentDescription::default());
        agent.state().connection = connection;
        let declaration = ConnectionDeclaration { identity: Arc::clone(identity), ..greeting.declaration };
        let to = AgentDestination { agent: &agent, keep: self.to() };
        let ingest = IngestSession::open(connection, hello, declaration, 0, &to);
        Ok(ProcessFeed {
            agent,
            ingest,
            texts: StringTable::default(),
            session_texts: 0,
            seq: 0,
            recorded: 0,
            used: Instant::now(),
        })
    }

    fn to(&self) -> RowDestination<'_> {
        RowDestination { store: &self.store, journal: &self.journal }
    }
}

impl ProcessFeed {
    fn ingest(&mut self, mut batch: v1::Batch, keep: RowDestination<'_>) -> Result<()> {
        let mut to = AgentDestination { agent: &self.agent, keep };
        if let Some(texts) = self.texts.since(self.session_texts) {
            self.session_texts = self.texts.len();
            self.ingest.strings(texts, &to)?;
        }
        self.seq += 1;
        self.recorded += u64::from(batch.rows);
        (batch.seq, batch.recorded) = (self.seq, self.recorded);
        self.ingest.batch(batch, &mut to)?;
        // Forgets batches that are on disk by now; no acknowledgement is sent.
        self.agent.settled(keep.journal.durable().borrow().position);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use probe_proto::tables::steps;

    use super::*;
    use crate::collector::begin;

    #[test]
    fn a_feed_that_is_idle_is_closed_and_opened_again_and_no_row_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let run: Arc<str> = "gpt@1".into();
        let begun = begin(directory.path(), &run, 64 << 20, 64 << 20).unwrap();
        let (store, journal) = (Arc::clone(&begun.store), Arc::clone(&begun.journal));
        let feeds = SelfIngest::new(&steps::TABLE, store, journal, Arc::clone(&begun.registry));
        let process = |pid| {
            let hello = v1::Hello { pid, ..v1::Hello::default() };
            Arc::new(ProcessIdentity::of_hello(&run, &hello))
        };
        let (first, second) = (process(1), process(2));
        let keep = |identity| {
            let fill = |rows: &mut BatchBuilder, texts: &mut StringTable| {
                texts.id("the one text that a row has");
                rows.push(steps::Row::of_a_second(1));
            };
            feeds.store_rows(identity, fill).unwrap();
        };
        keep(&first);
        keep(&second);
        let open = |longest| {
            let mut open = feeds.feeds.lock().unwrap();
            feeds.close_idle(&mut open, longest);
            open.len()
        };
        assert_eq!((open(IDLE), open(Duration::ZERO)), (2, 0));
        keep(&first);
        assert_eq!(open(IDLE), 1);
        let snapshot = begun.store.snapshot();
        let rows: usize = snapshot.iter().flat_map(|table| table.segments()).map(|segment| segment.rows).sum();
        assert_eq!(rows, 3);
    }
}
