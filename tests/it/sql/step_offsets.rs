//! Which steps of several ranks are the same, in runs whose ranks count their own steps differently.

use std::sync::Arc;

use arrow::array::RecordBatch;
use probe_common::error::Result;
use probe_proto::encode::StringTable;
use probe_proto::table::{Table, Time};
use probe_proto::tables::{agents, nccl_trace, steps};
use probe_query::QueryEngine;
use probe_store::{ProcessIdentity, RecordBatchBuilder, Store, SystemTable};

use crate::sql::data::{Agent, START};
use crate::sql::{cells, rows};

const SECOND: i64 = 1_000_000_000;

/// A process whose step `from` is the run's step `begins`, and that makes `count` steps with an operation each.
struct Process {
    rank: i32,
    pid: i32,
    /// The process's own number of its first step.
    from: i64,
    /// When the first step began, in seconds after the run began; a step takes one second.
    begins: i64,
    count: i64,
    /// The number of the operation in its first step; None for no operations.
    seq: Option<i64>,
    attached: bool,
    /// How many of its first steps were captured.
    captured: i64,
}

const PLAIN: Process =
    Process { rank: 0, pid: 10, from: 0, begins: 0, count: 20, seq: Some(0), attached: false, captured: 0 };

impl Process {
    fn send(&self, store: &Store, operation: &str, group: &str) {
        let mut agent = Agent::new(self.rank);
        agent.identity = Arc::new(ProcessIdentity { pid: self.pid, ..ProcessIdentity::clone(&agent.identity) });
        let clock = agent.strings.id("host");
        let ts = |at: i64| Time(START + (self.begins + at) * SECOND);
        let made: Vec<_> = (0..self.count)
            // Rank 1 is busy for a quarter of a second longer in the run's steps that 4 divides.
            .map(|at| {
                let slow = self.rank == 1 && (self.begins + at) % 4 == 0;
                let comm_time = if slow { 0.25 } else { 0.5 };
                let captured = Some(at < self.captured);
                steps::Row { ts: ts(at), comm_time, clock, captured, ..steps::Row::of_a_second(self.from + at) }
            })
            .collect();
        agent.send(store, made);
        if let Some(first) = self.seq {
            let group_name = agent.strings.id(group);
            let rows: Vec<_> = (0..self.count)
                .map(|at| {
                    let row = agent.collective(self.from + at, first + at, operation);
                    nccl_trace::Row { ts: ts(at), group_name, ..row }
                })
                .collect();
            agent.send(store, rows);
        }
    }
}

/// A stand-in for `probe.agents`, with the columns that the view reads.
#[derive(Debug)]
struct Attached(Vec<(i32, i32, bool)>);

impl SystemTable for Attached {
    fn table(&self) -> &'static Table {
        &agents::TABLE
    }
    fn rows(&self) -> Result<RecordBatch> {
        let (mut builder, mut strings) = (RecordBatchBuilder::new(&agents::TABLE), StringTable::default());
        for (rank, pid, attached) in &self.0 {
            let unknown = strings.id("");
            builder.push(agents::Row {
                run: strings.id("gpt@1"),
                host: strings.id("node-1"),
                pid: *pid,
                rank: Some(*rank),
                local_rank: None,
                world_size: None,
                role: unknown,
                state: unknown,
                ended: None,
                exit_status: None,
                signal: None,
                cause: None,
                step: 0,
                steps_per_second: None,
                detail: None,
                layers: unknown,
                attached: Some(*attached),
                agent_version: unknown,
                python_version: unknown,
                torch_version: unknown,
                rows_recorded: 0,
                rows_stored: 0,
                rows_dropped: 0,
                first_seen: Time(0),
                last_seen: Time(0),
                clock_offset: None,
                problem: None,
                command: unknown,
            });
        }
        builder.finish(&strings)
    }
}

fn engine(processes: &[Process]) -> QueryEngine {
    let store = Store::new(1 << 30);
    processes.iter().for_each(|process| process.send(&store, "all_reduce", "0"));
    engine_of(store, processes)
}

fn engine_of(store: Arc<Store>, processes: &[Process]) -> QueryEngine {
    let agents = processes.iter().map(|process| (process.rank, process.pid, process.attached)).collect();
    QueryEngine::new(store, vec![Arc::new(Attached(agents))]).unwrap()
}

/// Rank, generation, step_offset, known_by and ranks, by pid.
async fn offsets(engine: &QueryEngine) -> Vec<String> {
    let sql = "SELECT pid, rank, generation, step_offset, known_by, ranks FROM python.step_offsets ORDER BY pid";
    cells(&rows(engine, sql, None).await.unwrap()).into_iter().map(|row| row.join(" ")).collect()
}

/// The number of steps and the last one, by pid.
async fn balance(engine: &QueryEngine) -> Vec<String> {
    let sql = "SELECT pid, steps, last FROM python.rank_balance ORDER BY pid";
    cells(&rows(engine, sql, None).await.unwrap()).into_iter().map(|row| row.join(" ")).collect()
}

#[tokio::test]
async fn ranks_that_were_attached_to_one_after_the_other_are_joined_by_their_operations() {
    let second =
        Process { rank: 1, pid: 11, from: 1, begins: 7, count: 13, seq: Some(107), attached: true, captured: 0 };
    let engine = engine(&[Process { seq: Some(100), attached: true, ..PLAIN }, second]);
    assert_eq!(offsets(&engine).await, ["10 0 0 0 lowest rank 2", "11 1 0 6 collectives 2"]);
    // Of the run's steps 7 to 19 rank 1 is the last in 8, 12 and 16, and both are in the others.
    assert_eq!(balance(&engine).await, ["10 13 10", "11 13 13"]);
}

#[tokio::test]
async fn without_operations_in_common_only_a_start_says_that_steps_are_the_same() {
    let second = |attached| Process { rank: 1, pid: 11, seq: None, attached, ..PLAIN };
    let both = engine(&[PLAIN, second(false)]);
    assert_eq!(offsets(&both).await, ["10 0 0 0 lowest rank 2", "11 1 0 0 start 2"]);
    assert_eq!(balance(&both).await, ["10 20 15", "11 20 20"]);
    let attached = engine(&[PLAIN, second(true)]);
    assert_eq!(offsets(&attached).await, ["10 0 0 0 lowest rank 1", "11 1 0 NULL NULL 1"]);
    assert_eq!(balance(&attached).await, ["10 0 NULL", "11 0 NULL"]);
}

#[tokio::test]
async fn a_step_that_one_rank_had_captured_is_not_compared() {
    let second = |captured| Process { rank: 1, pid: 11, captured, ..PLAIN };
    assert_eq!(balance(&engine(&[PLAIN, second(0)])).await, ["10 20 15", "11 20 20"]);
    assert_eq!(balance(&engine(&[PLAIN, second(3)])).await, ["10 17 13", "11 17 17"]);
    assert_eq!(balance(&engine(&[PLAIN, second(20)])).await, ["10 0 NULL", "11 0 NULL"]);
}

#[tokio::test]
async fn a_difference_that_changes_is_not_known() {
    // From the run's step 10 on, rank 1 has counted a step that rank 0 has not.
    let first = Process { rank: 1, pid: 11, count: 10, ..PLAIN };
    let then = Process { from: 11, begins: 10, count: 10, seq: Some(10), ..first };
    assert_eq!(offsets(&engine(&[PLAIN, first, then])).await, ["10 0 0 0 lowest rank 1", "11 1 0 NULL NULL 1"]);
}

#[tokio::test]
async fn processes_of_two_starts_are_not_mixed() {
    let second = Process { rank: 1, pid: 11, ..PLAIN };
    let again = |process: &Process| Process { pid: process.pid + 10, begins: 40, count: 10, ..*process };
    let all = [again(&PLAIN), again(&second), PLAIN, second];
    let engine = engine(&all);
    let known =
        ["10 0 1 0 lowest rank 2", "11 1 1 0 collectives 2", "20 0 0 0 lowest rank 2", "21 1 0 0 collectives 2"];
    assert_eq!(offsets(&engine).await, known);
    assert_eq!(balance(&engine).await, ["10 20 15", "11 20 20", "20 10 7", "21 10 10"]);
}

#[tokio::test]
async fn a_rank_that_was_started_anew_beside_the_others_is_joined_by_its_operations() {
    let lives = |seq| {
        let first = Process { rank: 1, pid: 11, count: 8, ..PLAIN };
        [PLAIN, first, Process { rank: 1, pid: 12, begins: 12, count: 8, seq, ..PLAIN }]
    };
    let joined = ["10 0 0 0 lowest rank 2", "11 1 1 0 lowest rank 1", "12 1 0 12 collectives 2"];
    assert_eq!(offsets(&engine(&lives(Some(12)))).await, joined);
    let unknown = ["10 0 0 0 lowest rank 1", "11 1 1 0 lowest rank 1", "12 1 0 NULL NULL 1"];
    assert_eq!(offsets(&engine(&lives(None))).await, unknown);
}

#[tokio::test]
async fn processes_that_did_not_train_at_the_same_time_have_no_step_in_common() {
    let later = Process { rank: 1, pid: 11, begins: 100, ..PLAIN };
    assert_eq!(offsets(&engine(&[PLAIN, later])).await, ["10 0 0 0 lowest rank 1", "11 1 0 NULL NULL 1"]);
}

#[tokio::test]
async fn a_group_with_messages_says_nothing() {
    let store = Store::new(1 << 30);
    let second = Process { rank: 1, pid: 11, attached: true, seq: Some(3), ..PLAIN };
    let messages = Process { count: 0, ..PLAIN };
    PLAIN.send(&store, "all_reduce", "0");
    second.send(&store, "all_reduce", "0");
    let both = || engine_of(Arc::clone(&store), &[PLAIN, Process { rank: 1, pid: 11, attached: true, ..PLAIN }]);
    assert_eq!(offsets(&both()).await[1], "11 1 0 3 collectives 2");
    Process { count: 1, from: 19, seq: Some(500), begins: 19, ..messages }.send(&store, "send", "0");
    assert_eq!(offsets(&both()).await[1], "11 1 0 NULL NULL 1");
}

#[tokio::test]
async fn collectives_of_captured_steps_are_in_no_percentile() {
    let store = Store::new(1 << 30);
    let process = Process { captured: 3, ..PLAIN };
    process.send(&store, "broadcast", "0");
    let mut agent = Agent::new(0);
    agent.identity = Arc::new(ProcessIdentity { pid: PLAIN.pid, ..ProcessIdentity::clone(&agent.identity) });
    // The first and the last step issue one more each: only the first is captured.
    for (step, took) in [(0, 500.0), (19, 40.0)] {
        let row = agent.collective(step, 20 + step, "broadcast");
        agent.send(&store, [nccl_trace::Row { duration_ms: Some(took), ..row }]);
    }
    let engine = engine_of(store, &[process]);
    let sql = "SELECT calls, timed, total_ms, p50_ms, max_ms FROM python.collective_profile";
    assert_eq!(cells(&rows(&engine, sql, None).await.unwrap()), [["22", "22", "580.0", "2.0", "40.0"]]);
}
