//! Rows on disk and in memory are one table: which parts are read, which are skipped, and which need no reading.

use std::path::Path;
use std::sync::Arc;

use datafusion::common::human_readable_count;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::statistics::Statistics;
use probe_proto::tables::torch_trace;
use probe_query::QueryEngine;
use probe_store::Store;

use crate::sql::data::Agent;
use crate::sql::{cell, cells, rows};

const BATCH: i64 = 1024;
/// Steps of each rank, one in a batch: first those on disk, then those in memory.
const ON_DISK: i64 = 50;
const IN_MEMORY: i64 = 20;

fn send(store: &Store, agent: &mut Agent, steps: std::ops::Range<i64>) {
    let row = |call: i64| {
        let row = agent.trace(0, Some(&format!("layers.{}", call % 128)), "forward", call as f64 / 1024.0);
        torch_trace::Row { call_index: call as i32, ..row }
    };
    let rows: Vec<_> = (0..BATCH).map(row).collect();
    for step in steps {
        let ts = probe_proto::table::Time(crate::sql::data::START + step * 1_000_000_000);
        agent.send(store, rows.iter().map(|row| torch_trace::Row { step, ts, ..*row }));
    }
}

/// Two ranks' rows: the first steps in files of several row groups, the others in memory.
fn store(directory: &Path) -> Arc<Store> {
    let mut agents = [Agent::new(0), Agent::new(1)];
    // Its segments are a 32nd of what it may take.
    let first = Store::new(16 << 20);
    agents.iter_mut().for_each(|agent| send(&first, agent, 0..ON_DISK));
    first.write(directory, &[]).unwrap();
    let store = Store::open(directory).unwrap();
    agents.iter_mut().for_each(|agent| send(&store, agent, ON_DISK..ON_DISK + IN_MEMORY));
    store
}

fn footers(directory: &Path) -> Vec<ParquetMetaData> {
    let files = std::fs::read_dir(directory.join("python.torch_trace")).unwrap();
    let footer = |path| ParquetMetaDataReader::new().parse_and_finish(&std::fs::File::open(path).unwrap()).unwrap();
    files.map(|entry| footer(entry.unwrap().path())).collect()
}

fn bytes(group: &RowGroupMetaData, columns: &[&str]) -> usize {
    let chunks = group.columns().iter().filter(|chunk| columns.contains(&chunk.column_path().string().as_str()));
    chunks.map(|chunk| chunk.compressed_size() as usize).sum()
}

fn has_step(group: &RowGroupMetaData, step: i64) -> bool {
    let chunk = group.columns().iter().find(|chunk| chunk.column_path().string() == "step").unwrap();
    let Some(Statistics::Int64(bounds)) = chunk.statistics() else { panic!("no bounds") };
    (*bounds.min_opt().unwrap()..=*bounds.max_opt().unwrap()).contains(&step)
}

/// The metrics of a query's scans by EXPLAIN ANALYZE, added up where there are several scans.
async fn metric(engine: &QueryEngine, sql: &str, names: &[&str]) -> Vec<String> {
    let plan = cells(&rows(engine, &format!("EXPLAIN ANALYZE {sql}"), None).await.unwrap());
    let plan: String = plan.into_iter().flatten().collect::<Vec<_>>().join("\n");
    let of = |name: &&str| {
        let before = format!("{name}=");
        let mut values = plan.split(&before).skip(1);
        let value = values.next().unwrap_or_else(|| panic!("no {name} in {plan}"));
        assert!(values.next().is_none(), "several scans: {plan}");
        value.split([',', ']']).next().unwrap().to_owned()
    };
    names.iter().map(of).collect()
}

#[tokio::test]
async fn only_what_is_needed_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let footers = footers(directory.path());
    let groups: Vec<&RowGroupMetaData> = footers.iter().flat_map(ParquetMetaData::row_groups).collect();
    let engine = QueryEngine::new(store, Vec::new()).unwrap();
    let all: usize = groups.iter().flat_map(|group| group.columns()).map(|c| c.compressed_size() as usize).sum();
    let names =
        ["segments_scanned", "files_total", "row_groups_total", "row_groups_scanned", "bytes_read", "bytes_skipped"];

    // One step that is on disk: the row groups that may have it, and of those the columns that are asked for.
    let sql = format!("SELECT SUM(duration) FROM python.torch_trace WHERE step = {}", ON_DISK - 1);
    let needed: Vec<_> = groups.iter().filter(|group| has_step(group, ON_DISK - 1)).collect();
    assert!(!needed.is_empty() && needed.len() < groups.len());
    let read: usize = needed.iter().map(|group| bytes(group, &["step", "duration"])).sum();
    let expected = [0, footers.len(), groups.len(), needed.len(), read, all - read].map(human_readable_count);
    assert_eq!(metric(&engine, &sql, &names).await, expected);
    let sum: f64 = (0..BATCH).map(|call| call as f64 / 1024.0).sum();
    assert_eq!(cell(&engine, &sql).await.parse::<f64>().unwrap(), 2.0 * sum);

    // One that is in memory: no file is touched. What the subquery is, statistics say, and nothing is left to run.
    let recent = "SELECT COUNT(*) FROM python.torch_trace WHERE step > (SELECT MAX(step) - 2 FROM python.torch_trace)";
    let scanned =
        metric(&engine, recent, &["segments_scanned", "files_scanned", "row_groups_scanned", "bytes_read"]).await;
    assert_eq!(scanned, ["2", "0", "0", "0"]);
    assert_eq!(cell(&engine, recent).await, (2 * 2 * BATCH).to_string());
    let plan = cells(&rows(&engine, &format!("EXPLAIN {recent}"), None).await.unwrap()).concat().concat();
    let last = format!("> {}", ON_DISK + IN_MEMORY - 3);
    assert!(plan.contains(&last) && !plan.to_lowercase().contains("subquery"), "{plan}");
    // In the scope of a process it is the last step of that process.
    assert_eq!(cells(&rows(&engine, recent, Some(101)).await.unwrap()), [[(2 * BATCH).to_string()]]);

    // The process is known without reading; one column of the whole table is read.
    let sql = "SELECT rank, SUM(call_index) FROM python.torch_trace GROUP BY rank";
    let read: usize = groups.iter().map(|group| bytes(group, &["call_index"])).sum();
    let one_process = |group: &&&RowGroupMetaData| {
        let rank = group.columns().iter().find(|chunk| chunk.column_path().string() == "rank").unwrap();
        matches!(rank.statistics(), Some(Statistics::Int32(bounds)) if bounds.min_opt() == bounds.max_opt())
    };
    let mixed: usize = groups.iter().filter(|group| !one_process(group)).map(|group| bytes(group, &["rank"])).sum();
    assert_eq!(metric(&engine, sql, &["bytes_read"]).await, [human_readable_count(read + mixed)]);
    // Row groups with known statistics are not read: only those of a file that does not name the process of its rows.
    let sql = "SELECT rank, COUNT(*), COUNT(duration), AVG(duration), SUM(duration), MAX(step) FROM python.torch_trace GROUP BY rank ORDER BY rank";
    let read: usize = groups
        .iter()
        .filter(|group| !one_process(group))
        .map(|group| bytes(group, &["rank", "duration", "step"]))
        .sum();
    assert_eq!(metric(&engine, sql, &["bytes_read"]).await, [human_readable_count(read)]);
    let scanned = "SELECT rank, COUNT(*), COUNT(duration), AVG(duration), SUM(duration), MAX(step) FROM python.torch_trace WHERE step >= 0 GROUP BY rank ORDER BY rank";
    assert_eq!(cells(&rows(&engine, sql, None).await.unwrap()), cells(&rows(&engine, scanned, None).await.unwrap()));
    // No process has such rows: nothing is read.
    let sql = "SELECT MAX(call_index) FROM python.torch_trace WHERE rank = 7";
    let scanned = metric(&engine, sql, &["segments_scanned", "row_groups_scanned", "bytes_read"]).await;
    assert_eq!(scanned, ["0", "0", "0"]);

    // The first in an order: what has been found by then rules the other parts out, on disk and in memory.
    for (order, first) in [("", 0), ("DESC", ON_DISK + IN_MEMORY - 1)] {
        let sql = format!("SELECT step, call_index FROM python.torch_trace ORDER BY step {order} LIMIT 3");
        assert_eq!(cells(&rows(&engine, &sql, None).await.unwrap())[0][0], first.to_string());
        let scanned = metric(&engine, &sql, &["segments_scanned", "row_groups_scanned"]).await;
        let scanned: usize = scanned.iter().map(|count| count.parse::<usize>().unwrap()).sum();
        assert!(scanned <= std::thread::available_parallelism().unwrap().get(), "{sql}: {scanned}");
    }
    // Where all parts have the same values, those in memory are read first, and rule out those on disk.
    let sql = "SELECT step, duration FROM python.torch_trace ORDER BY duration DESC NULLS LAST LIMIT 3";
    let scanned = metric(&engine, sql, &["segments_scanned", "row_groups_scanned"]).await;
    let [segments, groups] = [&scanned[0], &scanned[1]].map(|count| count.parse::<usize>().unwrap());
    let others = std::thread::available_parallelism().unwrap().get().saturating_sub(segments);
    assert!(segments > 0 && groups <= others, "{scanned:?}");
}

#[tokio::test]
async fn counts_and_bounds_need_no_scan_of_either() {
    let directory = tempfile::tempdir().unwrap();
    let engine = QueryEngine::new(store(directory.path()), Vec::new()).unwrap();
    // Were anything read, it would be an error.
    std::fs::remove_dir_all(directory.path()).unwrap();
    let all = 2 * (ON_DISK + IN_MEMORY) * BATCH;
    for (sql, expected) in [
        ("SELECT COUNT(*) FROM python.torch_trace", all.to_string()),
        ("SELECT COUNT(duration) FROM python.torch_trace", all.to_string()),
        ("SELECT COUNT(allocated) FROM python.torch_trace", "0".to_owned()),
        ("SELECT MIN(step) FROM python.torch_trace", "0".to_owned()),
        ("SELECT MAX(step) FROM python.torch_trace", (ON_DISK + IN_MEMORY - 1).to_string()),
        ("SELECT MAX(rank) FROM python.torch_trace", "1".to_owned()),
        ("SELECT MAX(ts) - MIN(ts) FROM python.torch_trace", format!("PT{}S", ON_DISK + IN_MEMORY - 1)),
    ] {
        let plan = cells(&rows(&engine, &format!("EXPLAIN {sql}"), None).await.unwrap());
        assert!(!plan.iter().flatten().any(|text| text.contains("DataSourceExec")), "{plan:?}");
        assert_eq!(cell(&engine, sql).await, expected, "{sql}");
    }
    // A file that is gone is an error that names it.
    let error = rows(&engine, "SELECT SUM(duration) FROM python.torch_trace", None).await.unwrap_err();
    assert!(error.to_string().contains(".parquet"), "{error}");
}

/// Rows give the same answers in memory and on disk.
#[tokio::test]
async fn answers_do_not_depend_on_where_rows_are() {
    let directory = tempfile::tempdir().unwrap();
    let both = store(directory.path());
    let memory = Store::new(usize::MAX);
    for rank in 0..2 {
        send(&memory, &mut Agent::new(rank), 0..ON_DISK + IN_MEMORY);
    }
    let disk = tempfile::tempdir().unwrap();
    memory.write(disk.path(), &[]).unwrap();
    let stores = [memory, both, Store::open(disk.path()).unwrap()];
    let engines = stores.map(|store| QueryEngine::new(store, Vec::new()).unwrap());
    for sql in [
        "SELECT module, stage, COUNT(*), SUM(duration), MIN(ts), MAX(call_index) FROM python.torch_trace
         GROUP BY module, stage ORDER BY module, stage",
        "SELECT * FROM python.torch_trace WHERE step IN (3, 49, 50, 69) AND call_index = 7 ORDER BY rank, step",
        "SELECT rank, pid, run, host, role, local_rank, world_size, COUNT(*) FROM python.torch_trace
         GROUP BY rank, pid, run, host, role, local_rank, world_size ORDER BY rank",
        "SELECT COUNT(*) FROM python.torch_trace WHERE input_shape IS NULL AND allocated IS NULL AND NOT compiled",
        "SELECT pid, role FROM python.torch_trace ORDER BY ts, call_index, rank LIMIT 3",
        "SELECT rank, step, call_index, module FROM python.torch_trace WHERE duration >= 0.5 AND module = 'layers.7'
         ORDER BY step DESC, call_index, rank LIMIT 5",
        "SELECT MIN(step), MAX(step), COUNT(*), SUM(duration) FROM python.torch_trace
         WHERE step BETWEEN 21 AND 40 AND allocated IS NULL AND duration IS NOT NULL",
    ] {
        for pid in [None, Some(101), Some(7)] {
            let mut answers = Vec::new();
            for engine in &engines {
                answers.push(cells(&rows(engine, sql, pid).await.unwrap()));
            }
            assert!(pid == Some(7) || !answers[0].is_empty(), "{sql}");
            assert_eq!(answers[0], answers[1], "{sql}");
            assert_eq!(answers[0], answers[2], "{sql}");
        }
    }
    // All rows of a rank are in one row group, of which a few pages have this step.
    let names = ["row_groups_total", "row_groups_scanned", "rows_skipped"];
    let skipped = metric(&engines[2], "SELECT SUM(duration) FROM python.torch_trace WHERE step = 3", &names).await;
    let (all, some) = (2 * (ON_DISK + IN_MEMORY) * BATCH, 2 * 3 * BATCH);
    let few = (all - 2 * 20 * BATCH..all - some).map(|rows| human_readable_count(rows as usize));
    assert!(skipped[..2] == ["2", "2"] && few.into_iter().any(|rows| rows == skipped[2]), "{skipped:?}");
}

/// The process of the rows of a part is the same in all of them: groups by process are made without reading rows, and equal
/// those that are found by reading.
#[tokio::test]
async fn groups_by_process_are_those_of_any_other_way() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    // NULLs and NaN among what is added up; and a process that has no rank.
    let mut alone = Agent::new(1);
    let identity =
        probe_store::ProcessIdentity { rank: None, pid: 7, ..probe_store::ProcessIdentity::clone(&alone.identity) };
    alone.identity = Arc::new(identity);
    let row = alone.trace(3, None, "forward", 0.5);
    let odd = [None, Some(f64::NAN), Some(2.0)].map(|duration| torch_trace::Row { duration, ..row });
    alone.send(&store, odd);
    let engine = QueryEngine::new(store, Vec::new()).unwrap();
    let aggregates = "COUNT(*), COUNT(duration), SUM(duration), AVG(duration), MIN(host_duration), MAX(step), MIN(ts)";
    for groups in ["rank", "pid, host, rank", "run, role"] {
        let sql = format!("SELECT {groups}, {aggregates} FROM python.torch_trace GROUP BY {groups} ORDER BY {groups}");
        let any = sql.replace("python.torch_trace", "(SELECT * FROM python.torch_trace WHERE random() >= 0) AS t");
        let plan = cells(&rows(&engine, &format!("EXPLAIN {sql}"), None).await.unwrap()).concat().concat();
        assert!(plan.contains("ByProcessExec"), "{plan}");
        // Only the rows with a NaN are read: what they add up to is not known without.
        assert!(plan.contains("parts_known=") && plan.contains("segments=1, row_groups=0"), "{plan}");
        let plan = cells(&rows(&engine, &format!("EXPLAIN {any}"), None).await.unwrap()).concat().concat();
        assert!(!plan.contains("ByProcessExec"), "{plan}");
        let answer = cells(&rows(&engine, &sql, None).await.unwrap());
        assert_eq!(answer, cells(&rows(&engine, &any, None).await.unwrap()), "{sql}");
        assert!(answer.len() == if groups == "run, role" { 1 } else { 3 }, "{answer:?}");
    }
    // A column of rows, one that is computed, and what is not known to come in halves: as ever.
    for sql in [
        "SELECT rank, step, COUNT(*) FROM python.torch_trace GROUP BY rank, step",
        "SELECT rank + 1, COUNT(*) FROM python.torch_trace GROUP BY rank + 1",
        "SELECT rank, COUNT(DISTINCT step) FROM python.torch_trace GROUP BY rank",
        "SELECT rank, SUM(duration) FILTER (WHERE step > 3) FROM python.torch_trace GROUP BY rank",
        "SELECT rank, stddev(duration) FROM python.torch_trace GROUP BY rank",
    ] {
        let plan = cells(&rows(&engine, &format!("EXPLAIN {sql}"), None).await.unwrap()).concat().concat();
        assert!(!plan.contains("ByProcessExec") || sql.contains("DISTINCT"), "{plan}");
        assert!(!rows(&engine, sql, None).await.unwrap().is_empty());
    }
    assert_eq!(
        cells(
            &rows(
                &engine,
                "SELECT rank, COUNT(*) FROM python.torch_trace WHERE step = 3 GROUP BY rank ORDER BY 1",
                None
            )
            .await
            .unwrap()
        ),
        [["0", "1024"], ["1", "1024"], ["NULL", "3"]]
    );
}
