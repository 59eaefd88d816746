//! What a collector and the commands take with many agents, runs and rows: `make bench-endurance`.
//!
//! A day of a quiet run and a day at 1 M rows a second, by a clock that agents tell; 512 agents at once; a home with 1000
//! runs, and one with 100 runs whose collectors were killed; a run of 1e10 rows. All of it is measured from outside, as
//! the kernel counts memory, open files, threads and processor time. Each scenario can be named alone: `bench-endurance
//! agents`. PROBE_HOME and PROBE_RUNTIME_DIR must name throw-away directories, as the make target does.

#![expect(clippy::print_stdout, reason = "a benchmark says what it measured")]

#[path = "support/agent.rs"]
mod agent;
#[path = "endurance/crowd.rs"]
mod crowd;
#[path = "endurance/days.rs"]
mod days;
#[path = "endurance/homes.rs"]
mod homes;
#[path = "support/process.rs"]
mod process;
#[path = "support/rows.rs"]
mod rows;
#[path = "support/sender.rs"]
mod sender;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

async fn all() -> Result<()> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| named.is_empty() || named.iter().any(|word| word == name);
    if wanted("quiet") {
        days::quiet().await?;
    }
    if wanted("busy") {
        days::busy().await?;
    }
    if wanted("agents") {
        crowd::agents().await?;
    }
    if wanted("runs") {
        homes::ended().await?;
    }
    if wanted("lost") {
        homes::lost().await?;
    }
    if wanted("large") {
        homes::large().await?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(all())
}
