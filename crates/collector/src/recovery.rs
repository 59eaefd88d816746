//! Recovers a run whose collector died: its files and its journal together hold all of it.
//!
//! A command that asks the directory uses it, and a collector that goes on where the dead one ended.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use probe_common::error::Result;
use probe_proto::tables::steps;
use probe_proto::v1;
use probe_query::{QueryEngine, QueryLimits};
use probe_store::SystemTable;
use probe_store::journal::JournalStart;
use probe_store::journal::replay;
use probe_store::runs::{RunInfo, RunState};
use probe_store::{LeftOverFiles, StorageStats, Store};

use super::budget::memory_limit;
use super::events::{RunEvent, RunEvents, Severity};
use super::ingest::JournalReplay;
use super::pending_collectives::PendingCollectivesTable;
use super::registry::AgentRegistry;
use super::tables::{AgentsTable, DropsTable};
use super::written::written_batches;
use crate::eval::EvalLog;
use crate::server::QueryAudit;

/// Why rows are lost that the collector acknowledged, and that are neither in files nor in the journal.
const NOT_KEPT: &str = "not on disk when the collector ended";

/// What a collector has left.
#[derive(Debug)]
pub(crate) struct RecoveredRun {
    pub store: Arc<Store>,
    pub registry: Arc<AgentRegistry>,
    pub log: Arc<EvalLog>,
    pub events: Arc<RunEvents>,
    pub queries: Arc<QueryAudit>,
    /// What a collector that goes on begins its journal with.
    pub begin: JournalStart,
    /// Remarks for the user.
    pub remarks: Vec<String>,
    /// Files that are of no use.
    pub left_over: LeftOverFiles,
}

/// Opens a run directory for queries, without a collector. The second value has remarks for the user.
///
/// # Errors
/// There is no such directory, or its files can't be read.
pub fn open_run(directory: &Path) -> Result<(QueryEngine, Vec<String>)> {
    let limits = QueryLimits::of_collector(memory_limit()?)?.of_command();
    if replay::find(directory)?.files.is_empty() {
        return Ok((QueryEngine::with_limits(Store::open(directory)?, Vec::new(), limits)?, Vec::new()));
    }
    let run: Arc<str> = RunInfo::read(directory)?.run.into();
    let recovered = recover(directory, &run, u64::MAX)?;
    let RecoveredRun { registry, store, log, events, queries, .. } = &recovered;
    let system = system_tables(&run, registry, store, log, events, queries);
    Ok((QueryEngine::with_limits(recovered.store, system, limits)?, recovered.remarks))
}

/// The tables that a collector itself fills.
pub(super) fn system_tables(
    run: &Arc<str>,
    registry: &Arc<AgentRegistry>,
    store: &Arc<Store>,
    log: &Arc<EvalLog>,
    events: &Arc<RunEvents>,
    queries: &Arc<QueryAudit>,
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

/// The event that a collector goes on with a run, whose state was `before`.
pub(super) fn resumed_event(before: RunState) -> RunEvent {
    let message = match before {
        RunState::Live => "the collector was killed, and another one goes on with the run",
        RunState::Lost | RunState::Ended => {
            "the collector had ended without writing all rows, and another one goes on with the run"
        }
    };
    RunEvent::new("collector", Severity::Warning, message)
}

/// Puts together what a run's directory has, for a collector that may keep `disk` bytes on disk; writes nothing.
pub(crate) fn recover(directory: &Path, run: &Arc<str>, disk: u64) -> Result<RecoveredRun> {
    let (store, left_over) = Store::open_after_crash(directory, disk)?;
    let left = replay::find(directory)?;
    let written = written_batches(&store);
    let mut replay = JournalReplay::new(run, &store, &written, left.evicted()?);
    let replayed = left.replay(&mut replay)?;
    let appended = replay.appended();
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
    let mut not_kept: BTreeMap<String, u64> = BTreeMap::new();
    let mut evicted: HashMap<(&str, &str), u64> = HashMap::new();
    for gone in &checkpoint.evicted {
        *evicted.entry((&gone.instance, &gone.table)).or_default() += gone.rows;
    }
    for (instance, agent) in &mut checkpoint.agents {
        let there = |table: &str| {
            let key = (instance.clone(), table.to_owned());
            let in_journal = appended.get(instance.as_str()).and_then(|tables| tables.get(table)).copied().unwrap_or(0);
            let rows = written.get(&key).map_or(0, |written| written.rows) + in_journal;
            rows + evicted.get(&(instance.as_str(), table)).copied().unwrap_or(0)
        };
        for (table, stored) in &mut agent.stored {
            let there = there(table);
            if there < *stored {
                let rows = *stored - there;
                *not_kept.entry(table.clone()).or_default() += rows;
                let (table, reason) = (table.clone(), NOT_KEPT.to_owned());
                agent.lost.push(v1::Lost { table, reason, rows, unix_ns: agent.last_seen, ..v1::Lost::default() });
            }
            *stored = there;
            // Rows that went into files while the disk took no journal are stored, and the checkpoint knows nothing of them.
            // Rows that are known to be lost were recorded too.
            let lost = agent.lost.iter().filter(|lost| lost.table == *table).map(|lost| lost.rows).sum::<u64>();
            let recorded = agent.recorded.entry(table.clone()).or_default();
            *recorded = (*recorded).max(there + lost);
        }
    }
    remarks.extend(lost_rows(&not_kept));
    store.restore_evicted(run, &checkpoint.evicted);
    let registry = Arc::new(AgentRegistry::restore(run, &checkpoint, &written));
    let log = Arc::new(EvalLog::restore(&checkpoint.evals));
    let events = Arc::new(RunEvents::restore(run, &checkpoint.events));
    let queries = Arc::new(QueryAudit::restore(&checkpoint.queries));
    let begin = JournalStart { checkpoint, older: left.files, number: left.next, appends: store.appends(), disk };
    Ok(RecoveredRun { store, registry, log, events, queries, begin, remarks, left_over })
}

/// A remark about the rows of each table that are nowhere: of steps, or of the table that lost most, and of all others together.
fn lost_rows(lost: &BTreeMap<String, u64>) -> Option<String> {
    let (table, rows) = lost.iter().max_by_key(|(table, rows)| (**table == steps::TABLE.full_name(), **rows))?;
    let counted = |rows: u64| if rows == 1 { "1 row".to_owned() } else { format!("{rows} rows") };
    let all: u64 = lost.values().sum();
    let others = match (lost.len() - 1, all - rows) {
        (0, _) => String::new(),
        (1, more) => format!(" and {} of another table", counted(more)),
        (tables, more) => format!(" and {} of {tables} other tables", counted(more)),
    };
    let were = if all == 1 { "was" } else { "were" };
    Some(format!("{} of {table}{others} {were} not on disk when the collector ended (probe.drops)", counted(*rows)))
}
