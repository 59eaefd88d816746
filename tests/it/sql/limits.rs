//! Statements that a query may not have, and their errors.

use probe_common::error::{Error, ErrorKind};
use probe_query::{QueryEngine, QuerySettings};
use probe_store::Store;

use crate::sql::{cell, cells, data, rows};

async fn error(engine: &QueryEngine, sql: &str) -> Error {
    match rows(engine, sql, None).await {
        Ok(_) => panic!("this should have failed: {sql}"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn whatever_does_not_read_is_denied_by_name() {
    let engine = data::live();
    let file = tempfile::tempdir().unwrap();
    let path = file.path().join("written");
    let path = path.display();
    for (sql, what) in [
        (format!("COPY python.steps TO '{path}'"), "COPY"),
        (format!("COPY (SELECT 1) TO '{path}' STORED AS PARQUET"), "COPY"),
        (format!("EXPLAIN ANALYZE COPY (SELECT 1) TO '{path}' STORED AS CSV"), "COPY"),
        (format!("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{path}'"), "CREATE EXTERNAL TABLE"),
        ("CREATE TABLE t AS SELECT 1".into(), "CREATE TABLE"),
        ("CREATE OR REPLACE VIEW v AS SELECT 1".into(), "CREATE OR REPLACE VIEW"),
        ("CREATE SCHEMA s".into(), "CREATE SCHEMA"),
        ("CREATE FUNCTION f() RETURNS INT RETURN 1".into(), "CREATE FUNCTION"),
        ("INSERT INTO python.steps SELECT * FROM python.steps".into(), "INSERT INTO"),
        ("EXPLAIN INSERT INTO python.steps SELECT * FROM python.steps".into(), "INSERT INTO"),
        ("UPDATE python.steps SET step = 1".into(), "UPDATE"),
        ("DELETE FROM python.steps".into(), "DELETE"),
        ("TRUNCATE TABLE python.steps".into(), "TRUNCATE TABLE"),
        ("DROP TABLE python.steps".into(), "DROP"),
        ("ALTER TABLE python.steps ADD COLUMN x INT".into(), "ALTER"),
        ("SET datafusion.execution.target_partitions = 1000000".into(), "SET"),
        ("RESET datafusion.execution.target_partitions".into(), "RESET"),
        ("PREPARE p AS SELECT 1".into(), "PREPARE"),
        ("EXECUTE p".into(), "EXECUTE"),
        ("BEGIN".into(), "BEGIN"),
        ("WITH w AS (INSERT INTO python.steps VALUES (1)) SELECT * FROM w".into(), "INSERT"),
        ("SELECT * INTO t FROM python.steps".into(), "SELECT INTO"),
    ] {
        let error = error(&engine, &sql).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{sql}: {error}");
        assert_eq!(error.to_string(), format!("{what} is not allowed: queries only read"), "{sql}");
        assert!(error.hint_text().is_some(), "{sql}");
    }
    assert_eq!(std::fs::read_dir(file.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn files_and_addresses_are_no_tables() {
    let directory = tempfile::tempdir().unwrap();
    data::store().write(directory.path(), &data::system()).unwrap();
    let recorded = QueryEngine::new(Store::open(directory.path()).unwrap(), Vec::new()).unwrap();
    let own = format!("SELECT * FROM '{}/python.steps/000000.parquet'", directory.path().display());
    for engine in [data::live(), recorded] {
        for sql in [
            "SELECT * FROM '/etc/passwd'",
            "SELECT * FROM \"/etc/passwd\"",
            "SELECT * FROM 'file:///etc/passwd'",
            "SELECT * FROM 'https://example.com/rows.csv'",
            "SELECT * FROM 'rows.parquet'",
            "DESCRIBE '/etc/passwd'",
            "SELECT (SELECT COUNT(*) FROM '/etc/passwd')",
            &own,
        ] {
            let error = error(&engine, sql).await;
            assert_eq!(error.kind(), ErrorKind::Denied, "{sql}: {error}");
            assert!(error.to_string().contains("can't read files"), "{sql}: {error}");
        }
        for sql in [
            "SELECT * FROM read_csv('/etc/passwd')",
            "SELECT * FROM parquet_metadata('/etc/passwd')",
            "SELECT * FROM glob('/etc/*')",
            "SELECT pg_read_file('/etc/passwd')",
        ] {
            let error = error(&engine, sql).await;
            assert_eq!(error.kind(), ErrorKind::Failed, "{sql}: {error}");
        }
    }
}

#[tokio::test]
async fn one_query_at_a_time() {
    let engine = data::live();
    let two = error(&engine, "SELECT 1; SELECT 2").await;
    assert_eq!(two.to_string(), "there are 2 statements, and a query is one");
    assert_eq!(cell(&engine, "SELECT 1;").await, "1");
}

#[tokio::test]
async fn what_looks_at_the_tables_is_allowed() {
    let engine = data::live();
    for sql in [
        "EXPLAIN SELECT * FROM python.steps",
        "EXPLAIN ANALYZE SELECT * FROM python.steps",
        "SHOW TABLES",
        "SHOW COLUMNS FROM python.steps",
        "DESCRIBE python.steps",
        "SHOW datafusion.execution.batch_size",
        "SHOW ALL",
        "SHOW FUNCTIONS",
        "SELECT * FROM generate_series(1, 3)",
        "WITH s AS (SELECT step FROM python.steps) SELECT * FROM s",
        "VALUES (1), (2)",
    ] {
        let batches = rows(&engine, sql, None).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        assert!(batches.iter().any(|batch| batch.num_rows() > 0), "{sql}");
        let schema = engine.schema(sql, QuerySettings::default()).await.unwrap();
        assert!(batches.iter().all(|batch| batch.schema() == schema), "{sql}");
    }
}

#[tokio::test]
async fn names_nearly_right_are_suggested() {
    let engine = data::live();
    for (sql, message, hint) in [
        (
            "SELECT * FROM python.torch_trac",
            "there is no table 'python.torch_trac'",
            "did you mean python.torch_trace?",
        ),
        ("SELECT * FROM torch_trace", "there is no table 'torch_trace'", "did you mean python.torch_trace?"),
        (
            "SELECT * FROM probe.torch_trace",
            "there is no table 'probe.torch_trace'",
            "did you mean python.torch_trace?",
        ),
        ("SELECT * FROM step", "there is no table 'step'", "did you mean python.steps?"),
        ("SELECT * FROM nowhere.land", "there is no table 'nowhere.land'", ALL),
        ("DESCRIBE python.stepz", "there is no table 'python.stepz'", "did you mean python.steps?"),
        ("SELECT durtion FROM python.steps", "there is no column 'durtion'", "did you mean duration?"),
        ("SELECT 1 FROM python.steps GROUP BY rnk", "there is no column 'rnk'", "did you mean rank?"),
        ("SELECT s.stp FROM python.steps s", "there is no column 'stp' in s", "did you mean step?"),
        (
            "SELECT step FROM python.steps JOIN python.torch_trace USING (rank)",
            "column 'step' is in more than one of the tables",
            "say which: TABLE.step",
        ),
        (
            "SELECT step, step FROM python.steps",
            "two columns of the result would have the same name: python.steps.step",
            "rename one of them: … AS other_name",
        ),
        ("SELECT summ(step) FROM python.steps", "there is no function 'summ'", "did you mean sum?"),
        (
            "SELECT max_by(step, duration) FROM python.steps",
            "there is no function 'max_by'",
            "first_value(x ORDER BY y DESC) is the x of the largest y",
        ),
        ("SELECT zeta(step) FROM python.steps", "there is no function 'zeta'", "SHOW FUNCTIONS lists what there is"),
    ] {
        let error = error(&engine, sql).await;
        assert_eq!(error.kind(), ErrorKind::Failed, "{sql}");
        assert_eq!((error.to_string().as_str(), error.hint_text()), (message, Some(hint)), "{sql}");
    }
    let unknown = error(&engine, "SELECT quux_frobnication FROM python.nccl_trace").await;
    let hint = unknown.hint_text().unwrap();
    assert!(hint.starts_with("available: run, host, pid"), "{hint}");
    assert!(hint.contains("busbw_gbps"), "{hint}");
}

const ALL: &str = "SHOW TABLES lists what there is, and so does probe tables";

#[tokio::test]
async fn errors_while_running_are_told_plainly() {
    let engine = data::live();
    let error = error(&engine, "SELECT step / (step - step) FROM python.steps").await;
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Failed, "Divide by zero error"));
}

#[tokio::test]
async fn a_scope_shows_one_process() {
    let directory = tempfile::tempdir().unwrap();
    data::store().write(directory.path(), &data::system()).unwrap();
    let recorded = QueryEngine::new(Store::open(directory.path()).unwrap(), Vec::new()).unwrap();
    for engine in [data::live(), recorded] {
        for (sql, whole, of_101) in [
            ("SELECT COUNT(*) FROM python.torch_trace", "48", "24"),
            ("SELECT COUNT(*) FROM python.torch_trace WHERE stage = 'step'", "8", "4"),
            ("SELECT MIN(pid) FROM python.steps", "100", "101"),
            (
                "SELECT SUM(duration) FROM python.torch_trace WHERE step > (SELECT MAX(step) - 1 FROM python.steps)",
                "5.125",
                "2.625",
            ),
            ("SELECT state FROM probe.agents ORDER BY rank LIMIT 1", "live", "lost"),
            ("SELECT COUNT(*) FROM probe.drops", "1", "1"),
            ("SELECT COUNT(*) FROM probe.evals", "0", "0"),
        ] {
            let of = |pid| rows(&engine, sql, pid);
            assert_eq!(cells(&of(None).await.unwrap()), [[whole]], "{sql}");
            assert_eq!(cells(&of(Some(101)).await.unwrap()), [[of_101]], "{sql}");
        }
        let nobody = rows(&engine, "SELECT step FROM python.steps", Some(7)).await.unwrap();
        assert_eq!(cells(&nobody).len(), 0);
    }
}
