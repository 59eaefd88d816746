//! The collector's own tables of the run.

use arrow::array::RecordBatch;
use probe_common::error::Result;
use probe_proto::encode::StringTable;
use probe_proto::table::{Row, Table, Text, Time};
use probe_proto::tables::{agents, drops, evals, events};
use probe_store::{RecordBatchBuilder, SystemTable};

use super::START;

fn system_rows<R: Row>(strings: StringTable, rows: impl IntoIterator<Item = R>) -> Result<RecordBatch> {
    let mut builder = RecordBatchBuilder::new(R::TABLE);
    rows.into_iter().for_each(|row| builder.push(row));
    builder.finish(&strings)
}

#[derive(Debug)]
pub(super) struct Agents;

impl SystemTable for Agents {
    fn table(&self) -> &'static Table {
        &agents::TABLE
    }
    fn rows(&self) -> Result<RecordBatch> {
        let mut strings = StringTable::default();
        let mut text = |text: &str| -> Text { strings.id(text) };
        let mut agent = |rank: i32| agents::Row {
            run: text("gpt@1"),
            host: text("node-1"),
            pid: 100 + rank,
            rank: Some(rank),
            local_rank: Some(rank),
            world_size: Some(2),
            role: text("trainer"),
            state: text(if rank == 0 { "live" } else { "lost" }),
            ended: (rank == 1).then_some(Time(START + 4_500_000_000)),
            exit_status: None,
            signal: (rank == 1).then(|| text("SIGKILL")),
            cause: (rank == 1).then(|| text("kernel log: Out of memory: Killed process 101 (python)")),
            step: 4,
            steps_per_second: (rank == 0).then_some(0.5),
            detail: Some(text("every-step")),
            layers: text("forward=tp_call"),
            attached: Some(false),
            agent_version: text("0.1.0"),
            python_version: text("3.11.2"),
            torch_version: text("2.15.0"),
            rows_recorded: 33,
            rows_stored: 33,
            rows_dropped: 0,
            first_seen: Time(START),
            last_seen: Time(START + 4_000_000_000),
            clock_offset: None,
            problem: None,
            command: text("train.py"),
        };
        let rows = [agent(0), agent(1)];
        system_rows(strings, rows)
    }
}

#[derive(Debug)]
pub(super) struct Drops;

impl SystemTable for Drops {
    fn table(&self) -> &'static Table {
        &drops::TABLE
    }
    fn rows(&self) -> Result<RecordBatch> {
        let mut strings = StringTable::default();
        let mut text = |text: &str| -> Text { strings.id(text) };
        let row = drops::Row {
            run: text("gpt@1"),
            host: text("node-1"),
            pid: 101,
            rank: Some(1),
            table_name: text("python.torch_trace"),
            reason: text("ring full"),
            at: text("agent"),
            rows: 7,
            last_seen: Time(START),
        };
        system_rows(strings, [row])
    }
}

#[derive(Debug)]
pub(super) struct Evals;

impl SystemTable for Evals {
    fn table(&self) -> &'static Table {
        &evals::TABLE
    }
    fn rows(&self) -> Result<RecordBatch> {
        system_rows(StringTable::default(), std::iter::empty::<evals::Row>())
    }
}

#[derive(Debug)]
pub(super) struct Events;

impl SystemTable for Events {
    fn table(&self) -> &'static Table {
        &events::TABLE
    }
    fn rows(&self) -> Result<RecordBatch> {
        let mut strings = StringTable::default();
        let mut text = |text: &str| -> Text { strings.id(text) };
        let mut event = |step: i64, rank: Option<i32>, kind, severity, message, details: Option<&str>| events::Row {
            id: step - 1,
            ts: Time(START + step * 1_000_000_000),
            kind: text(kind),
            severity: text(severity),
            run: text("gpt@1"),
            host: rank.map(|_| text("node-1")),
            pid: rank.map(|rank| 100 + rank),
            rank,
            step: Some(step),
            message: text(message),
            details: details.map(&mut text),
        };
        let slow = "steps take 0.2 s instead of 0.1 s";
        let rows = [
            event(2, None, "slow", "warning", slow, Some(r#"{"baseline":0.1,"recent":0.2}"#)),
            event(3, Some(1), "hang", "error", "rank 1 has been in all_reduce for 60 s", None),
        ];
        system_rows(strings, rows)
    }
}
