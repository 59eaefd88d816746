//! How many rows a collector takes in, and the memory it needs: `make bench-ingest`.
//!
//! Rows a second over one connection, until every one is acknowledged (journal and files are written), alone and while
//! the query of the performance document runs every 100 ms; collector and client share the machine's cores. Then a flood of three
//! times what fits into a `probe serve` with a small memory budget, that is asked the whole time: its resident memory at
//! most. Last, what a collector whose PROBE_DISK is full holds on disk (`bench-ingest full-disk` for that alone). PROBE_HOME
//! and PROBE_RUNTIME_DIR must name throw-away directories, as the make target does.

#![expect(clippy::print_stdout, reason = "a benchmark says what it measured")]

#[path = "support/agent.rs"]
mod agent;
#[path = "ingest/full_disk.rs"]
mod full_disk;
#[path = "support/ingest.rs"]
mod ingest;
#[path = "support/process.rs"]
#[allow(dead_code, reason = "the benchmark of endurance looks at more")]
mod process;
#[path = "support/rows.rs"]
mod rows;
#[path = "support/sender.rs"]
mod sender;

use std::process::Stdio;
use std::time::Duration;

use full_disk::full_disk;
use ingest::{LAST_STEPS, measure, send};
use process::{ServeProcess, probe};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The allocator of the command, whose counting is part of what is measured.
#[global_allocator]
static ALLOCATOR: probe_query::CountingAllocator = probe_query::CountingAllocator;

const BATCHES: u64 = 2000;
/// Memory budget of the flooded collector, in MiB.
const BUDGET: u64 = 512;
/// Bytes of a row in memory, about.
const ROW_BYTES: u64 = 35;

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

async fn flood() -> Result<()> {
    let served = ServeProcess::start("flood", &[("PROBE_MEMORY", format!("{BUDGET}M"))]).await?;
    let probe = probe()?;
    let asking = tokio::spawn(async move {
        loop {
            let asked = tokio::process::Command::new(&probe)
                .args(["flood", "query", "--format", "csv"])
                .arg("SELECT module, stage, COUNT(*), AVG(duration) FROM python.torch_trace GROUP BY module, stage")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .status();
            // A query that fails is not counted; the next one runs all the same.
            let _ = asked.await;
        }
    });
    let idle = served.usage()?.most_resident;
    let rows = send(&served.socket, 3 * (BUDGET << 20) / ROW_BYTES / 8192).await?;
    asking.abort();
    let most = served.usage()?.most_resident;
    let ratio = most / BUDGET as f64;
    println!(
        "flood at {:.2} M rows/s: {most:.0} MiB resident at most ({idle:.0} idle) of a budget of {BUDGET} MiB: \
         {ratio:.2} x (bound 1.25: {})",
        rows / 1e6,
        verdict(ratio <= 1.25)
    );
    Ok(())
}

async fn all() -> Result<()> {
    if std::env::args().any(|word| word == "flood") {
        return flood().await;
    }
    if std::env::args().any(|word| word == "full-disk") {
        return full_disk().await;
    }
    // The first measurement allocates memory that the later ones reuse.
    measure(BATCHES / 4, None).await?;
    let (alone, _) = measure(BATCHES, None).await?;
    println!("one connection: {:.2} M rows/s (bound 5: {})", alone / 1e6, verdict(alone >= 5e6));
    let (beside, answers) = measure(BATCHES, Some((Duration::from_millis(100), LAST_STEPS))).await?;
    println!(
        "one connection, a query every 100 ms ({answers} answers): {:.2} M rows/s (bound 8: {})",
        beside / 1e6,
        verdict(beside >= 8e6)
    );
    flood().await?;
    full_disk().await
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(all())
}
