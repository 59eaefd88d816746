//! What a query may take: past each limit it ends with an error that says which it was, and gives back what it had.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use probe::error::{Error, Kind};
use probe::query::{Asked, Engine, Limits, from_datafusion};

use crate::sql::{cell, cells, data};

/// More rows than anybody waits for.
const BOMB: &str = "SELECT value FROM generate_series(1, 1000000000000)";
const COUNTED_BOMB: &str = "SELECT COUNT(*) FROM generate_series(1, 1000000000000) WHERE value % 3 = 1";
const CROSS_JOIN: &str = "SELECT COUNT(*) FROM python.torch_trace a, python.torch_trace b, python.torch_trace c,
    python.torch_trace d, python.torch_trace e, python.torch_trace f, python.torch_trace g
    WHERE (a.ts + (b.ts - c.ts)) > (d.ts + (e.ts - f.ts)) + (g.ts - a.ts)";

fn engine(limits: Limits) -> Engine {
    Engine::with_limits(data::store(), data::system(), limits).unwrap()
}

async fn ask(engine: &Engine, sql: &str, asked: Asked) -> Result<usize, Error> {
    let stream = engine.ask(sql, asked).await?;
    let rows = stream.try_fold(0, |rows, batch| async move { Ok(rows + batch.num_rows()) });
    rows.await.map_err(|error| from_datafusion(&error))
}

async fn limit(engine: &Engine, sql: &str, asked: Asked) -> String {
    let error = ask(engine, sql, asked).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Limit, "{sql}: {error}");
    format!("{error}; {}", error.hint_text().unwrap())
}

/// Waits until nothing runs any more.
async fn quiet(engine: &Engine, sql: &str) {
    let quiet = tokio::time::timeout(Duration::from_secs(60), async {
        // Not by looking all the time: queries have less of a right to the processor than whoever looks.
        let mut looks = tokio::time::interval(Duration::from_millis(5));
        while engine.running() > 0 || engine.scans() > 0 {
            looks.tick().await;
        }
    });
    assert!(quiet.await.is_ok(), "{} queries and {} scans go on: {sql}", engine.running(), engine.scans());
}

#[tokio::test]
async fn an_answer_comes_in_time_or_not_at_all() {
    let engine = engine(Limits { timeout: Some(Duration::from_millis(200)), ..Limits::default() });
    for sql in [BOMB, COUNTED_BOMB, CROSS_JOIN] {
        let said = limit(&engine, sql, Asked::default()).await;
        assert!(said.starts_with("no whole answer within 200ms; "), "{said}");
        assert!(said.contains("--timeout") && said.contains("PROBE_QUERY_TIMEOUT"), "{said}");
        quiet(&engine, "").await;
    }
    // The client's word goes before the engine's, both ways.
    let asked = Asked { timeout: Some(Duration::from_millis(20)), ..Asked::default() };
    assert!(limit(&engine, COUNTED_BOMB, asked).await.starts_with("no whole answer within 20ms"));
    let asked = Asked { timeout: Some(Duration::from_secs(60)), ..Asked::default() };
    let longer = "SELECT COUNT(*) FROM generate_series(1, 3000000) WHERE value % 3 = 1";
    assert_eq!(ask(&engine, longer, asked).await.unwrap(), 1);
    quiet(&engine, "").await;
}

#[tokio::test]
async fn an_answer_has_so_many_rows_and_bytes() {
    let engine = engine(Limits { rows: 20_000, bytes: 100 << 10, ..Limits::default() });
    let said = limit(&engine, "SELECT 1::int FROM generate_series(1, 20001)", Asked::default()).await;
    assert!(said.starts_with("the answer has more than 20000 rows; ") && said.contains("PROBE_QUERY_ROWS"), "{said}");
    let said = limit(&engine, "SELECT value FROM generate_series(1, 20000)", Asked::default()).await;
    assert!(said.starts_with("the answer is larger than 100 KiB; ") && said.contains("PROBE_QUERY_BYTES"), "{said}");
    assert_eq!(ask(&engine, "SELECT value FROM generate_series(1, 10000)", Asked::default()).await.unwrap(), 10_000);
    let asked = Asked { rows: Some(30_000), bytes: Some(1 << 20), ..Asked::default() };
    assert_eq!(ask(&engine, "SELECT value FROM generate_series(1, 30000)", asked).await.unwrap(), 30_000);
    quiet(&engine, "").await;
}

#[tokio::test]
async fn memory_is_that_of_all_queries_together() {
    let engine = engine(Limits { memory: 20 << 20, ..Limits::default() });
    let sql = "SELECT COUNT(DISTINCT repeat('x', 1000) || value) FROM generate_series(1, 100000000)";
    let said = limit(&engine, sql, Asked::default()).await;
    assert!(
        said.starts_with("the query needs more memory than the 20 MiB that all queries together may take; "),
        "{said}"
    );
    assert!(said.contains("PROBE_QUERY_MEMORY"), "{said}");
    // And it is given back.
    quiet(&engine, "").await;
    assert_eq!(cell(&engine, "SELECT COUNT(DISTINCT step) FROM python.steps").await, "4");
}

#[tokio::test]
async fn so_many_run_and_so_many_wait() {
    let engine = engine(Limits { running: 2, waiting: 1, timeout: None, ..Limits::default() });
    // Two that run: nobody takes their rows.
    let first = engine.query(BOMB, None).await.unwrap();
    let second = engine.query(BOMB, None).await.unwrap();
    let mut third = Box::pin(engine.query("SELECT 1", None));
    assert!(futures::poll!(&mut third).is_pending());
    let said = limit(&engine, "SELECT 2", Asked::default()).await;
    assert!(said.starts_with("2 queries are running here and 1 wait, and more are not taken; "), "{said}");
    assert!(said.contains("PROBE_QUERIES"), "{said}");
    // A place that becomes free is the waiting one's.
    drop(first);
    let batches: Vec<_> = third.await.unwrap().try_collect().await.unwrap();
    assert_eq!(cells(&batches), [["1"]]);
    // Waiting is limited too, and who has given up waiting leaves the place to another.
    let _other = engine.query(BOMB, None).await.unwrap();
    let asked = Asked { timeout: Some(Duration::from_millis(10)), ..Asked::default() };
    assert!(limit(&engine, "SELECT 3", asked).await.starts_with("no whole answer within 10ms"));
    drop(second);
    assert_eq!(cell(&engine, "SELECT 4").await, "4");
}

#[tokio::test]
async fn an_answer_that_is_dropped_ends_its_query() {
    let engine = engine(Limits { timeout: None, ..Limits::default() });
    let scanning =
        "SELECT a.step FROM python.torch_trace a, generate_series(1, 1000000000) b WHERE a.step + value % 2 = 2";
    for sql in [BOMB, COUNTED_BOMB, CROSS_JOIN, scanning] {
        let mut stream = engine.query(sql, None).await.unwrap();
        assert_eq!(engine.running(), 1, "{sql}");
        // The first rows, where there are any before all is done.
        let _ = futures::poll!(stream.next());
        drop(stream);
        quiet(&engine, sql).await;
    }
    // Also where the asking is given up before there is an answer.
    let mut asking = Box::pin(engine.query(CROSS_JOIN, None));
    let _ = futures::poll!(&mut asking);
    drop(asking);
    quiet(&engine, "").await;
}

#[tokio::test]
async fn what_a_limit_says_takes_no_memory() {
    let engine = engine(Limits::default());
    for sql in [
        "SELECT rank, MAX(step) AS m FROM python.steps GROUP BY rank ORDER BY m DESC LIMIT 1000000000000",
        "SELECT DISTINCT rank FROM python.steps ORDER BY rank LIMIT 1000000000000",
    ] {
        assert_eq!(ask(&engine, sql, Asked::default()).await.unwrap(), 2, "{sql}");
    }
    let all = ask(&engine, "SELECT step FROM python.steps ORDER BY step LIMIT 1000000000000", Asked::default()).await;
    assert!(all.unwrap() > 2);
}
