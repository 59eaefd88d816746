//! Databases that are made to be read for ever, or to be read as something else.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use rusqlite::Connection;

use super::{Export, Year, fill, global, imported};
use crate::tests::table_rows;

/// Bytes of a page in files whose pages are changed.
const PAGE: usize = 512;

fn refused(path: &Path) -> String {
    let directory = tempfile::tempdir().unwrap();
    imported(path, None, directory.path()).unwrap_err().to_string()
}

#[test]
fn what_is_no_export_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.sqlite");
    std::fs::write(&path, "SQLite format 3").unwrap();
    assert!(refused(&path).contains("it is no SQLite database"));
    std::fs::write(&path, [b"SQLite format 3\0".to_vec(), vec![0xff; 4000]].concat()).unwrap();
    assert!(refused(&path).contains("cannot read"));
    std::fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE visits (url TEXT)").unwrap();
    assert!(refused(&path).contains("none of the tables that an export of Nsight Systems has"));
    std::fs::remove_file(&path).unwrap();
    drop(Export::of(&path, Year::Of2022));
    assert!(refused(&path).contains("no kernel, call or range of the program is in it"));
}

#[test]
fn views_and_computed_columns_are_never_asked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.sqlite");
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end FROM n";
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(&format!("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")).unwrap();
    assert!(refused(&path).contains("none of the tables"));
    connection
        .execute_batch("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER)")
        .unwrap();
    connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, ?1)", [global(4, 5)]).unwrap();
    let computed =
        "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN nameId AS (length(printf('%.*c', 900000000, 'x')))";
    connection.execute_batch(computed).unwrap();
    drop(connection);
    let captures = imported(&path, None, directory.path()).unwrap();
    assert_eq!((captures[0].rows.launches, captures[0].rows.kernels), (1, 0));
    assert_eq!(table_rows(directory.path(), "gpu.launches", &["name"]), [["(no name in the file)"]]);
}

#[test]
fn values_of_other_types_are_not_known_and_rows_without_times_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.sqlite");
    let mut export = Export::of(&path, Year::Of2026);
    fill(&mut export, 41, 0);
    let pid = global(41, 0);
    let insert = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, globalPid, demangledName, gridX)";
    for values in [
        format!("('soon', 'later', 0, 7, 5, {pid}, 1, 1)"),
        format!("(x'00ff', 3, 0, 7, 5, {pid}, 1, 1)"),
        format!("(9223372036854775807, 9223372036854775807, 0, 7, 5, {pid}, 1, 1)"),
        format!("(100, 50, 'gpu', x'07', 1.5, {pid}, 'name', 'wide')"),
        format!("(200, 250, 9223372036854775807, -9223372036854775808, 0, {pid}, 999999, NULL)"),
    ] {
        export.create(&format!("{insert} VALUES {values}"));
    }
    drop(export);
    let captures = imported(&path, None, directory.path()).unwrap();
    assert_eq!(captures[0].rows.kernels, 5);
    let without = captures[0].left_out.iter().find(|(reason, _)| reason == "without a time");
    assert_eq!(without.map(|(_, events)| *events), Some(3));
    let mut rows =
        table_rows(directory.path(), "gpu.kernels", &["name", "device", "stream", "duration", "correlation"]);
    rows.retain(|row| row[0] == "(no name in the file)");
    rows.sort();
    assert_eq!(rows, [["(no name in the file)", "", "", "0.0", ""], ["(no name in the file)", "", "", "5e-8", ""]]);
}

#[test]
fn a_huge_value_ends_its_table_and_the_others_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.sqlite");
    let mut export = Export::of(&path, Year::Of2026);
    fill(&mut export, 41, 0);
    let sql = "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, text) VALUES (1, 2, 59, ?1, ?2)";
    export.connection.execute(sql, (global(41, 42), "x".repeat(17 << 20))).unwrap();
    export.range(59, "past it", (41, 42), (10, Some(20)), false);
    drop(export);
    let captures = imported(&path, None, directory.path()).unwrap();
    let problem = captures[0].problem.as_deref().unwrap();
    assert!(problem.contains("in its table NVTX_EVENTS: a value of it is longer than 16 MiB"), "{problem}");
    assert_eq!((captures[0].rows.kernels, captures[0].rows.launches), (3, 2));
}

#[test]
fn a_file_that_ends_too_early_is_read_as_far_as_it_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.sqlite");
    let mut export = Export::of(&path, Year::Of2026);
    export.create("BEGIN");
    for launch in 0..3000 {
        export.kernel("k", (41, 0), (launch * 10, launch * 10 + 5), launch + 1);
    }
    export.create("COMMIT");
    drop(export);
    let whole = std::fs::read(&path).unwrap();
    let mut kept = Vec::new();
    for part in [2, 4, 8, 40] {
        std::fs::write(&path, &whole[..whole.len() / part * (part / 2)]).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        match imported(&path, None, scratch.path()) {
            Ok(captures) => {
                assert!(captures[0].problem.as_deref().unwrap().contains("in its table CUPTI_ACTIVITY_KIND_KERNEL"));
                kept.push(captures[0].rows.kernels);
            }
            Err(error) => assert!(error.to_string().contains("x.sqlite"), "{error}"),
        }
    }
    assert!(kept.iter().all(|kept| (1..3000).contains(kept)), "{kept:?}");
}

/// Changes where the inner pages of tables point to: those of each to the root of the next, so that leaves are met again and
/// again; those of the last to `last`.
fn entangle(path: &Path, roots: &[u32], last: u32) {
    let mut bytes = std::fs::read(path).unwrap();
    for (index, root) in roots.iter().enumerate() {
        let page = &mut bytes[(*root as usize - 1) * PAGE..][..PAGE];
        assert_eq!(page[0], 5, "the root of a table of many pages");
        let to = roots.get(index + 1).copied().unwrap_or(last).to_be_bytes();
        let cells = usize::from(u16::from_be_bytes([page[3], page[4]]));
        page[8..12].copy_from_slice(&to);
        for cell in 0..cells {
            let at = usize::from(u16::from_be_bytes([page[12 + 2 * cell], page[13 + 2 * cell]]));
            page[at..at + 4].copy_from_slice(&to);
        }
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn pages_that_point_at_each_other_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.sqlite");
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(&format!("PRAGMA page_size = {PAGE}")).unwrap();
    let columns = "(start INTEGER, end INTEGER, globalPid INTEGER, name TEXT)";
    let tables = ["CUPTI_ACTIVITY_KIND_KERNEL", "a", "b", "c", "d", "e"];
    for table in tables {
        let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400)";
        connection
            .execute_batch(&format!(
                "CREATE TABLE {table} {columns}; INSERT INTO {table} {many} SELECT i, i + 1, 7, printf('%.*c', 40, 'x') FROM n;"
            ))
            .unwrap();
    }
    let root = |table: &str| -> u32 {
        connection.query_row("SELECT rootpage FROM sqlite_schema WHERE name = ?1", [table], |row| row.get(0)).unwrap()
    };
    let roots: Vec<u32> = tables.iter().map(|table| root(table)).collect();
    drop(connection);
    let whole = std::fs::read(&path).unwrap();

    // Each of some forty pages points to the next table's forty, five times over: 4e9 rows in 160 kB.
    entangle(&path, &roots[..5], roots[5]);
    let scratch = tempfile::tempdir().unwrap();
    let captures = imported(&path, None, scratch.path()).unwrap();
    let problem = captures[0].problem.as_deref().unwrap();
    assert!(problem.contains("reading it takes more work than its size explains"), "{problem}");

    std::fs::write(&path, &whole).unwrap();
    entangle(&path, &roots[..1], roots[0]);
    assert!(refused(&path).contains("in its table CUPTI_ACTIVITY_KIND_KERNEL"));
}

/// An export of small pages, as bytes.
static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("small.sqlite");
    Connection::open(&path).unwrap().execute_batch(&format!("PRAGMA page_size = {PAGE}; VACUUM")).unwrap();
    let mut export = Export::of(&path, Year::Of2022);
    for process in 0..3 {
        fill(&mut export, 41 + process, process);
    }
    drop(export);
    std::fs::read(path).unwrap()
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Whatever bytes of a database are changed and wherever it ends, it is read in part or refused, and rows are not invented.
    #[test]
    fn damage_anywhere_is_refused_or_said(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        end in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = SMALL.clone();
        for (position, byte) in changes {
            let position = position.index(bytes.len());
            bytes[position] = byte;
        }
        if let Some(end) = end {
            bytes.truncate(end.index(bytes.len()));
        }
        let path = directory.path().join("x.sqlite");
        std::fs::write(&path, &bytes).unwrap();
        match imported(&path, None, directory.path()) {
            Ok(captures) => {
                let rows: i64 = captures.iter().map(|capture| capture.rows.kernels + capture.rows.launches).sum();
                prop_assert!(rows <= bytes.len() as i64);
            }
            Err(error) => prop_assert!(error.to_string().contains("x.sqlite"), "{}", error),
        }
    }
}
