//! 512 agents on one collector.

use std::process::Command;
use std::time::{Duration, Instant};

use probe_proto::encode::StringTable;
use probe_proto::tables::torch_trace;
use probe_proto::v1::{self, agent_frame::Frame};

use super::Result;
use super::agent::{BenchAgent, channel, hello};
use super::process::{ServeProcess, probe};
use super::rows;

const AGENTS: u32 = 512;
/// Rows of each agent's batch, one a second.
const ROWS: usize = 2048;
const SECONDS: u64 = 60;
/// How long they have no rows before.
const IDLE_SECONDS: u64 = 30;
/// The most that they may take then, as a share of a core.
const MAX_IDLE: f64 = 0.02;

/// Connects all agents, of which each sends a status a second, and later a batch too.
pub(crate) async fn agents() -> Result<()> {
    println!("\n{AGENTS} agents, each with {ROWS} rows and a status a second ({SECONDS} s)\n");
    let served = ServeProcess::start("crowd", &[]).await?;
    let rest = served.usage()?;
    let mut strings = StringTable::default();
    let batch = rows::batch(&mut strings, ROWS, 0);
    let mut agents = Vec::new();
    let began = Instant::now();
    for number in 0..AGENTS {
        let hello = hello(&format!("crowd {number}"), 10_000 + number, vec![torch_trace::TABLE.wire_schema()]);
        let agent = BenchAgent::connect(channel(&served.socket).await?, hello).await?;
        agent.send(Frame::Strings(strings.since(0).ok_or("no strings")?)).await?;
        agents.push(agent);
    }
    println!("connected in {:.2} s", began.elapsed().as_secs_f64());
    let (began, cpu) = (Instant::now(), served.usage()?.cpu);
    for second in 0..IDLE_SECONDS {
        tokio::time::sleep(Duration::from_secs(second).saturating_sub(began.elapsed())).await;
        for agent in &agents {
            agent.send(Frame::Status(v1::Status::default())).await?;
        }
    }
    tokio::time::sleep(Duration::from_secs(IDLE_SECONDS).saturating_sub(began.elapsed())).await;
    let idle = (served.usage()?.cpu - cpu) / began.elapsed().as_secs_f64();
    let verdict = if idle <= MAX_IDLE { "met" } else { "MISSED" };
    println!("without rows for {IDLE_SECONDS} s: {idle:.3} cores (bound {MAX_IDLE}: {verdict})");
    let (began, cpu) = (Instant::now(), served.usage()?.cpu);
    let mut late: f64 = 0.0;
    for seq in 1..=SECONDS {
        let due = Duration::from_secs(seq - 1);
        tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
        late = late.max((began.elapsed().saturating_sub(due)).as_secs_f64());
        for agent in &agents {
            let recorded = seq * ROWS as u64;
            let mut batch = batch.clone();
            (batch.seq, batch.recorded) = (seq, recorded);
            batch.columns[0].base += seq as i64 * (ROWS / rows::STEP + 1) as i64;
            agent.send(Frame::Batch(batch)).await?;
            let recorded = [("python.torch_trace".to_owned(), recorded)].into();
            agent.send(Frame::Status(v1::Status { step: seq as i64, recorded, ..v1::Status::default() })).await?;
        }
    }
    for agent in &mut agents {
        agent.acknowledged(SECONDS).await?;
    }
    let (seconds, usage) = (began.elapsed().as_secs_f64(), served.usage()?);
    let rows = f64::from(AGENTS) * ROWS as f64 * SECONDS as f64;
    println!(
        "{:.2} M rows/s, the last acknowledged after {seconds:.1} s, a second's batches sent at most {late:.2} s late",
        rows / seconds / 1e6
    );
    println!(
        "{:.0} MiB resident at most, {:.0} now ({:.0} at rest), {} open files, {} threads, {:.2} cores",
        usage.most_resident,
        usage.resident,
        rest.resident,
        usage.files,
        usage.threads,
        (usage.cpu - cpu) / seconds
    );
    for sql in ["SELECT COUNT(*) FROM probe.agents", "SELECT COUNT(DISTINCT pid), COUNT(*) FROM python.torch_trace"] {
        let asked = Instant::now();
        let answer = Command::new(probe()?).args(["crowd", "query", "--format", "csv", sql]).output()?;
        let text = String::from_utf8_lossy(&answer.stdout);
        println!(
            "{sql}: {} in {:.0} ms",
            text.lines().last().unwrap_or("nothing"),
            asked.elapsed().as_secs_f64() * 1e3
        );
    }
    served.stop()
}
