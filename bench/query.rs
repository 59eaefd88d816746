//! How long queries take over many `python.torch_trace` rows: our half of `make bench-query`.
//!
//! Makes the rows (8 ranks, 128 modules, forward, backward and optimizer, as agents send them), asks over them in
//! memory, then with the first half of them on disk, and takes in rows while a question is asked every 100 ms. Prints
//! a JSON object a line for bench/query.py, which asks DuckDB the same over the same rows.
//!
//! `query ROWS DIRECTORY [ROUNDS [QUESTION]]`: a throw-away directory, and one question instead of all and of ingest. `query strings`:
//! the layouts that text could have (`strings`). `query served ROWS`: the rows in a `probe serve`, for what clients ask.

#![expect(clippy::print_stdout, reason = "a benchmark says what it measured")]

#[path = "support/agent.rs"]
mod agent;
#[path = "support/ingest.rs"]
mod ingest;
#[path = "support/process.rs"]
#[expect(dead_code, reason = "other benchmarks resume a collector, and read what it uses")]
mod process;
#[path = "support/rows.rs"]
mod rows;
#[path = "query/run.rs"]
mod run;
#[path = "support/sender.rs"]
mod sender;
#[path = "query/served.rs"]
mod served;
#[path = "query/strings.rs"]
mod strings;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use probe_query::QueryEngine;
use probe_store::Store;
use run::SyntheticRun;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The allocator of the command, whose counting is part of what is measured.
#[global_allocator]
static ALLOCATOR: probe_query::CountingAllocator = probe_query::CountingAllocator;

/// Batches that one connection brings.
const BATCHES: u64 = 2000;

/// Questions over a table `t`, as bench/query.py asks DuckDB them.
const QUESTIONS: &str = include_str!("query/questions.json");

#[derive(serde::Deserialize)]
struct BenchQuery {
    name: String,
    sql: String,
}

/// All questions, or the one that the command line names.
fn questions() -> Result<Vec<BenchQuery>> {
    let mut questions: Vec<BenchQuery> = serde_json::from_str(QUESTIONS)?;
    if let Some(only) = std::env::args().nth(4) {
        questions.retain(|question| question.name == only);
    }
    for question in &mut questions {
        question.sql = question.sql.replace(" FROM t", " FROM python.torch_trace");
    }
    Ok(questions)
}

async fn ask(engine: &QueryEngine, sql: &str) -> Result<usize> {
    let rows = engine.query(sql, None).await?;
    Ok(rows.try_fold(0, |rows, batch| async move { Ok(rows + batch.num_rows()) }).await?)
}

/// The first of all times, and the median of `rounds` after three, in milliseconds.
async fn times(engine: &QueryEngine, sql: &str, rounds: usize) -> Result<(f64, f64)> {
    let mut times = Vec::new();
    for _ in 0..rounds + 3 {
        let began = Instant::now();
        ask(engine, sql).await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let (first, warm) = (times[0], &mut times[3..]);
    warm.sort_unstable_by(f64::total_cmp);
    Ok((first, warm[warm.len() / 2]))
}

fn say(what: &str, name: &str, value: f64) {
    println!("{}", serde_json::json!({ "what": what, "name": name, "value": value }));
}

async fn ask_all(what: &str, store: Arc<Store>, rounds: usize) -> Result<()> {
    for question in questions()? {
        // An engine of its own: no question finds the sums that another one has left.
        let engine = QueryEngine::new(Arc::clone(&store), Vec::new())?;
        let (first, warm) = times(&engine, &question.sql, rounds).await?;
        say(what, &question.name, warm);
        say(&format!("{what}, first"), &question.name, first);
    }
    Ok(())
}

fn size(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory.join("python.torch_trace"))? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

async fn measure(rows: usize, directory: &Path, rounds: usize) -> Result<()> {
    let half = rows / 2;
    let mut run = SyntheticRun::new();
    let store = Store::new(usize::MAX);
    let began = Instant::now();
    run.fill(&store, half);
    let first = began.elapsed();
    // The first half is written to files, and so are all rows at the end, for DuckDB.
    let files = directory.join("half");
    let began = Instant::now();
    store.write(&files, &[])?;
    say("disk", "rows a second written", run.rows as f64 / began.elapsed().as_secs_f64());
    say("disk", "bytes a row", size(&files)? as f64 / run.rows as f64);
    let on_disk = run.rows;
    let mixed = Store::open(&files)?;
    let began = Instant::now();
    run.also_fill(&[&store, &mixed], rows - on_disk);
    say(
        "memory",
        "rows a second appended (encoding included)",
        run.rows as f64 / (first + began.elapsed()).as_secs_f64(),
    );
    say("memory", "rows", run.rows as f64);
    say("memory", "bytes a row", store.memory() as f64 / run.rows as f64);
    ask_all("memory", Arc::clone(&store), rounds).await?;
    ask_all("half on disk", mixed, rounds).await?;
    store.write(&directory.join("all"), &[])?;
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let rows = arguments.next().ok_or("how many rows?")?;
    if rows == "strings" {
        return runtime.block_on(strings::measure());
    }
    if rows == "served" {
        let rows = arguments.next().ok_or("how many rows?")?.parse()?;
        return runtime.block_on(served::hold(rows));
    }
    let rows = rows.parse()?;
    let directory = arguments.next().ok_or("which directory?")?;
    let rounds = arguments.next().map_or(Ok(15), |rounds| rounds.parse())?;
    runtime.block_on(measure(rows, Path::new(&directory), rounds))?;
    if arguments.next().is_some() {
        return Ok(());
    }
    // The first measurement allocates memory that the later ones reuse.
    runtime.block_on(ingest::measure(BATCHES / 4, None))?;
    let alone = runtime.block_on(ingest::measure(BATCHES, None))?.0;
    say("ingest", "rows a second", alone);
    let every = Some((Duration::from_millis(100), ingest::LAST_STEPS));
    say("ingest", "rows a second, a query every 100 ms", runtime.block_on(ingest::measure(BATCHES, every))?.0);
    let heavy = Some((Duration::ZERO, "SELECT COUNT(*) FROM generate_series(1, 1000000000) WHERE value % 3 = 1"));
    say("ingest", "rows a second, beside a generate_series bomb", runtime.block_on(ingest::measure(BATCHES, heavy))?.0);
    Ok(())
}
