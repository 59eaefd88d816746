//! Rows that the collector itself finds out about a process: kept like the agent's own, with the same identity, in the same
//! store, journal and files.
//!
//! They come in under an instance of the collector's ([`is_local`](super::instance::is_local)), so that their batches have
//! numbers of their own. No agent is connected under such an instance, and [`Registry`](super::registry::Registry) does not list
//! it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use probe_common::error::{Error, Result};
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Table;
use probe_proto::v1;
use probe_proto::{MAX_ROWS, PROTOCOL, VERSION};
use probe_store::journal::Journal;
use probe_store::{Identity, Store};

use super::agent::{Agent, AgentDescription, RowDestination};
use super::hello::{Declaration, HelloRefusal, understand};
use super::ingest::{AgentDestination, IngestSession};
use super::instance::PREFIX;
use super::registry::Registry;

/// Most feeds that are remembered. A run has no more identities, unless its agents come and go for ever.
const MAX_FEEDS: usize = 4096;

/// Keeps rows of one table.
#[derive(Debug)]
pub(crate) struct SelfIngest {
    table: &'static Table,
    store: Arc<Store>,
    journal: Arc<Journal>,
    registry: Arc<Registry>,
    feeds: Mutex<HashMap<Arc<Identity>, ProcessFeed>>,
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
                feed.ingest.close(true, &self.journal);
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
        feed.take(builder.take(), self.to())
    }

    fn open(&self, identity: &Arc<Identity>) -> Result<ProcessFeed> {
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
        let declaration = Declaration { identity: Arc::clone(identity), ..greeting.declaration };
        let to = AgentDestination { agent: &agent, keep: self.to() };
        let ingest = IngestSession::open(connection, hello, declaration, 0, &to);
        Ok(ProcessFeed { agent, ingest, texts: StringTable::default(), session_texts: 0, seq: 0, recorded: 0 })
    }

    fn to(&self) -> RowDestination<'_> {
        RowDestination { store: &self.store, journal: &self.journal }
    }
}

impl ProcessFeed {
    fn take(&mut self, mut batch: v1::Batch, keep: RowDestination<'_>) -> Result<()> {
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
