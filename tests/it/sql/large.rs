//! Statements as large as they may be are answered, on the stacks that threads of queries have; larger ones are
//! refused in words, wherever they come in.

use std::fmt::Write;

use probe_common::error::{Error, ErrorKind};
use probe_query::{QueryEngine, QuerySettings};

use crate::sql::{cell, data, rows};

/// The bounds in `text_complexity.rs` and `statement_complexity.rs` of `crates/query/src`.
const OPERATORS: usize = 500;
const NESTING: usize = 50;
const ITEMS: usize = 20_000;
const RELATIONS: usize = 50;

async fn error(engine: &QueryEngine, sql: &str) -> Error {
    match rows(engine, sql, None).await {
        Ok(_) => panic!("this should have failed: {}", &sql[..100.min(sql.len())]),
        Err(error) => error,
    }
}

/// `first`, followed by `link` `count` times, with # replaced by the numbers from 0 on.
fn chain(first: &str, link: &str, count: usize) -> String {
    (0..count).fold(first.to_owned(), |mut sql, number| {
        sql.push_str(&link.replace('#', &number.to_string()));
        sql
    })
}

#[tokio::test]
async fn chains_at_the_bound_are_answered_and_longer_ones_refused() {
    let engine = data::live();
    let sum = |operators| chain("SELECT 1", "+1", operators);
    assert_eq!(cell(&engine, &sum(OPERATORS)).await, (OPERATORS + 1).to_string());
    let text = chain("SELECT length('x'", "||'x'", OPERATORS) + ")";
    assert_eq!(cell(&engine, &text).await, (OPERATORS + 1).to_string());
    // Over rows, so that nothing of it is known before it runs.
    let sums = chain("SELECT SUM(step", "+pid", OPERATORS) + ") FROM python.steps";
    let texts = chain("SELECT MAX(length(host", "||run", OPERATORS) + ")) FROM python.steps";
    let casts = chain("SELECT COUNT(step", "::int", OPERATORS / 2) + ") FROM python.steps";
    let all = chain("SELECT COUNT(*) FROM python.steps WHERE step = 1", " AND step<pid*#", OPERATORS / 3 - 1);
    let any = chain("SELECT COUNT(*) FROM python.steps WHERE step = 1", " OR step>pid*#", OPERATORS / 3 - 1);
    for sql in [sums, texts, casts, all, any] {
        assert!(!cell(&engine, &sql).await.is_empty());
    }
    let explained = chain("EXPLAIN SELECT step", "*pid", OPERATORS - 2) + " FROM python.steps";
    assert!(!rows(&engine, &explained, None).await.unwrap().is_empty());
    for sql in [sum(OPERATORS + 1), sum(20_000)] {
        let error = error(&engine, &sql).await;
        assert_eq!(error.kind(), ErrorKind::Failed);
        assert!(error.to_string().contains("operators (+, AND, LIKE, UNION); the limit is 500"), "{error}");
        assert!(error.hint_text().unwrap().contains("a list in place of a chain"));
    }
    // An error at the far end of a chain is as short as any other.
    let unknown = error(&engine, &(sum(OPERATORS - 1) + "+nowhere")).await;
    assert_eq!(unknown.to_string(), "there is no column 'nowhere'");
    let mixed = error(&engine, &chain("SELECT now()", "+1", OPERATORS)).await;
    assert!(mixed.to_string().len() < 2100, "{mixed}");
}

#[tokio::test]
async fn nests_unions_and_joins_at_the_bound_are_answered() {
    let engine = data::live();
    let within = |open: &str, close: &str, levels| format!("SELECT {}1{}", open.repeat(levels), close.repeat(levels));
    for (open, close, levels) in [("(", ")", NESTING), ("abs(", ")", NESTING), ("(SELECT ", ")", 8)] {
        assert_eq!(cell(&engine, &within(open, close, levels)).await, "1");
    }
    let queries = format!("{}SELECT 1 AS x{}", "SELECT x FROM (".repeat(NESTING - 1), ") AS y".repeat(NESTING - 1));
    assert_eq!(cell(&engine, &queries).await, "1");
    let union = chain("SELECT COUNT(*) FROM (SELECT 0 AS x", " UNION ALL SELECT 1", RELATIONS - 2) + ") AS u";
    assert_eq!(cell(&engine, &union).await, (RELATIONS - 1).to_string());
    let join = chain("SELECT COUNT(*) FROM (VALUES (1)) AS t", ", (VALUES (1)) AS t#", RELATIONS / 2 - 1);
    assert_eq!(cell(&engine, &join).await, "1");
    let joins =
        chain("SELECT COUNT(*) FROM python.store s", ", python.store s#", RELATIONS - 1).replace("python", "probe");
    assert!(!rows(&engine, &format!("EXPLAIN {joins}"), None).await.unwrap().is_empty());
    for (sql, said) in [
        (within("(", ")", NESTING + 1), "51 brackets in one another"),
        (within("(", ")", 5000), "5000 brackets in one another"),
        (chain("SELECT 0", " UNION ALL SELECT #", RELATIONS), "tables; the limit is 50"),
        (chain("SELECT 1 FROM python.steps s", ", python.steps s#", 1000), "tables; the limit is 50"),
        (within("(SELECT ", ")", 9), "queries within expressions 9 deep"),
        ("EXPLAIN ".repeat(5) + "SELECT 1", "EXPLAIN explains a query"),
        (
            "SELECT 1 FROM python.steps GROUP BY CUBE (rank, step, run, host, pid, ts, duration)".into(),
            "more than 64 ways",
        ),
        (format!("SELECT '{}'", "x".repeat(256 << 10)), "the limit is 256 KiB"),
    ] {
        let error = error(&engine, &sql).await;
        assert_eq!(error.kind(), ErrorKind::Failed, "{error}");
        assert!(error.to_string().contains(said) && error.hint_text().is_some(), "{error}");
    }
}

#[tokio::test]
async fn long_lists_are_answered() {
    let engine = data::live();
    let list = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>().join(", ");
    let listed = format!("SELECT COUNT(DISTINCT step) FROM python.steps WHERE step IN ({})", list(10_000));
    assert_eq!(cell(&engine, &listed).await, "4");
    let negative = format!("SELECT 5 IN (-{})", list(ITEMS).replace(", ", ", -"));
    assert_eq!(cell(&engine, &negative).await, "false");
    let values = (0..ITEMS / 2).fold("VALUES (0, 0)".to_owned(), |mut sql, row| {
        write!(sql, ", ({row}, 'x')").unwrap();
        sql
    });
    let values = values.replacen("VALUES (0, 0), ", "VALUES ", 1);
    assert_eq!(cell(&engine, &format!("SELECT COUNT(*) FROM ({values})")).await, "10000");
    let error = error(&engine, &format!("SELECT 1 IN ({})", list(ITEMS + 2))).await;
    assert!(error.to_string().contains("20001 items; the limit is 20000"), "{error}");
}

/// A plan that doubles with each name is refused before it is made.
#[tokio::test]
async fn doublings_are_refused() {
    let engine = data::live();
    let names = |levels: usize, query: &str| {
        let begin = "WITH a0 AS (SELECT step AS x, rank AS y FROM python.steps)".to_owned();
        (1..levels).fold(begin, |sql, level| {
            sql + &format!(", a{level} AS ({})", query.replace('#', &(level - 1).to_string()))
        })
    };
    let joined = names(30, "SELECT l.x, r.y FROM a# l JOIN a# r ON l.x = r.x") + " SELECT COUNT(*) FROM a29";
    for sql in [&joined, &format!("EXPLAIN {joined}")] {
        let error = error(&engine, sql).await;
        assert!(error.to_string().contains("tables; the limit is 50"), "{error}");
        assert_eq!(engine.schema(sql, QuerySettings::default()).await.unwrap_err().to_string(), error.to_string());
    }
}
