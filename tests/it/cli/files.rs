//! Answers for programs: Arrow and Parquet, and files that appear whole or not at all.

use std::fs::{self, File};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;

use crate::cli::support::{Home, check};

const ROWS: &str =
    "SELECT rank, step, module, ts, duration, compiled FROM python.torch_trace ORDER BY rank, step, duration, module";
/// More rows than a row group or a batch has.
const MANY: &str = "SELECT a.step, b.step, a.module FROM python.torch_trace a, python.torch_trace b, python.torch_trace c, python.steps";

fn stream(bytes: impl AsRef<[u8]>) -> Vec<RecordBatch> {
    let reader = arrow::ipc::reader::StreamReader::try_new(Cursor::new(bytes), None).unwrap();
    reader.collect::<Result<_, _>>().unwrap()
}

fn count(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

fn parquet(path: &Path) -> Vec<RecordBatch> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    for group in reader.metadata().row_groups() {
        assert!(matches!(group.column(0).compression(), Compression::ZSTD(_)));
        assert!(group.num_rows() <= 1 << 17, "a row group bounds what is held");
    }
    reader.build().unwrap().collect::<Result<_, _>>().unwrap()
}

fn csv(batches: &[RecordBatch]) -> String {
    let mut text = Vec::new();
    let mut writer = arrow::csv::Writer::new(&mut text);
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    drop(writer);
    String::from_utf8(text).unwrap()
}

/// The files in the home beside its own directories.
fn files(home: &Home) -> Vec<PathBuf> {
    let entries = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
    files.sort();
    files
}

#[test]
fn arrow_and_parquet_have_the_rows_of_every_other_format() {
    let home = Home::recorded();
    let path = home.path().join("rows.parquet");
    let expected = home.stdout(["gpt", "query", ROWS, "--format", "csv"]);
    let output = home.probe(["gpt", "query", ROWS, "--format", "arrow"]);
    assert_eq!(csv(&stream(&output.stdout)), expected);
    // To a pipe, and to a file that says by its name what it is.
    let output = home.probe(["gpt", "query", ROWS, "--format", "parquet"]);
    fs::write(&path, output.stdout).unwrap();
    assert_eq!(csv(&parquet(&path)), expected);
    assert_eq!(home.stdout(["gpt", "query", ROWS, "-o", path.to_str().unwrap()]), "");
    assert_eq!(csv(&parquet(&path)), expected);
    let kinds = parquet(&path)[0].schema();
    assert_eq!(kinds.field(3).data_type().to_string(), "Timestamp(ns, \"UTC\")");
}

#[test]
fn many_rows_are_written_as_they_come_and_names_stay_apart() {
    let home = Home::recorded();
    let path = home.path().join("many.parquet");
    assert_eq!(home.stdout(["gpt", "query", MANY, "-o", path.to_str().unwrap()]), "");
    let batches = parquet(&path);
    assert_eq!(count(&batches), 48 * 48 * 48 * 8);
    let names: Vec<_> = batches[0].schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["step", "step_2", "module"]);
    let output = home.probe(["gpt", "query", MANY, "--format", "arrow"]);
    let batches = stream(output.stdout);
    assert_eq!(count(&batches), 48 * 48 * 48 * 8);
    assert!(batches.len() > 10, "not collected before it is written");
}

#[test]
fn an_answer_without_rows_has_its_columns_in_every_file() {
    let home = Home::recorded();
    let none = "SELECT step, module, NULL AS nothing FROM python.torch_trace WHERE step > 1000";
    let path = home.path().join("none.parquet");
    assert!(home.probe(["gpt", "query", none, "-o", path.to_str().unwrap()]).status.success());
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
    assert_eq!(reader.schema().fields().len(), 3);
    let output = home.probe(["gpt", "query", none, "--format", "arrow"]);
    let reader = arrow::ipc::reader::StreamReader::try_new(Cursor::new(output.stdout), None).unwrap();
    assert_eq!((reader.schema().fields().len(), reader.count()), (3, 0));
}

#[test]
fn a_file_s_name_says_its_format_and_an_option_says_it_better() {
    let home = Home::recorded();
    let one = "SELECT 1 AS one";
    for (name, begins) in
        [("a.csv", "one\n1\n"), ("a.json", "[{\"one\":1}]\n"), ("a.ndjson", "{\"one\":1}\n"), ("a.txt", "one\n─")]
    {
        let path = home.path().join(name);
        assert_eq!(home.stdout(["gpt", "query", one, "-o", path.to_str().unwrap()]), "");
        assert!(fs::read_to_string(&path).unwrap().starts_with(begins), "{name}");
    }
    let path = home.path().join("a.txt");
    assert_eq!(home.stdout(["gpt", "query", one, "-o", path.to_str().unwrap(), "--format", "arrow"]), "");
    let batches = stream(fs::read(&path).unwrap());
    assert_eq!(batches[0].column(0).as_primitive::<Int64Type>().value(0), 1);
    assert_eq!(batches[0].column(0).len(), 1);
}

#[test]
fn what_fails_leaves_the_file_as_it_was() {
    let home = Home::recorded();
    let path = home.path().join("rows.csv");
    fs::write(&path, "before").unwrap();
    let file = path.to_str().unwrap();
    // The division fails when rows before it have been written.
    let fails = "SELECT 1 / (a.step - 3) AS x FROM python.torch_trace a, python.torch_trace b ORDER BY a.step";
    for sql in ["SELECT nothing", fails] {
        let output = home.probe(["gpt", "query", sql, "-o", file]);
        assert_eq!(output.status.code(), Some(1), "{}", home.shown(&output));
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    }
    let slow = "SELECT SUM(value % 7) FROM generate_series(1, 1000000000000)";
    let output = home.probe(["gpt", "query", slow, "-o", file, "--timeout", "0.2"]);
    assert_eq!(output.status.code(), Some(5), "{}", home.shown(&output));
    assert_eq!((fs::read_to_string(&path).unwrap().as_str(), files(&home).len()), ("before", 1));
    let missing = home.path().join("none/rows.csv");
    let output = home.probe(["gpt", "query", "SELECT 1", "-o", missing.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", home.shown(&output));
    check!(home, "output_into_nothing", output);
}

#[test]
fn an_interrupted_answer_leaves_nothing() {
    let home = Home::recorded();
    let path = home.path().join("rows.csv");
    let endless = "SELECT value FROM generate_series(1, 1000000000000)";
    let mut child = home.command(["gpt", "query", endless, "-o", path.to_str().unwrap()]).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !files(&home).iter().any(|file| file.metadata().is_ok_and(|file| file.len() > 0)) {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "rows are written as they come");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(files(&home).is_empty(), "{:?}", files(&home));
}

#[test]
fn what_parquet_has_no_type_for_is_said() {
    let home = Home::recorded();
    let path = home.path().join("rows.parquet");
    let output = home.probe(["gpt", "query", "SELECT INTERVAL '1 day' AS d", "-o", path.to_str().unwrap()]);
    check!(home, "parquet_has_no_interval", output);
    let length = "SELECT MAX(ts) - MIN(ts) AS length, [1, 2] AS list FROM python.steps";
    assert_eq!(home.stdout(["gpt", "query", length, "-o", path.to_str().unwrap()]), "");
    assert_eq!(count(&parquet(&path)), 1);
}

#[test]
fn a_cut_file_says_so() {
    let home = Home::recorded();
    let path = home.path().join("rows.csv");
    let output = home.probe(["gpt", "query", ROWS, "-o", path.to_str().unwrap(), "--limit-rows", "3"]);
    check!(home, "output_cut", output);
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1 + 3);
}

#[test]
fn a_terminal_is_spared_what_it_can_t_show() {
    let home = Home::recorded();
    for format in ["arrow", "parquet"] {
        let terminal = home.terminal(80, 24, ["gpt", "query", "SELECT 1", "--format", format]);
        let (status, seen) = terminal.end();
        assert_eq!(status, Some(2), "{seen}");
        assert!(seen.contains("is not text, and standard output is a terminal"), "{seen}");
        assert!(seen.contains(&format!("query -o rows.{format}")) && seen.contains("hint:"), "{seen}");
    }
    let runs = home.terminal(80, 24, ["runs", "--format", "arrow"]).end();
    assert_eq!(runs.0, Some(2), "{}", runs.1);
    let mut piped = home.command(["runs", "--format", "arrow"]);
    assert_eq!(count(&stream(piped.stdout(Stdio::piped()).output().unwrap().stdout)), 1);
}

#[test]
fn an_ending_that_is_no_format_is_an_error_and_writes_nothing() {
    let home = Home::recorded();
    for (name, status) in [("rows.gz", 2), ("rows.xlsx", 2), ("rows.txt", 0), ("rows", 0)] {
        let path = home.path().join(name);
        let output = home.probe(["gpt", "query", "SELECT 1 AS one", "-o", path.to_str().unwrap()]);
        assert_eq!((output.status.code(), path.exists()), (Some(status), status == 0), "{}", home.shown(&output));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.contains("has no known extension\nhint: name it .csv"), status == 2, "{said}");
    }
}
