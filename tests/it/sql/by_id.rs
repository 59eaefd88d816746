//! Rows are filtered and grouped by the ids of their texts, next to the scan. What comes out is what DataFusion finds by
//! itself over the same rows, wherever they are.

use std::cell::Cell;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};
use probe_proto::table::Time;
use probe_proto::tables::torch_trace;
use probe_query::QueryEngine;
use probe_store::journal::{Journal, JournalStart};
use probe_store::{Store, StoreWriter};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config, TestRunner};

use crate::sql::data::{Agent, START};
use crate::sql::{cells, metrics, rows};

const CONDITIONS: &[&str] = &[
    "module = 'layers.1.attn'",
    "module LIKE '%attn%'",
    "module IS NULL",
    "module IN ('layers.0.mlp', 'AdamW', 'nothing')",
    "module NOT LIKE 'layers%'",
    "coalesce(module, 'none') <> 'AdamW'",
    "upper(stage) = 'FORWARD'",
    "stage <> 'step'",
    "module || stage LIKE '%forward'",
    "input_shape IS NOT NULL",
    "CASE WHEN module IS NULL THEN step > 4 ELSE stage = 'forward' END",
    "step > 3",
    "step >= 0",
    "step < 9 AND 1 < step",
    "thread > -1",
    "ts::time >= '00:00:03'",
    "CAST(step - 4 AS BOOLEAN) > FALSE",
    "CAST(step AS BOOLEAN) > FALSE",
    "TRY_CAST(thread AS INTEGER) > 5",
    "ts > TIMESTAMP '2001-01-01T00:00:00Z'",
    "step > (SELECT MAX(step) - 3 FROM t)",
    "ts <= (SELECT MIN(ts) FROM t AS u) OR allocated < (SELECT MAX(allocated) FROM t)",
    "step > (SELECT MAX(step) - 3 FROM t WHERE stage = 'step')",
    "duration > 0.25",
    "allocated > 100",
    "NOT compiled",
    "rank = 1",
    "host LIKE 'node%'",
    "role = 'nobody'",
    "random() < 2",
    "NULL",
];
const GROUPS: &[&str] = &[
    "module",
    "stage",
    "step",
    "rank",
    "host",
    "compiled",
    "micro_step",
    "ts",
    "thread",
    "input_shape",
    "module_type",
];
const AGGREGATES: &[&str] = &[
    "COUNT(*)",
    "COUNT(duration)",
    "SUM(duration)",
    "AVG(duration)",
    "MIN(host_duration)",
    "MAX(ts)",
    "MIN(module)",
    "COUNT(DISTINCT module)",
    "SUM(step) FILTER (WHERE stage = 'forward')",
    "SUM(duration) FILTER (WHERE stage = 'forward')",
    "AVG(duration) FILTER (WHERE NOT compiled)",
    "COUNT(DISTINCT rank)",
    "MIN(duration)",
    "MAX(duration)",
    "SUM(allocated)",
    "bool_or(compiled)",
];
/// Without GROUP BY.
const TOTALS: &[&str] = &["SUM(duration)", "AVG(duration)", "COUNT(module)", "COUNT(*)", "AVG(allocated)"];

/// A row: which module, stage and step, its duration, what is allocated, and whether it is compiled.
type Drawn = (Option<usize>, usize, i64, Option<u8>, Option<i64>, bool);

fn drawn() -> impl Strategy<Value = Drawn> {
    // Some are far apart, so that they are not kept as offsets.
    let allocated = prop_oneof![Just(None), (0..300_i64).prop_map(Some), Just(Some(i64::MIN / 2)), Just(Some(1 << 50))];
    (
        prop_oneof![1 => Just(None), 5 => (0..6_usize).prop_map(Some)],
        0..3_usize,
        0..9_i64,
        prop_oneof![1 => Just(None), 5 => any::<u8>().prop_map(Some)],
        allocated,
        any::<bool>(),
    )
}

fn send(store: &Store, agent: &mut Agent, batch: &[Drawn]) {
    const MODULES: [&str; 6] = ["layers.0.attn", "layers.0.mlp", "layers.1.attn", "layers.1.mlp", "layers.0", "AdamW"];
    const STAGES: [&str; 3] = ["forward", "backward", "step"];
    let row = |(module, stage, step, duration, allocated, compiled): &Drawn| {
        let row = agent.trace(*step, module.map(|module| MODULES[module]), STAGES[*stage], 0.0);
        let duration = duration.map(|duration| f64::from(duration) / 256.0);
        let ts = Time(START + step * 1_000_000_000 + i64::from(*compiled) * (1 << 40));
        let (thread, compiled) = (allocated.unwrap_or(7), *compiled);
        let allocated = allocated.map(|allocated| (allocated % 1000) as f64);
        torch_trace::Row { duration, allocated, compiled, ts, thread, micro_step: (step % 2) as i32, ..row }
    };
    let rows: Vec<_> = batch.iter().map(row).collect();
    agent.send(store, rows);
}

/// The same rows in memory (half of them sealed), half in files, and all of them in files. The store of the first, which keeps
/// its rows, too.
fn engines(batches: &[Vec<Drawn>], directory: &std::path::Path) -> (Vec<QueryEngine>, Arc<Store>, StoreWriter) {
    let (memory, first) = (Store::new(1 << 30), Store::new(1 << 30));
    let kept = directory.join("kept");
    let journal =
        Journal::begin(&kept.join("journal"), JournalStart { disk: 1 << 30, ..JournalStart::default() }).unwrap();
    let writer = memory.start_writer(&kept, journal, 1 << 30, 1 << 30).unwrap();
    let mut agents = [0, 0, 1, 1].map(Agent::new);
    let half = batches.len() / 2;
    for (index, batch) in batches.iter().enumerate() {
        let rank = index % 2;
        if index == half {
            memory.keep_up(true).unwrap();
        }
        send(&memory, &mut agents[rank * 2], batch);
        if index < half {
            send(&first, &mut agents[rank * 2 + 1], batch);
        }
    }
    memory.write(&directory.join("all"), &[]).unwrap();
    first.write(&directory.join("half"), &[]).unwrap();
    let both = Store::open(&directory.join("half")).unwrap();
    for (index, batch) in batches.iter().enumerate().skip(half) {
        send(&both, &mut agents[index % 2 * 2 + 1], batch);
    }
    let files = Store::open(&directory.join("all")).unwrap();
    let stores = [Arc::clone(&memory), both, files];
    (stores.map(|store| QueryEngine::new(store, Vec::new()).unwrap()).into(), memory, writer)
}

async fn plain(batches: Vec<RecordBatch>, sql: &str) -> Vec<Vec<String>> {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    let table = MemTable::try_new(batches[0].schema(), vec![batches]).unwrap();
    context.register_table("t", Arc::new(table)).unwrap();
    let answer = context.sql(sql).await.unwrap().collect().await.unwrap();
    sorted(&answer)
}

fn sorted(answer: &[RecordBatch]) -> Vec<Vec<String>> {
    let mut answer = cells(answer);
    answer.sort();
    answer
}

#[test]
fn answers_are_those_that_are_found_without_ids() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let batches = prop::collection::vec(prop::collection::vec(drawn(), 1..60), 2..8);
    let conditions = subsequence(CONDITIONS, 0..4);
    let groups = subsequence(GROUPS, 1..4);
    let aggregates = subsequence(AGGREGATES, 0..5);
    let columns = select(vec!["*", "step, module, duration", "rank, input_shape, stage"]);
    let questions = prop::collection::vec((conditions, groups, aggregates, columns), 12);
    let mut runner = TestRunner::new(Config { cases: 6, failure_persistence: None, ..Config::default() });
    let (grouped, totals, summed) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let run = |(batches, questions): (Vec<Vec<Drawn>>, Vec<_>)| {
        let directory = tempfile::tempdir().unwrap();
        let (engines, memory, _writer) = engines(&batches, directory.path());
        runtime.block_on(async {
            let all = rows(&engines[0], "SELECT * FROM python.torch_trace", None).await.unwrap();
            for (number, (conditions, groups, aggregates, columns)) in questions.iter().enumerate() {
                let (conditions, groups): (&Vec<&str>, &Vec<&str>) = (conditions, groups);
                let aggregates: &Vec<&str> = aggregates;
                if number == questions.len() / 2 {
                    // What is sealed leaves memory.
                    memory.limit_memory(0);
                    memory.keep_up(false).unwrap();
                }
                let filter =
                    if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
                let wanted: Vec<&str> = groups.iter().chain(aggregates).copied().collect();
                let by_group = match number % 4 {
                    0 => format!("SELECT {} FROM t {filter}", TOTALS[..=aggregates.len()].join(", ")),
                    _ => format!("SELECT {} FROM t {filter} GROUP BY {}", wanted.join(", "), groups.join(", ")),
                };
                let first = format!(
                    "SELECT step, module, stage, rank, duration, ts, allocated FROM t {filter}
                     ORDER BY duration DESC, module, stage, step, rank, ts, allocated LIMIT 9"
                );
                for (sql, times) in [(by_group, 3), (format!("SELECT {columns} FROM t {filter}"), 1), (first, 1)] {
                    let expected = plain(all.clone(), &sql).await;
                    let sql = sql.replace(" FROM t", " FROM python.torch_trace");
                    for engine in &engines {
                        let plan =
                            cells(&rows(engine, &format!("EXPLAIN {sql}"), None).await.unwrap()).concat().concat();
                        grouped.set(grouped.get() + usize::from(plan.contains("GroupByIdExec")));
                        totals.set(totals.get() + usize::from(plan.contains("TotalsExec")));
                        // With a filter, rows are added up when a question comes again.
                        for _ in 0..times {
                            assert_eq!(sorted(&rows(engine, &sql, None).await.unwrap()), expected, "{sql}");
                        }
                        if times > 1 {
                            let [parts] = metrics(engine, &sql, ["parts_summed"]).await;
                            summed.set(summed.get() + usize::from(parts > 0));
                        }
                    }
                }
            }
        });
        Ok(())
    };
    runner.run(&(batches, questions), run).unwrap();
    let counts = (grouped.get(), totals.get(), summed.get());
    assert!(counts.0 > 50 && counts.1 > 10 && counts.2 > 10, "{counts:?}");
}
