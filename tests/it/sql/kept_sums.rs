//! Which parts a question takes added up, and when. That the answers are right is what `by_id` shows.

use probe_proto::table::Time;
use probe_proto::tables::torch_trace;
use probe_query::QueryEngine;
use probe_store::Store;

use crate::sql::data::{Agent, START};
use crate::sql::{cell, cells, metrics, rows};

/// Steps 0 to 99 of two ranks in a row group each, 30 modules a step.
fn engine(directory: &std::path::Path) -> QueryEngine {
    let store = Store::new(1 << 30);
    for rank in 0..2 {
        let mut agent = Agent::new(rank);
        for step in 0..100 {
            let names: Vec<String> = (0..30).map(|module| format!("layers.{module}")).collect();
            let rows: Vec<_> = names.iter().map(|name| agent.trace(step, Some(name), "forward", 0.5)).collect();
            agent.send(&store, rows);
        }
    }
    store.write(directory, &[]).unwrap();
    QueryEngine::new(Store::open(directory).unwrap(), Vec::new()).unwrap()
}

/// How many parts were taken added up by this question, asked so many times.
async fn summed(engine: &QueryEngine, sql: &str, times: usize) -> Vec<usize> {
    let mut parts = Vec::new();
    for _ in 0..times {
        let [summed] = metrics(engine, sql, ["parts_summed"]).await;
        parts.push(summed);
    }
    parts
}

#[tokio::test]
async fn a_question_takes_parts_that_were_added_up_by_its_columns() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(directory.path());
    let by = |columns: &str, condition: &str| {
        format!("SELECT {columns}, SUM(duration), MAX(duration) FROM python.torch_trace {condition} GROUP BY {columns}")
    };
    // Without a filter at once, also where the process has one of the columns.
    assert_eq!(summed(&engine, &by("module, stage", ""), 2).await, [2, 2]);
    assert_eq!(summed(&engine, &by("module, stage, rank", ""), 1).await, [2]);
    // A filter on these columns finds the same sums, with whatever constant.
    assert_eq!(summed(&engine, &by("module", "WHERE module LIKE '%1' AND stage = 'forward'"), 1).await, [2]);
    assert_eq!(summed(&engine, &by("stage", "WHERE module LIKE '%2'"), 1).await, [2]);
    // Of other columns they are found when a question comes again.
    assert_eq!(summed(&engine, &by("compiled", "WHERE module_type = 'Linear'"), 3).await, [0, 2, 2]);
    // A condition that holds for all rows of a part needs no sums, whatever the type of its column. With NULL it holds for none.
    assert_eq!(summed(&engine, &by("module, stage", "WHERE step >= 0 AND ts > '2001-01-01'"), 1).await, [2]);
    assert_eq!(
        summed(&engine, &by("module, stage", "WHERE step >= (SELECT MIN(step) FROM python.steps)"), 1).await,
        [0]
    );
    // One that holds for some rows needs sums by its column, too. Of those there would be one for each row.
    assert_eq!(summed(&engine, &by("module, stage", "WHERE step > 50"), 3).await, [0, 0, 0]);
    // Without GROUP BY.
    let total =
        "SELECT SUM(duration), COUNT(*) FROM python.torch_trace WHERE module = 'layers.7' AND stage = 'forward'";
    assert_eq!(summed(&engine, total, 1).await, [2]);
    assert_eq!(summed(&engine, "SELECT AVG(duration) FROM python.torch_trace", 1).await, [2]);
    // What is not added up.
    for aggregate in
        ["SUM(depth)", "COUNT(*) FILTER (WHERE random() < 0.5)", "COUNT(*) FILTER (WHERE ts > '2026-01-01T00:00:10Z')"]
    {
        let other = format!("SELECT module, stage, {aggregate} FROM python.torch_trace GROUP BY module, stage");
        assert_eq!(summed(&engine, &other, 2).await, [0, 0], "{aggregate}");
    }
    // Ten modules in 100 steps of two ranks, half a second each.
    assert_eq!(cell(&engine, "SELECT SUM(duration) FROM python.torch_trace WHERE module LIKE '%.2_'").await, "1000.0");
}

#[tokio::test]
async fn a_cast_that_keeps_no_order_rules_nothing_out() {
    const HOUR: i64 = 3_600_000_000_000;
    let directory = tempfile::tempdir().unwrap();
    let store = Store::new(1 << 30);
    // At 20:00 of the first day, and at 3:00 and 9:00 of the second; rank 1 without the last.
    for (rank, hours) in [(0, &[20, 27, 33][..]), (1, &[20, 27])] {
        let mut agent = Agent::new(rank);
        let row = agent.trace(-5, Some("layers.0"), "forward", 0.5);
        let rows = hours.iter().zip([-5, 0, 5]);
        let rows = rows.map(|(hour, step)| torch_trace::Row { ts: Time(START + hour * HOUR), step, ..row });
        agent.send(&store, rows);
    }
    store.write(directory.path(), &[]).unwrap();
    let engine = QueryEngine::new(Store::open(directory.path()).unwrap(), Vec::new()).unwrap();
    for (condition, expected) in [
        ("ts::time >= '08:00:00'", [["0", "2"], ["1", "1"]]),
        ("ts::time < '04:00:00'", [["0", "1"], ["1", "1"]]),
        ("CAST(step AS BOOLEAN) > FALSE", [["0", "2"], ["1", "1"]]),
        ("CAST(step AS BOOLEAN) = FALSE", [["0", "1"], ["1", "1"]]),
    ] {
        for columns in ["rank", "rank, stage"] {
            let sql = format!(
                "SELECT rank, COUNT(*) FROM python.torch_trace WHERE {condition} GROUP BY {columns} ORDER BY rank"
            );
            for _ in 0..3 {
                assert_eq!(cells(&rows(&engine, &sql, None).await.unwrap()), expected, "{sql}");
            }
        }
    }
}
