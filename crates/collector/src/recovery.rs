//! A run whose collector died: its files and its journal together are all of it again.
//!
//! The same serves two: a command that asks the directory, and a collector that goes on where that one ended.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use probe_common::error::Result;
use probe_proto::v1::{self, record, said};
use probe_query::{Engine, Limits};
use probe_store::SystemTable;
use probe_store::journal::Begin;
use probe_store::journal::replay::{self, Ranges, Take};
use probe_store::runs::RunInfo;
use probe_store::{Identity, LeftOver, Origin, Rows, StorageStats, Store, Strings};

use super::budget::memory_limit;
use super::events::Events;
use super::hello::{DeclaredTable, understand};
use super::pending_collectives::PendingCollectivesTable;
use super::registry::Registry;
use super::tables::{AgentsTable, DropsTable};
use super::written::{AllWritten, written_batches};
use crate::eval::Log;
use crate::server::Audit;

/// Rows of an agent that its collector said it kept, and that are nowhere.
const NOT_KEPT: &str = "not on disk when the collector died";

/// What a collector has left.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub store: Arc<Store>,
    pub registry: Arc<Registry>,
    pub log: Arc<Log>,
    pub events: Arc<Events>,
    pub queries: Arc<Audit>,
    /// What a collector that goes on begins its journal with.
    pub begin: Begin,
    /// What is to be said about it.
    pub remarks: Vec<String>,
    /// Files that are of no use.
    pub left_over: LeftOver,
}

/// Answers for a run directory, without a collector. The second value is what is to be said about it.
///
/// # Errors
/// There is no such directory, or its files can't be read.
pub fn open_run(directory: &Path) -> Result<(Engine, Vec<String>)> {
    let limits = Limits::of_collector(memory_limit()?)?.of_command();
    if replay::find(directory)?.files.is_empty() {
        return Ok((Engine::with_limits(Store::open(directory)?, Vec::new(), limits)?, Vec::new()));
    }
    let run: Arc<str> = RunInfo::read(directory)?.run.into();
    let recovered = recover(directory, &run, u64::MAX)?;
    let Recovered { registry, store, log, events, queries, .. } = &recovered;
    let system = system_tables(&run, registry, store, log, events, queries);
    Ok((Engine::with_limits(recovered.store, system, limits)?, recovered.remarks))
}

/// The tables that a collector itself fills.
pub(super) fn system_tables(
    run: &Arc<str>,
    registry: &Arc<Registry>,
    store: &Arc<Store>,
    log: &Arc<Log>,
    events: &Arc<Events>,
    queries: &Arc<Audit>,
) -> Vec<Arc<dyn SystemTable>> {
    vec![
        Arc::new(AgentsTable { registry: Arc::clone(registry), store: Arc::clone(store) }),
        Arc::new(DropsTable { registry: Arc::clone(registry), store: Arc::clone(store) }),
        Arc::new(StorageStats::new(store, run)),
        Arc::new(PendingCollectivesTable { registry: Arc::clone(registry) }),
        Arc::clone(log) as _,
        Arc::clone(events) as _,
        Arc::clone(queries) as _,
    ]
}

/// Puts together what there is of a run, for whoever may then have `disk` bytes of it on disk; writes nothing.
pub(crate) fn recover(directory: &Path, run: &Arc<str>, disk: u64) -> Result<Recovered> {
    let (store, left_over) = Store::left(directory, disk)?;
    let left = replay::find(directory)?;
    let mut taking = Taking {
        run,
        store: &store,
        written: written_batches(&store),
        evicted: left.evicted()?,
        connections: HashMap::new(),
        appended: HashMap::new(),
    };
    let replayed = left.replay(&mut taking)?;
    let Taking { written, appended, .. } = taking;
    let mut remarks = Vec::new();
    remarks.extend(left_over.damaged.iter().map(|(_, error)| format!("a file is left out: {error}")));
    // The newest file always ends where the collector died; before that, damage is damage.
    for (path, bytes) in &replayed.damaged {
        if Some(path) != left.files.last() {
            remarks.push(format!("{bytes} bytes at the end of {} can't be read", path.display()));
        }
    }
    let mut checkpoint = replayed.checkpoint;
    // A disk that had taken no journal for a while may have files of which the checkpoint knows nothing.
    for ((instance, table), written) in &written {
        let agent = checkpoint.agents.entry(instance.clone()).or_insert_with(|| v1::AgentRecord {
            hello: Some(v1::Hello { instance: instance.clone(), ..written.hello() }),
            ..v1::AgentRecord::default()
        });
        agent.stored.entry(table.clone()).or_default();
    }
    for (instance, agent) in &mut checkpoint.agents {
        let there = |table: &str| {
            let key = (instance.clone(), table.to_owned());
            let rows = written.get(&key).map_or(0, |written| written.rows) + appended.get(&key).copied().unwrap_or(0);
            let gone = checkpoint.evicted.iter().filter(|gone| gone.instance == *instance && gone.table == table);
            rows + gone.map(|gone| gone.rows).sum::<u64>()
        };
        for (table, stored) in &mut agent.stored {
            let there = there(table);
            if there < *stored {
                let rows = *stored - there;
                remarks.push(format!("{rows} rows of {table} were not on disk when the collector died"));
                let (table, reason) = (table.clone(), NOT_KEPT.to_owned());
                agent.lost.push(v1::Lost { table, reason, rows, unix_ns: agent.last_seen, ..v1::Lost::default() });
            }
            *stored = there;
            // What the disk took into files while it took no journal is there, and the checkpoint knows nothing of it; what is
            // known to be lost was recorded too.
            let lost = agent.lost.iter().filter(|lost| lost.table == *table).map(|lost| lost.rows).sum::<u64>();
            let recorded = agent.recorded.entry(table.clone()).or_default();
            *recorded = (*recorded).max(there + lost);
        }
    }
    store.restore_evicted(run, &checkpoint.evicted);
    let registry = Arc::new(Registry::restore(run, &checkpoint, &written));
    let log = Arc::new(Log::restore(&checkpoint.evals));
    let events = Arc::new(Events::restore(run, &checkpoint.events));
    let queries = Arc::new(Audit::restore(&checkpoint.queries));
    let begin = Begin { checkpoint, older: left.files, number: left.next, appends: store.appends(), disk };
    Ok(Recovered { store, registry, log, events, queries, begin, remarks, left_over })
}

/// The journal's records on their way into the store.
struct Taking<'a> {
    run: &'a Arc<str>,
    store: &'a Store,
    written: AllWritten,
    evicted: HashMap<(String, String), Ranges>,
    connections: HashMap<u64, Open>,
    /// Rows, by instance and table.
    appended: HashMap<(String, String), u64>,
}

/// A connection as it was at this point of the journal.
struct Open {
    instance: Arc<str>,
    identity: Arc<Identity>,
    tables: Vec<DeclaredTable>,
    strings: Strings,
}

impl Taking<'_> {
    fn open(&mut self, connection: u64, hello: &v1::Hello) {
        // It was understood when it was written down.
        let Ok(greeting) = understand(hello.clone(), self.run, self.store) else { return };
        let open = self.connections.entry(connection).or_insert_with(|| Open {
            instance: greeting.instance.as_str().into(),
            identity: Arc::clone(&greeting.identity),
            tables: Vec::new(),
            strings: Strings::default(),
        });
        open.identity = greeting.identity;
        open.tables = greeting.tables;
    }

    /// What of it can't be taken is missing in the end, and is counted there.
    fn batch(&mut self, connection: u64, batch: &v1::Batch) {
        let Some(open) = self.connections.get_mut(&connection) else { return };
        let Some(declared) = open.tables.get(batch.table as usize) else { return };
        let key = (open.instance.to_string(), declared.name.clone());
        let within = |ranges: &Ranges| ranges.iter().any(|(first, last)| (*first..=*last).contains(&batch.seq));
        if self.written.get(&key).is_some_and(|written| within(&written.ranges)) {
            return;
        }
        if self.evicted.get(&key).is_some_and(within) {
            return;
        }
        let Ok(rows) = Rows::decode(&declared.mapping, batch, &mut open.strings) else { return };
        *self.appended.entry(key).or_default() += rows.len() as u64;
        self.store.append(&open.identity, Origin::batch(&open.instance, batch.seq), rows);
    }
}

impl Take for Taking<'_> {
    fn restart(&mut self, connections: &[v1::Connection]) {
        self.connections.clear();
        for connection in connections {
            let Some(hello) = &connection.hello else { continue };
            self.open(connection.connection, hello);
            if let Some(open) = self.connections.get_mut(&connection.connection) {
                let strings = v1::Strings { first: 0, values: connection.strings.clone() };
                // What can't be taken makes batches that use it missing.
                let _ = open.strings.extend(strings);
            }
        }
    }

    fn take(&mut self, record: record::Record) {
        use record::Record;
        match record {
            Record::Opened(v1::Opened { connection, hello: Some(hello), .. }) => self.open(connection, &hello),
            Record::Said(v1::Said { connection, what: Some(what), .. }) => match what {
                said::What::Strings(strings) => {
                    if let Some(open) = self.connections.get_mut(&connection) {
                        // As above.
                        let _ = open.strings.extend(strings);
                    }
                }
                said::What::Batch(batch) => self.batch(connection, &batch),
                said::What::Status(_) => {}
            },
            Record::Closed(closed) => {
                self.connections.remove(&closed.connection);
            }
            _ => {}
        }
    }
}
