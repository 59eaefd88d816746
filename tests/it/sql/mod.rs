//! SQL over the store: `tests/it/sql/*.slt` (SQL in, rows out) against a live store and against the run directory that it
//! writes, and tests that need more than SQL.

mod bounds;
mod by_id;
mod captures;
pub(crate) mod data;
mod disk;
mod dumps;
mod flight;
mod kept_sums;
mod large;
mod limits;
mod percentiles;
mod scans;
mod step_offsets;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use futures::TryStreamExt;
use probe_common::error::{Error, Result};
use probe_query::{QueryEngine, QuerySettings, from_datafusion};
use probe_store::Store;
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Runner, strict_column_validator};

/// Runs a query, and reads its whole answer.
async fn rows(engine: &QueryEngine, sql: &str, pid: Option<i32>) -> Result<Vec<RecordBatch>> {
    let stream = engine.query(sql, pid).await?;
    stream.try_collect().await.map_err(|error| from_datafusion(&error))
}

/// The cells of a result as text.
fn cells(batches: &[RecordBatch]) -> Vec<Vec<String>> {
    let options = FormatOptions::new().with_null("NULL");
    let mut cells = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter();
        let columns: Vec<_> = columns.map(|column| ArrayFormatter::try_new(column, &options).unwrap()).collect();
        for row in 0..batch.num_rows() {
            cells.push(columns.iter().map(|column| column.value(row).to_string()).collect());
        }
    }
    cells
}

/// The only cell of a result.
async fn cell(engine: &QueryEngine, sql: &str) -> String {
    let batches = rows(engine, sql, None).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let cells = cells(&batches);
    assert_eq!((cells.len(), cells[0].len()), (1, 1), "{sql}");
    cells[0][0].clone()
}

/// Metrics of a query that is run, each added up over the nodes of its plan.
async fn metrics<const N: usize>(engine: &QueryEngine, sql: &str, names: [&str; N]) -> [usize; N] {
    let plan = cells(&rows(engine, &format!("EXPLAIN ANALYZE {sql}"), None).await.unwrap());
    let plan: String = plan.into_iter().flatten().collect::<Vec<_>>().join("\n");
    names.map(|name| {
        let name = format!("{name}=");
        let values = plan.split(&name).skip(1);
        values.map(|rest| rest.split([',', ']']).next().unwrap().parse::<usize>().unwrap()).sum()
    })
}

struct Db(Arc<QueryEngine>);

#[async_trait::async_trait]
impl AsyncDB for Db {
    type Error = Error;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>> {
        let schema = self.0.schema(sql, QuerySettings::default()).await?;
        let kind = |kind: &DataType| match kind {
            DataType::Utf8 => DefaultColumnType::Text,
            kind if kind.is_integer() => DefaultColumnType::Integer,
            kind if kind.is_floating() => DefaultColumnType::FloatingPoint,
            _ => DefaultColumnType::Any,
        };
        let types = schema.fields().iter().map(|field| kind(field.data_type())).collect();
        let mut rows = cells(&rows(&self.0, sql, None).await?);
        for cell in rows.iter_mut().flatten().filter(|cell| cell.is_empty()) {
            *cell = "(empty)".to_owned();
        }
        Ok(DBOutput::Rows { types, rows })
    }

    async fn shutdown(&mut self) {}
}

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/sql");
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "slt")).collect();
    files.sort();
    files
}

async fn run_files(engine: QueryEngine, which: &str) {
    let engine = Arc::new(engine);
    for file in files() {
        let connect = || {
            let db = Db(Arc::clone(&engine));
            async { Ok(db) }
        };
        let mut runner = Runner::new(connect);
        runner.with_column_validator(strict_column_validator);
        if let Err(error) = runner.run_file_async(&file).await {
            panic!("{which}: {}", error.display(false));
        }
    }
}

#[tokio::test]
async fn live() {
    run_files(data::live(), "live").await;
}

#[tokio::test]
async fn recorded() {
    let directory = tempfile::tempdir().unwrap();
    data::store().write(directory.path(), &data::system()).unwrap();
    let engine = QueryEngine::new(Store::open(directory.path()).unwrap(), Vec::new()).unwrap();
    run_files(engine, "recorded").await;
}

#[test]
fn every_table_has_its_file() {
    let names: Vec<String> = files().iter().map(|file| file.file_stem().unwrap().display().to_string()).collect();
    let views = probe_query::views().into_iter().map(|view| view.name);
    for name in probe_proto::tables::TABLES.iter().map(|table| table.name).chain(views) {
        assert!(names.contains(&name.to_owned()), "tests/it/sql/{name}.slt is missing");
    }
}

/// A validation batch of another shape than the step's, under the same number.
#[tokio::test]
async fn validation_has_shapes_of_its_own() {
    let (store, mut agent) = (Store::new(1 << 30), data::Agent::new(0));
    let mut rows = Vec::new();
    for (stage, shape) in [("forward", "[32, 128]"), ("validation", "[8, 128]"), ("backward", "")] {
        let row = agent.trace(0, Some("layers.0"), stage, 0.5);
        let input_shape = (!shape.is_empty()).then(|| agent.strings.id(shape));
        rows.push(probe_proto::tables::torch_trace::Row { input_shape, ..row });
    }
    agent.send(&store, rows);
    let engine = QueryEngine::new(store, Vec::new()).unwrap();
    let sql =
        "SELECT input_shape, string_agg(stage, ' ' ORDER BY stage) FROM python.shape_profile GROUP BY 1 ORDER BY 1";
    let answer = cells(&self::rows(&engine, sql, None).await.unwrap());
    assert_eq!(answer, [["[32, 128]", "backward forward"], ["[8, 128]", "validation"]]);
}

/// The comments of a view's file on its columns match the schema of its query, and its examples run.
#[tokio::test]
async fn views_answer_as_declared() {
    let engine = data::live();
    for view in probe_query::views() {
        let name = view.full_name();
        let schema = engine.schema(&format!("SELECT * FROM {name}"), QuerySettings::default()).await.unwrap();
        let answered: Vec<_> = schema.fields().iter().map(|field| (field.name().as_str(), field.data_type())).collect();
        let declared = probe_store::arrow_schema(view);
        let declared = probe_query::plain_schema(&declared);
        let said: Vec<_> = declared.fields().iter().map(|field| (field.name().as_str(), field.data_type())).collect();
        assert_eq!(answered, said, "{name}");
        assert!(!view.examples.is_empty(), "{name}");
        for example in view.examples {
            assert!(!rows(&engine, example, None).await.unwrap().is_empty(), "{example}");
        }
    }
}
