//! The tables that the collector fills from what it knows: `probe.agents`, `probe.drops`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use probe_common::clock;
use probe_common::error::Result;
use probe_proto::agent_connection::AgentConnection;
use probe_proto::encode::StringTable;
use probe_proto::table::{Table, Text, Time};
use probe_proto::tables::{agents, drops};
use probe_store::{EvictedRows, ProcessIdentity, RecordBatchBuilder, Store, SystemTable};

use super::agent::{AgentState, ProcessLife};
use super::registry::AgentRegistry;

/// Why rows are lost that an agent had recorded, and that had not come when its process or its connection ended.
const NOT_SENT: &str = "not sent in time";

/// The table `probe.agents`.
#[derive(Debug)]
pub(crate) struct AgentsTable {
    pub registry: Arc<AgentRegistry>,
    pub store: Arc<Store>,
}

impl SystemTable for AgentsTable {
    fn table(&self) -> &'static Table {
        &agents::TABLE
    }

    fn rows(&self) -> Result<RecordBatch> {
        let mut builder = RecordBatchBuilder::new(&agents::TABLE);
        let mut strings = StringTable::default();
        let evicted = evicted_rows(self.store.evicted());
        let disk = self.store.problem().map(|problem| format!("rows are in memory only: {problem}"));
        for agent in self.registry.all() {
            let state = agent.state();
            let process = (Arc::clone(&state.identity.host), state.identity.pid);
            let evicted = evicted.get(&process).copied().unwrap_or_default();
            builder.push(agent_row(&state, evicted, disk.as_deref(), &mut strings));
        }
        builder.finish(&strings)
    }
}

/// Evicted rows by host and pid. `evicted` has one entry for each process and table, of which there may be thousands.
fn evicted_rows(evicted: Vec<EvictedRows>) -> HashMap<(Arc<str>, i32), u64> {
    let mut rows: HashMap<(Arc<str>, i32), u64> = HashMap::new();
    for evicted in evicted {
        let sum = rows.entry((Arc::clone(&evicted.identity.host), evicted.identity.pid)).or_default();
        *sum = sum.saturating_add(evicted.rows);
    }
    rows
}

/// The row of an agent. `evicted`: how many of its rows were evicted. `disk`: what is wrong with the disk.
fn agent_row(state: &AgentState, evicted: u64, disk: Option<&str>, strings: &mut StringTable) -> agents::Row {
    let problems: Vec<String> = state.problems().into_iter().chain(disk.map(str::to_owned)).collect();
    let layers: Vec<String> = state.layers.iter().map(|(layer, mechanism)| format!("{layer}={mechanism}")).collect();
    let sum = |rows: &mut dyn Iterator<Item = u64>| whole(rows.fold(0, u64::saturating_add));
    let ended = match &state.life {
        ProcessLife::Ended(ended) => Some(ended),
        ProcessLife::Unknown | ProcessLife::Watched | ProcessLife::Recovering => None,
    };
    agents::Row {
        run: strings.id(&state.identity.run),
        host: strings.id(&state.identity.host),
        pid: state.identity.pid,
        rank: state.identity.rank,
        local_rank: state.identity.local_rank,
        world_size: state.identity.world_size,
        role: strings.id(&state.identity.role),
        state: strings.id(state.presence.as_str()),
        ended: ended.map(|ended| Time(ended.unix_ns)),
        exit_status: ended.and_then(|ended| ended.exit_status),
        signal: ended.and_then(|ended| ended.signal.as_deref()).map(|signal| strings.id(signal)),
        cause: ended.and_then(|ended| ended.cause.as_deref()).map(|cause| strings.id(cause)),
        step: state.step,
        steps_per_second: (state.steps_per_second > 0.0).then_some(state.steps_per_second),
        detail: state.settings.get(probe_proto::config::DETAIL).map(|detail| strings.id(detail)),
        layers: strings.id(&layers.join(" ")),
        attached: Some(state.about.attached),
        agent_version: strings.id(&state.about.agent_version),
        python_version: strings.id(&state.about.python_version),
        torch_version: strings.id(&state.about.torch_version),
        rows_recorded: sum(&mut state.recorded.values().copied()),
        rows_stored: whole(state.stored.values().sum::<u64>().saturating_sub(evicted)),
        rows_dropped: sum(&mut state.lost_there.values().map(|loss| loss.rows)),
        first_seen: Time(state.first_seen),
        last_seen: Time(state.last_seen),
        clock_offset: state.clock_offset,
        problem: (!problems.is_empty()).then(|| strings.id(&problems.join("; "))),
        command: strings.id(&state.about.command),
    }
}

/// The table `probe.drops`: rows that agents say they lost, that the collector lost, and that the store evicted.
#[derive(Debug)]
pub(crate) struct DropsTable {
    pub registry: Arc<AgentRegistry>,
    pub store: Arc<Store>,
}

impl SystemTable for DropsTable {
    fn table(&self) -> &'static Table {
        &drops::TABLE
    }

    fn rows(&self) -> Result<RecordBatch> {
        let mut rows =
            DropsBuilder { builder: RecordBatchBuilder::new(&drops::TABLE), strings: StringTable::default() };
        for agent in self.registry.all() {
            let state = agent.state();
            for ((table, reason), loss) in &state.lost_there {
                rows.push(&state.identity, table, reason, "agent", loss.rows, loss.last);
            }
            for ((table, reason), loss) in &state.lost_here {
                rows.push(&state.identity, table, reason, "collector", loss.rows, loss.last);
            }
        }
        for agent in self.registry.all() {
            let state = agent.state();
            // The missing rows of a live agent are on their way.
            for table in state.recorded.keys().filter(|_| state.presence != AgentConnection::Live) {
                if state.missing(table) > 0 {
                    rows.push(&state.identity, table, NOT_SENT, "agent", state.missing(table), state.last_seen);
                }
            }
        }
        for loss in self.store.evicted() {
            let last = clock::ns_of(loss.last);
            rows.push(&loss.identity, &loss.table.full_name(), "evicted", "collector", loss.rows, last);
        }
        rows.builder.finish(&rows.strings)
    }
}

struct DropsBuilder {
    builder: RecordBatchBuilder,
    strings: StringTable,
}

impl DropsBuilder {
    fn push(&mut self, identity: &ProcessIdentity, table: &str, reason: &str, at: &str, rows: u64, last: i64) {
        let mut text = |text: &str| -> Text { self.strings.id(text) };
        let row = drops::Row {
            run: text(&identity.run),
            host: text(&identity.host),
            pid: identity.pid,
            rank: identity.rank,
            table_name: text(table),
            reason: text(reason),
            at: text(at),
            rows: whole(rows),
            last_seen: Time(last),
        };
        self.builder.push(row);
    }
}

/// A count as an integer of SQL.
fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use probe_proto::tables::{metrics, steps};

    use super::*;

    #[test]
    fn evicted_rows_are_summed_by_process() {
        let evicted = |host: &str, pid, rank, table, rows| {
            let hello = probe_proto::v1::Hello { host: host.into(), pid, rank, ..Default::default() };
            let identity = Arc::new(ProcessIdentity::of_hello(&"gpt@1".into(), &hello));
            EvictedRows { identity, table, rows, last: std::time::SystemTime::UNIX_EPOCH }
        };
        let rows = evicted_rows(vec![
            evicted("a", 7, None, &steps::TABLE, 1),
            evicted("b", 7, None, &steps::TABLE, 10),
            evicted("a", 7, Some(3), &metrics::TABLE, 100),
            evicted("a", 8, None, &steps::TABLE, u64::MAX),
            evicted("a", 8, None, &metrics::TABLE, 1),
        ]);
        let of = |host: &str, pid| rows.get(&(Arc::from(host), pid)).copied();
        assert_eq!((of("a", 7), of("b", 7), of("a", 8)), (Some(101), Some(10), Some(u64::MAX)));
        assert_eq!((of("b", 8), rows.len()), (None, 3));
    }
}
