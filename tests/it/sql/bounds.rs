//! Limits of queries: past each limit a query ends with an error that names the limit, and frees its memory.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use probe_common::error::{Error, ErrorKind};
use probe_query::{QueryEngine, QueryLimits, QuerySettings, from_datafusion};

use crate::sql::{cell, cells, data};

/// A query with more rows than a test waits for.
const BOMB: &str = "SELECT value FROM generate_series(1, 1000000000000)";
const COUNTED_BOMB: &str = "SELECT COUNT(*) FROM generate_series(1, 1000000000000) WHERE value % 3 = 1";
const CROSS_JOIN: &str = "SELECT COUNT(*) FROM python.torch_trace a, python.torch_trace b, python.torch_trace c,
    python.torch_trace d, python.torch_trace e, python.torch_trace f, python.torch_trace g
    WHERE (a.ts + (b.ts - c.ts)) > (d.ts + (e.ts - f.ts)) + (g.ts - a.ts)";

fn engine(limits: QueryLimits) -> QueryEngine {
    QueryEngine::with_limits(data::store(), data::system(), limits).unwrap()
}

async fn ask(engine: &QueryEngine, sql: &str, asked: QuerySettings) -> Result<usize, Error> {
    let stream = engine.ask(sql, asked).await?;
    let rows = stream.try_fold(0, |rows, batch| async move { Ok(rows + batch.num_rows()) });
    rows.await.map_err(|error| from_datafusion(&error))
}

async fn limit(engine: &QueryEngine, sql: &str, asked: QuerySettings) -> String {
    let error = ask(engine, sql, asked).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{sql}: {error}");
    format!("{error}; {}", error.hint_text().unwrap())
}

/// Waits until no query runs any more.
async fn quiet(engine: &QueryEngine, sql: &str) {
    let goes_on = || (engine.running(), engine.scans(), engine.tasks());
    let quiet = tokio::time::timeout(Duration::from_secs(60), async {
        // Without busy waiting: queries have a lower priority than this thread.
        let mut looks = tokio::time::interval(Duration::from_millis(5));
        while goes_on() != (0, 0, 0) {
            looks.tick().await;
        }
    });
    assert!(quiet.await.is_ok(), "queries, scans and tasks go on: {:?}: {sql}", goes_on());
}

#[tokio::test]
async fn an_answer_comes_in_time_or_not_at_all() {
    let engine = engine(QueryLimits { timeout: Some(Duration::from_millis(200)), ..QueryLimits::default() });
    for sql in [BOMB, COUNTED_BOMB, CROSS_JOIN] {
        let said = limit(&engine, sql, QuerySettings::default()).await;
        assert!(said.starts_with("the query did not finish within 200ms; "), "{said}");
        assert!(said.contains("--timeout") && said.contains("PROBE_QUERY_TIMEOUT"), "{said}");
        quiet(&engine, "").await;
    }
    // Less is the client's to say, and more is not.
    let asked = |timeout| QuerySettings { timeout: Some(timeout), ..QuerySettings::default() };
    let said = limit(&engine, COUNTED_BOMB, asked(Duration::from_millis(20))).await;
    assert!(
        said.starts_with("the query did not finish within 20ms; ") && !said.contains("PROBE_QUERY_TIMEOUT"),
        "{said}"
    );
    let said = limit(&engine, COUNTED_BOMB, asked(Duration::from_secs(60))).await;
    assert!(
        said.starts_with("the query did not finish within 200ms; ") && said.contains("PROBE_QUERY_TIMEOUT"),
        "{said}"
    );
    quiet(&engine, "").await;
}

#[tokio::test]
async fn a_command_that_asks_itself_may_have_more() {
    let limits = QueryLimits { timeout: Some(Duration::from_nanos(1)), rows: 1, bytes: 1, ..QueryLimits::default() };
    let engine = engine(limits.of_command());
    let asked = QuerySettings {
        timeout: Some(Duration::from_secs(60)),
        rows: Some(10),
        bytes: Some(1000),
        ..QuerySettings::default()
    };
    assert_eq!(ask(&engine, "SELECT value FROM generate_series(1, 10)", asked).await.unwrap(), 10);
}

#[tokio::test]
async fn limits_hold_where_nothing_is_taken_of_an_answer() {
    let engine =
        engine(QueryLimits { timeout: Some(Duration::from_millis(300)), rows: 1_000_000, ..QueryLimits::default() });
    // If the machine stalls for a moment, planning alone takes longer than the deadline. Then it is asked again.
    let mut tries = 0..10;
    let mut late = loop {
        match engine.query(BOMB, None).await {
            Ok(answer) => break answer,
            Err(error) => assert!(tries.next().is_some(), "{error}"),
        }
    };
    quiet(&engine, "past its deadline").await;
    let error = from_datafusion(late.next().await.unwrap().unwrap_err());
    assert_eq!(error.to_string(), "the query did not finish within 300ms");
    // Here the deadline is later than `quiet` waits, so it is not what ends them.
    let engine = self::engine(QueryLimits {
        timeout: Some(Duration::from_secs(600)),
        rows: 1_000_000,
        ..QueryLimits::default()
    });
    let revoked = QuerySettings::default().revoked;
    let mut asked =
        engine.ask(BOMB, QuerySettings { revoked: revoked.clone(), ..QuerySettings::default() }).await.unwrap();
    let planned =
        engine.ask(CROSS_JOIN, QuerySettings { revoked: revoked.clone(), ..QuerySettings::default() }).await.unwrap();
    revoked.cancel();
    quiet(&engine, "of a token that was taken back").await;
    let error = from_datafusion(asked.next().await.unwrap().unwrap_err());
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Denied, "the token was revoked"));
    drop(planned);
}

#[tokio::test]
async fn who_takes_nothing_of_an_answer_takes_nothing_from_others() {
    let engine =
        engine(QueryLimits { running: 4, waiting: 80, timeout: None, memory: 64 << 20, ..QueryLimits::default() });
    let many = async |count| {
        let asked = (0..count).map(|_| engine.query(BOMB, None));
        futures::future::try_join_all(asked).await.unwrap()
    };
    let mut stalled = many(20).await;
    assert_eq!(cell(&engine, "SELECT COUNT(DISTINCT step) FROM python.steps").await, "4");
    // And it has its answer when it goes on.
    let rows = stalled.pop().unwrap().take(20).map_ok(|batch| batch.num_rows());
    assert_eq!(rows.try_fold(0, async |a, b| Ok(a + b)).await.unwrap(), 20 * 8192);
    // Of very many stalled answers the one that has stalled longest is given up.
    stalled.extend(many(32).await);
    assert_eq!(cell(&engine, "SELECT COUNT(DISTINCT step) FROM python.steps").await, "4");
    let stalled = stalled.into_iter().map(|mut stream| async move { stream.next().await });
    let given_up = futures::future::join_all(stalled).await.into_iter().filter_map(|batch| batch.unwrap().err());
    let said: Vec<_> = given_up.map(|error| from_datafusion(&error).to_string()).collect();
    assert!(
        !said.is_empty() && said.iter().all(|said| said.starts_with("the client read nothing of the answer")),
        "{said:?}"
    );
    quiet(&engine, "").await;
}

#[tokio::test]
async fn an_answer_has_so_many_rows_and_bytes() {
    let engine = engine(QueryLimits { rows: 20_000, bytes: 100 << 10, ..QueryLimits::default() });
    let said = limit(&engine, "SELECT 1::int FROM generate_series(1, 20001)", QuerySettings::default()).await;
    assert!(said.starts_with("the answer has more than 20000 rows; ") && said.contains("PROBE_QUERY_ROWS"), "{said}");
    let said = limit(&engine, "SELECT value FROM generate_series(1, 20000)", QuerySettings::default()).await;
    assert!(said.starts_with("the answer is larger than 100 KiB; ") && said.contains("PROBE_QUERY_BYTES"), "{said}");
    assert_eq!(
        ask(&engine, "SELECT value FROM generate_series(1, 10000)", QuerySettings::default()).await.unwrap(),
        10_000
    );
    let asked = || QuerySettings { rows: Some(30_000), bytes: Some(1 << 20), ..QuerySettings::default() };
    let said = limit(&engine, "SELECT 1::int FROM generate_series(1, 30000)", asked()).await;
    assert!(said.starts_with("the answer has more than 20000 rows; ") && said.contains("only lower it"), "{said}");
    let said = limit(&engine, "SELECT value FROM generate_series(1, 20000)", asked()).await;
    assert!(said.starts_with("the answer is larger than 100 KiB; ") && said.contains("only lower it"), "{said}");
    let less = QuerySettings { rows: Some(10), ..QuerySettings::default() };
    let said = limit(&engine, "SELECT value FROM generate_series(1, 20)", less).await;
    assert!(said.contains("more than 10 rows; ") && said.contains("allow more with --max-rows"), "{said}");
    quiet(&engine, "").await;
}

#[tokio::test]
async fn memory_is_that_of_all_queries_together() {
    let engine = engine(QueryLimits { memory: 20 << 20, ..QueryLimits::default() });
    let sql = "SELECT COUNT(DISTINCT repeat('x', 1000) || value) FROM generate_series(1, 100000000)";
    let said = limit(&engine, sql, QuerySettings::default()).await;
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
    let engine = engine(QueryLimits { running: 2, waiting: 1, timeout: None, ..QueryLimits::default() });
    let first = engine.query(COUNTED_BOMB, None).await.unwrap();
    let second = engine.query(COUNTED_BOMB, None).await.unwrap();
    let mut third = Box::pin(engine.query("SELECT 1", None));
    assert!(futures::poll!(&mut third).is_pending());
    let said = limit(&engine, "SELECT 2", QuerySettings::default()).await;
    assert!(said.starts_with("2 queries are running here and 1 wait, and no more are accepted; "), "{said}");
    assert!(said.contains("PROBE_QUERIES"), "{said}");
    // A statement that is only planned takes a slot, too.
    assert_eq!(
        engine.schema("SELECT 2", QuerySettings::default()).await.unwrap_err().to_string(),
        said.split("; ").next().unwrap()
    );
    // A slot that becomes free goes to the query that waits.
    drop(first);
    let batches: Vec<_> = third.await.unwrap().try_collect().await.unwrap();
    assert_eq!(cells(&batches), [["1"]]);
    // Waiting is limited too, and a query that has given up waiting leaves its slot to another.
    let _other = engine.query(COUNTED_BOMB, None).await.unwrap();
    let asked = QuerySettings { timeout: Some(Duration::from_millis(10)), ..QuerySettings::default() };
    assert!(limit(&engine, "SELECT 3", asked).await.starts_with("the query did not finish within 10ms"));
    drop(second);
    assert_eq!(cell(&engine, "SELECT 4").await, "4");
}

#[tokio::test]
async fn an_answer_that_is_dropped_ends_its_query() {
    let engine = engine(QueryLimits { timeout: None, ..QueryLimits::default() });
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
    let engine = engine(QueryLimits::default());
    for sql in [
        "SELECT rank, MAX(step) AS m FROM python.steps GROUP BY rank ORDER BY m DESC LIMIT 1000000000000",
        "SELECT DISTINCT rank FROM python.steps ORDER BY rank LIMIT 1000000000000",
    ] {
        assert_eq!(ask(&engine, sql, QuerySettings::default()).await.unwrap(), 2, "{sql}");
    }
    let all =
        ask(&engine, "SELECT step FROM python.steps ORDER BY step LIMIT 1000000000000", QuerySettings::default()).await;
    assert!(all.unwrap() > 2);
}

#[tokio::test]
async fn plain_questions_are_neither_weighed_nor_counted() {
    let engine = engine(QueryLimits::default());
    // Those of `make bench-query`, and a join.
    for sql in [
        "SELECT module, stage, COUNT(*) AS executions, AVG(duration) AS avg_time_sec, SUM(duration) AS total_time_sec,
            SUM(duration) * 100.0 / SUM(SUM(duration)) OVER () AS pct_time FROM python.torch_trace
            WHERE step > (SELECT MAX(step) - 10 FROM python.torch_trace) GROUP BY module, stage ORDER BY total_time_sec",
        "SELECT rank, COUNT(*), AVG(duration), SUM(duration) FROM python.torch_trace GROUP BY rank",
        "SELECT MAX(step) FROM python.torch_trace",
        "SELECT COUNT(*) FROM python.torch_trace",
        "SELECT module, approx_percentile_cont(0.95) WITHIN GROUP (ORDER BY duration) FROM python.torch_trace GROUP BY module",
        "SELECT a.module, b.duration FROM python.torch_trace a JOIN python.steps b ON a.step = b.step AND a.rank = b.rank",
    ] {
        let plan = crate::sql::rows(&engine, &format!("EXPLAIN VERBOSE {sql}"), None).await.unwrap();
        let plan = cells(&plan).concat().concat();
        assert!(!plan.contains("WeighExec") && !plan.contains("counted("), "{sql}: {plan}");
    }
    let window = "EXPLAIN SELECT SUM(step) OVER () FROM python.steps";
    let plan = cells(&crate::sql::rows(&engine, window, None).await.unwrap()).concat().concat();
    assert!(plan.contains("WeighExec: Held"), "{plan}");
}

#[tokio::test]
async fn what_functions_make_counts_for_as_long_as_it_is_there() {
    let engine = engine(QueryLimits { memory: 24 << 20, ..QueryLimits::default() });
    // 8 MB each: one after the other they fit, together they do not.
    let one = "SELECT MAX(length(repeat('x', 1000 + value % 2))) FROM generate_series(1, 8000)";
    for _ in 0..4 {
        assert_eq!(cell(&engine, one).await, "1001");
    }
    let few = "SELECT repeat('x', value % 90) AS a, repeat('y', value % 91) AS b, repeat('z', value % 92) AS c,
        repeat('w', value % 93) AS d, repeat('v', value % 94) AS e FROM generate_series(1, 8000)";
    assert_eq!(ask(&engine, few, QuerySettings::default()).await.unwrap(), 8000);
    // A batch of smaller values fits, and the next one when the one before has gone.
    let much = few.replace("value % 9", "2000 + value % 9");
    assert!(limit(&engine, &much, QuerySettings::default()).await.contains("more memory than the 24 MiB"));
    for (sql, says) in [
        ("SELECT array_length(range(0, 10))", "the function range is not available in queries"),
        ("SELECT array_repeat(1, 10)", "the function array_repeat is not available in queries"),
        ("SELECT make_array(1)::text", "a list can't be cast to text"),
        ("SELECT NULL::INT[3]", "lists of a fixed size are not available in queries"),
        ("SELECT run ~ host FROM python.steps", "a regular expression has to be the same for all rows"),
    ] {
        let error = ask(&engine, sql, QuerySettings::default()).await.unwrap_err();
        assert_eq!((error.to_string().as_str(), error.hint_text().is_some()), (says, true), "{sql}");
    }
    quiet(&engine, "").await;
}
