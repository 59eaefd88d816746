//! Rows that the collector itself finds out about a process: kept like the agent's own, with the same identity, in the
//! same store, journal and files.
//!
//! They come in under an instance of the collector's ([`is_local`](super::instance::is_local)), so that their batches have numbers of their own.
//! Such an instance is nobody who is or was connected, and [`Registry`](super::registry::Registry) does not list it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use probe_common::clock;
use probe_common::error::{Error, Result};
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Table;
use probe_proto::v1::{self, record, said};
use probe_proto::{MAX_ROWS, PROTOCOL, VERSION};
use probe_store::journal::Journal;
use probe_store::{Identity, Mapping, Rows, Store, Strings};

use super::agent::{About, Agent, Keep, Source};
use super::instance::PREFIX;
use super::registry::Registry;

/// Feeds that are remembered; a run has at most so many identities, but for one of whom agents come and go for ever.
const MAX_FEEDS: usize = 4096;

/// Takes rows of one table.
#[derive(Debug)]
pub(crate) struct SelfIngest {
    table: &'static Table,
    store: Arc<Store>,
    journal: Arc<Journal>,
    registry: Arc<Registry>,
    feeds: Mutex<HashMap<Arc<Identity>, Feed>>,
}

/// The rows that the collector adds about one process.
#[derive(Debug)]
struct Feed {
    agent: Agent,
    connection: u64,
    mapping: Mapping,
    texts: StringTable,
    /// How many of them were written down.
    told: usize,
    strings: Strings,
    seq: u64,
    recorded: u64,
}

impl SelfIngest {
    pub(crate) fn new(
        table: &'static Table,
        store: Arc<Store>,
        journal: Arc<Journal>,
        registry: Arc<Registry>,
    ) -> Self {
        Self { table, store, journal, registry, feeds: Mutex::default() }
    }

    /// Keeps what `fill` pushes as rows of the process `identity`.
    ///
    /// # Errors
    /// The system gives no random numbers, or what was pushed does not fit the table's declaration.
    pub(crate) fn keep(
        &self,
        identity: &Arc<Identity>,
        fill: impl FnOnce(&mut BatchBuilder, &mut StringTable),
    ) -> Result<()> {
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        if feeds.len() >= MAX_FEEDS && !feeds.contains_key(identity) {
            for (_, feed) in feeds.drain() {
                feed.close(&self.journal);
            }
        }
        if !feeds.contains_key(identity) {
            feeds.insert(Arc::clone(identity), self.open(identity)?);
        }
        let Some(feed) = feeds.get_mut(identity) else { return Ok(()) };
        let mut builder = BatchBuilder::new(self.table);
        fill(&mut builder, &mut feed.texts);
        let rows = builder.rows();
        if rows == 0 {
            return Ok(());
        }
        if rows > MAX_ROWS {
            return Err(Error::limit(format!("{rows} rows of {} at once", self.table.full_name())));
        }
        feed.keep(builder.take(), identity, self.table, Keep { store: &self.store, journal: &self.journal })
    }

    fn open(&self, identity: &Arc<Identity>) -> Result<Feed> {
        let mut random = [0_u8; 8];
        getrandom::fill(&mut random).map_err(|error| Error::failed(format!("no random numbers: {error}")))?;
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
        let opened = v1::Opened { connection, hello: Some(hello), unix_ns: clock::unix_ns() };
        self.journal.record(record::Record::Opened(opened));
        let agent = Agent::new(0, &instance, Arc::clone(identity), About::default());
        agent.state().connection = connection;
        let mapping = Mapping::new(&self.table.wire_schema()).map_err(|error| Error::failed(error.to_string()))?;
        let (texts, strings) = (StringTable::default(), Strings::default());
        Ok(Feed { agent, connection, mapping, texts, told: 0, strings, seq: 0, recorded: 0 })
    }
}

impl Feed {
    fn keep(
        &mut self,
        mut batch: v1::Batch,
        identity: &Arc<Identity>,
        table: &'static Table,
        keep: Keep<'_>,
    ) -> Result<()> {
        if let Some(texts) = self.texts.since(self.told) {
            self.told = self.texts.len();
            self.strings.extend(texts.clone()).map_err(|error| Error::failed(error.to_string()))?;
            let what = Some(said::What::Strings(texts));
            let said = v1::Said { connection: self.connection, what, unix_ns: clock::unix_ns() };
            keep.journal.record(record::Record::Said(said));
        }
        self.seq += 1;
        self.recorded += u64::from(batch.rows);
        (batch.seq, batch.recorded) = (self.seq, self.recorded);
        let rows = Rows::decode(&self.mapping, &batch, &mut self.strings);
        let rows = rows.map_err(|error| Error::failed(format!("{}: {error}", table.full_name())))?;
        let name = table.full_name();
        let from = Source { connection: self.connection, seq: self.seq, table: &name, recorded: self.recorded };
        self.agent.state().last_seen = clock::unix_ns();
        // Nobody else speaks for an instance of ours.
        let _ = self.agent.store(&from, identity, rows, batch, keep);
        // What is on disk by now need not be remembered; nobody waits to be told.
        self.agent.settled(keep.journal.durable().borrow().position);
        Ok(())
    }

    fn close(self, journal: &Journal) {
        let closed = v1::Closed { connection: self.connection, bye: true, unix_ns: clock::unix_ns() };
        journal.record(record::Record::Closed(closed));
    }
}
