//! The parts that a scan reads, and changes of the store while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::TryStreamExt;
use probe_proto::tables::torch_trace;
use probe_query::QueryEngine;
use probe_store::Store;

use crate::sql::data::Agent;
use crate::sql::{cell, cells, metrics, rows};

/// Rows of a batch, and batches that fill a segment.
const BATCH: i64 = 4096;
const SEGMENT: i64 = 64;

/// `segments` full segments of one rank, with one step in each batch.
fn filled(store: &Store, rank: i32, segments: i64) {
    let mut agent = Agent::new(rank);
    for step in 0..segments * SEGMENT {
        let row = agent.trace(step, Some("layers.0"), "forward", 0.5);
        agent.send(store, (0..BATCH).map(|call| torch_trace::Row { call_index: call as i32, ..row }));
    }
}

/// The metrics segments_scanned and segments_total of the plan's scans, added up.
async fn scanned(engine: &QueryEngine, sql: &str) -> (usize, usize) {
    let [scanned, total] = metrics(engine, sql, ["segments_scanned", "segments_total"]).await;
    (scanned, total)
}

#[tokio::test]
async fn segments_without_rows_for_the_query_are_skipped() {
    let store = Store::new(usize::MAX);
    filled(&store, 0, 6);
    filled(&store, 1, 2);
    let engine = QueryEngine::new(store, Vec::new()).unwrap();
    let last = 6 * SEGMENT - 1;
    let rows_a_step = 2 * BATCH;
    // A constant, an identity, both.
    assert_eq!(scanned(&engine, &format!("SELECT module FROM python.torch_trace WHERE step = {last}")).await, (1, 8));
    assert_eq!(scanned(&engine, "SELECT module FROM python.torch_trace WHERE rank = 1").await, (2, 8));
    assert_eq!(scanned(&engine, "SELECT module FROM python.torch_trace WHERE pid = 100 AND step < 3").await, (1, 8));
    assert_eq!(scanned(&engine, "SELECT module FROM python.torch_trace WHERE run = 'other'").await, (0, 8));
    // NULL in all of a segment's rows.
    assert_eq!(scanned(&engine, "SELECT module FROM python.torch_trace WHERE allocated > 1.0").await, (0, 8));
    // Values that are known only once the query runs: a subquery's result …
    let before = format!("(SELECT MAX(value) FROM generate_series(1, {}))", last - 10);
    for before in [before.as_str(), "(SELECT MAX(step) - 10 FROM python.torch_trace)"] {
        let recent = format!("SELECT COUNT(*) FROM python.torch_trace WHERE step > {before}");
        assert_eq!(scanned(&engine, &recent).await, (1, 8));
        assert_eq!(cell(&engine, &recent).await, (10 * BATCH).to_string());
    }
    // … and what ORDER BY … LIMIT has found so far: each partition reads one segment, and then knows enough.
    let partitions = std::thread::available_parallelism().unwrap().get().min(8);
    let newest = "SELECT step, call_index FROM python.torch_trace ORDER BY step DESC LIMIT 3";
    assert!(scanned(&engine, newest).await.0 <= partitions);
    assert_eq!(cells(&rows(&engine, newest, None).await.unwrap())[0][0], last.to_string());
    let oldest = "SELECT step FROM python.torch_trace ORDER BY step LIMIT 3";
    assert!(scanned(&engine, oldest).await.0 <= partitions);
    // Batches without rows for the query are skipped in a segment that is read.
    let sql = format!("EXPLAIN ANALYZE SELECT module FROM python.torch_trace WHERE step = {last}");
    let plan = cells(&rows(&engine, &sql, None).await.unwrap()).concat().concat();
    let scan = plan.split("DataSourceExec").nth(1).unwrap();
    assert!(scan.contains("output_rows=4.10 K"), "{scan}");
    // Without a filter, everything.
    assert_eq!(scanned(&engine, "SELECT SUM(duration) FROM python.torch_trace").await, (8, 8));
    assert_eq!(
        cell(&engine, "SELECT COUNT(module) FROM python.torch_trace WHERE step < 2").await,
        (2 * rows_a_step).to_string()
    );
}

#[tokio::test]
async fn counts_and_bounds_need_no_scan() {
    let store = Store::new(usize::MAX);
    filled(&store, 0, 1);
    let directory = tempfile::tempdir().unwrap();
    store.write(directory.path(), &[]).unwrap();
    for store in [store, Store::open(directory.path()).unwrap()] {
        let engine = QueryEngine::new(store, Vec::new()).unwrap();
        for sql in [
            "SELECT COUNT(*) FROM python.torch_trace",
            "SELECT MAX(step), MIN(step), MAX(ts), MAX(rank), COUNT(allocated) FROM python.torch_trace",
        ] {
            let plan = cells(&rows(&engine, &format!("EXPLAIN {sql}"), None).await.unwrap());
            assert!(!plan.iter().flatten().any(|text| text.contains("DataSourceExec")), "{plan:?}");
        }
    }
}

/// A NaN among floats makes their bounds ambiguous; answers must not depend on whether rows are in memory or on disk.
#[tokio::test]
async fn not_a_number_is_the_same_everywhere() {
    let store = Store::new(usize::MAX);
    let mut agent = Agent::new(0);
    let values = [1.0, f64::NAN, 3.0].map(|duration| agent.trace(0, None, "forward", duration));
    agent.send(&store, values);
    let directory = tempfile::tempdir().unwrap();
    store.write(directory.path(), &[]).unwrap();
    let sql = "SELECT MAX(duration)::text || ' ' || MIN(duration)::text FROM python.torch_trace";
    let mut answers = Vec::new();
    for store in [store, Store::open(directory.path()).unwrap()] {
        answers.push(cell(&QueryEngine::new(store, Vec::new()).unwrap(), sql).await);
    }
    assert_eq!(answers[0], answers[1]);
}

#[tokio::test]
async fn rows_past_the_memory_limit_are_counted() {
    let limit = 1 << 20;
    let store = Store::new(limit);
    let mut agents = [Agent::new(0), Agent::new(1)];
    for step in 0..2000 {
        for agent in &mut agents {
            let row = agent.trace(step, Some("layers.0"), "forward", 0.5);
            agent.send(&store, (0..64).map(|call| torch_trace::Row { call_index: call, ..row }));
            assert!(store.memory() <= limit);
        }
    }
    let engine = QueryEngine::new(Arc::clone(&store), Vec::new()).unwrap();
    let evicted = store.evicted();
    assert_eq!(evicted.len(), 2);
    for (rank, evicted) in evicted.iter().enumerate() {
        assert_eq!((evicted.identity.rank, evicted.table.name), (Some(rank as i32), "torch_trace"));
        let stored = cell(&engine, &format!("SELECT COUNT(*) FROM python.torch_trace WHERE rank = {rank}")).await;
        let stored: u64 = stored.parse().unwrap();
        assert!(stored > 0 && evicted.rows > 0);
        assert_eq!(stored + evicted.rows, 2000 * 64);
    }
    // The newest stay, without a gap.
    let kept = "SELECT MAX(step) = 1999 AND COUNT(DISTINCT step) = MAX(step) - MIN(step) + 1 FROM python.torch_trace";
    assert_eq!(cell(&engine, kept).await, "true");
}

#[tokio::test]
async fn a_table_that_stands_still_goes_first() {
    let store = Store::new(512 << 10);
    let (mut old, mut new) = (Agent::new(0), Agent::new(1));
    let row = old.trace(0, None, "forward", 0.5);
    old.send(&store, [row]);
    for step in 0..2000 {
        let row = new.trace(step, None, "forward", 0.5);
        new.send(&store, [row; 64]);
    }
    let engine = QueryEngine::new(Arc::clone(&store), Vec::new()).unwrap();
    assert_eq!(store.evicted()[0].rows, 1);
    assert_eq!(cell(&engine, "SELECT COUNT(*) FROM python.torch_trace WHERE rank = 0").await, "0");
}

/// Each batch is a step of ten rows, so a count that is no multiple of ten is a torn batch, and two counts in one
/// query that differ are two instants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_sees_one_instant_while_rows_arrive() {
    let store = Store::new(16 << 20);
    let engine = QueryEngine::new(Arc::clone(&store), Vec::new()).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (store, done) = (Arc::clone(&store), Arc::clone(&done));
        move || {
            let mut agent = Agent::new(0);
            let mut step = 0;
            while !done.load(Ordering::Relaxed) || step < 100 {
                let row = agent.trace(step, Some("layers.0"), "forward", 0.5);
                agent.send(&store, [row; 10]);
                step += 1;
            }
            step
        }
    });
    let sql =
        "SELECT (SELECT COUNT(*) FROM python.torch_trace) AS before, COUNT(*), COUNT(module), COUNT(DISTINCT step),
               MAX(step) - MIN(step) + 1 FROM python.torch_trace";
    let mut seen: i64 = 0;
    for _ in 0..100 {
        let row: Vec<i64> = cells(&rows(&engine, sql, None).await.unwrap())[0]
            .iter()
            .map(|cell| cell.parse().unwrap_or_default())
            .collect();
        assert!(row[0] == row[1] && row[1] == row[2] && row[1] % 10 == 0, "{row:?}");
        assert!(row[3] == row[4] && row[1] == row[3] * 10, "{row:?}");
        seen = seen.max(row[1]);
    }
    done.store(true, Ordering::Relaxed);
    let steps = writer.join().unwrap();
    let evicted: u64 = store.evicted().iter().map(|evicted| evicted.rows).sum();
    let stored: u64 = cell(&engine, "SELECT COUNT(*) FROM python.torch_trace").await.parse().unwrap();
    assert_eq!(stored + evicted, 10 * steps as u64);
    assert!(seen > 0);
}

/// A stream goes on over the rows that it began with, although all of them have been evicted meanwhile.
#[tokio::test]
async fn eviction_takes_nothing_from_a_query_that_runs() {
    let store = Store::new(1 << 20);
    let mut agent = Agent::new(0);
    let row = agent.trace(0, Some("layers.0"), "forward", 0.5);
    for _ in 0..16 {
        agent.send(&store, [row; 1024]);
    }
    let engine = QueryEngine::new(Arc::clone(&store), Vec::new()).unwrap();
    let stream = engine.query("SELECT step, module FROM python.torch_trace", None).await.unwrap();
    let row = torch_trace::Row { step: 1, ..row };
    for _ in 0..400 {
        agent.send(&store, [row; 1024]);
    }
    assert_eq!(cell(&engine, "SELECT COUNT(*) FROM python.torch_trace WHERE step = 0").await, "0");
    let batches: Vec<_> = stream.try_collect().await.unwrap();
    let first = cells(&batches);
    assert_eq!(first.len(), 16 * 1024);
    assert!(first.iter().all(|cells| cells == &["0", "layers.0"]));
}

#[tokio::test]
async fn a_run_directory_has_only_whole_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runs/gpt@1 %20#?");
    let store = crate::sql::data::store();
    store.write(&path, &[]).unwrap();
    // An unfinished file, and one that is none of ours.
    std::fs::write(path.join("python.steps/.00000001.parquet.writing"), "half").unwrap();
    std::fs::write(path.join("run.json"), "{}").unwrap();
    let engine = QueryEngine::new(Store::open(&path).unwrap(), Vec::new()).unwrap();
    assert_eq!(cell(&engine, "SELECT COUNT(*) FROM python.steps").await, "8");
    // A file that is no Parquet file is an error that names it, not rows that are not there.
    std::fs::write(path.join("python.steps/00000001.parquet"), "half").unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(error.to_string().contains("00000001.parquet"), "{error}");
    assert!(Store::open(&directory.path().join("nowhere")).is_err());
}

/// Tiny batches, as an agent with few rows sends them, are read as few larger ones, without loss.
#[tokio::test]
async fn many_small_batches_become_few() {
    let store = Store::new(usize::MAX);
    let mut agent = Agent::new(0);
    for step in 0..5000 {
        let name = format!("a module with a rather long name, number {step}");
        let row = agent.trace(step, Some(&name), "forward", step as f64);
        let row = torch_trace::Row { allocated: (step % 3 == 0).then_some(1.0), compiled: step % 2 == 0, ..row };
        agent.send(&store, [row]);
    }
    let engine = QueryEngine::new(Arc::clone(&store), Vec::new()).unwrap();
    let stream = engine.query("SELECT step, module, duration, allocated, compiled FROM python.torch_trace", None);
    let batches: Vec<_> = stream.await.unwrap().try_collect().await.unwrap();
    assert!(batches.len() < 20, "{}", batches.len());
    for (step, cells) in cells(&batches).iter().enumerate() {
        let allocated = if step % 3 == 0 { "1.0" } else { "NULL" };
        let name = format!("a module with a rather long name, number {step}");
        let expected = [step.to_string(), name, format!("{step}.0"), allocated.into(), (step % 2 == 0).to_string()];
        assert_eq!(cells, &expected);
    }
    assert!(store.memory() < 5000 * 250, "{}", store.memory());
}

#[tokio::test]
async fn a_text_that_is_asked_again_sees_the_rows_of_its_time() {
    let store = Store::new(usize::MAX);
    let engine = QueryEngine::new(Arc::clone(&store), Vec::new()).unwrap();
    let mut agent = Agent::new(0);
    let texts = [
        "SELECT COUNT(*), MAX(step) FROM python.torch_trace",
        "SELECT COUNT(*) FROM python.torch_trace WHERE step > (SELECT MAX(step) - 2 FROM python.torch_trace)",
        "SELECT COUNT(*) FROM python.torch_trace a JOIN python.torch_trace b ON a.step = b.step",
        "SELECT stage, SUM(duration) FROM python.torch_trace WHERE EXISTS (SELECT 1 FROM python.steps) IS FALSE GROUP BY stage",
        "SELECT COUNT(*) FROM python.module_profile",
        "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'python'",
        "SELECT COUNT(*) FROM generate_series(1, 3) JOIN python.torch_trace ON value = step",
        "SELECT SUM(duration) FROM python.torch_trace WHERE step BETWEEN (SELECT MIN(step) + 1 FROM python.torch_trace) AND (SELECT MAX(step) FROM python.torch_trace)",
        "SELECT repeat(stage, CAST(step AS INTEGER)), step FROM python.torch_trace ORDER BY step DESC LIMIT 2",
        "EXPLAIN SELECT COUNT(*) FROM python.torch_trace WHERE step = (SELECT MAX(step) FROM python.torch_trace)",
    ];
    for step in 0..4 {
        let row = agent.trace(step, Some("layers.0"), "forward", 0.5);
        agent.send(&store, [row]);
        let anew = QueryEngine::new(Arc::clone(&store), Vec::new()).unwrap();
        for text in texts {
            for pid in [None, Some(100), Some(7)] {
                let expected = cells(&rows(&anew, text, pid).await.unwrap());
                for _ in 0..2 {
                    assert_eq!(cells(&rows(&engine, text, pid).await.unwrap()), expected, "{text} {pid:?} {step}");
                }
            }
        }
    }
    // What depends on the time does so when it is asked again.
    let mut times = Vec::new();
    for _ in 0..4 {
        times.push(cell(&engine, "SELECT now() FROM python.torch_trace WHERE step = 0 AND now() > '2026-01-01'").await);
    }
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
}

#[tokio::test]
async fn what_was_asked_holds_no_rows_afterwards() {
    let store = Store::new(usize::MAX);
    filled(&store, 0, 2);
    let engine = QueryEngine::new(Arc::clone(&store), Vec::new()).unwrap();
    let snapshot = store.snapshot();
    let sealed = snapshot.iter().find_map(|table| table.sealed.first()).unwrap();
    let holders = Arc::strong_count(sealed);
    for _ in 0..3 {
        rows(&engine, "SELECT COUNT(DISTINCT call_index) FROM python.torch_trace", None).await.unwrap();
        // The last task of a query ends a moment after its answer.
        while engine.tasks() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(Arc::strong_count(sealed), holders);
    }
}
