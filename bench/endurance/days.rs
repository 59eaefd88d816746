//! A day of a run, by the clock of its agents: they send the records of the day as fast as the collector takes them.

use std::time::Instant;

use probe_common::paths::ProbeDirectories;
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{Text, Time};
use probe_proto::tables::steps;
use probe_proto::v1::{self, agent_frame::Frame};
use probe_store::runs;

use super::Result;
use super::agent::{BenchAgent, channel, hello};
use super::process::ServeProcess;
use super::sender::{ROWS, Sender};

const DAY: u64 = 86_400;
const AGENTS: u32 = 8;
/// Seconds of a step of the quiet run.
const STEP: u64 = 10;
/// Rows of the busy run, which compress to a byte or less: they fill its disk several times.
const BUSY_ROWS: u64 = 1_500_000_000;
const BUSY_DISK: u64 = 256 << 20;
/// When each day began, in nanoseconds since 1970.
const MORNING: i64 = 1_767_225_600_000_000_000;

fn at(second: u64) -> i64 {
    MORNING + second as i64 * 1_000_000_000
}

/// Prints a line with what the collector uses now.
fn say(served: &ServeProcess, name: &str, what: &str) -> Result<()> {
    let usage = served.usage()?;
    let directory = ProbeDirectories::from_environment()?.runs().join(format!("{name}@1"));
    let (all, files) = (runs::directory_bytes(&directory), runs::file_bytes(&directory));
    println!(
        "| {what} | {:.0} MiB ({:.0} at most) | {} | {} | {:.1} s | {:.1} MiB, journal {:.1} |",
        usage.resident,
        usage.most_resident,
        usage.files,
        usage.threads,
        usage.cpu,
        files as f64 / 1_048_576.0,
        (all - files) as f64 / 1_048_576.0
    );
    Ok(())
}

fn head(title: &str) {
    println!("\n{title}\n\n| | resident | open files | threads | processor | disk |\n|---|---|---|---|---|---|");
}

/// Eight agents, each with a status a second and a step every ten.
pub(crate) async fn quiet() -> Result<()> {
    head("A quiet day: 8 agents, a status a second and a step every ten seconds each");
    let served = ServeProcess::start("quiet", &[]).await?;
    let mut agents = Vec::new();
    for number in 0..AGENTS {
        let hello = hello(&format!("quiet {number}"), 1000 + number, vec![steps::TABLE.wire_schema()]);
        let agent = BenchAgent::connect(channel(&served.socket).await?, hello).await?;
        let mut strings = StringTable::default();
        let clock = strings.id("host");
        agent.send(Frame::Strings(strings.since(0).ok_or("no strings")?)).await?;
        agents.push((agent, clock));
    }
    say(&served, "quiet", "in the morning")?;
    let began = Instant::now();
    for second in 0..DAY {
        for (agent, clock) in &agents {
            let step = second / STEP;
            if second % STEP == 0 {
                let mut builder = BatchBuilder::new(&steps::TABLE);
                builder.push(of_a_step(step as i64, at(second), *clock));
                agent.send(Frame::Batch(v1::Batch { seq: step + 1, recorded: step + 1, ..builder.take() })).await?;
            }
            let recorded = [("python.steps".to_owned(), step + 1)].into();
            let (step, unix_ns) = (step as i64, at(second));
            let status = v1::Status { step, unix_ns, last_record_ns: unix_ns, recorded, ..v1::Status::default() };
            agent.send(Frame::Status(status)).await?;
        }
        if (second + 1) % (DAY / 4) == 0 {
            for (agent, _) in &mut agents {
                agent.acknowledged(second / STEP + 1).await?;
            }
            say(&served, "quiet", &format!("after {} hours", (second + 1) / 3600))?;
        }
    }
    println!("\n{:.0} s on this machine", began.elapsed().as_secs_f64());
    served.stop()
}

fn of_a_step(step: i64, ts: i64, clock: Text) -> steps::Row {
    steps::Row { ts: Time(ts), duration: STEP as f64, clock, ..steps::Row::of_a_second(step) }
}

/// One agent with 1 M rows a second: the disk is full early in the day, and later rows replace the oldest ones.
pub(crate) async fn busy() -> Result<()> {
    let share = BUSY_ROWS as f64 / (DAY as f64 * 1e6);
    head(&format!(
        "A day at 1 M rows a second, the first {:.0} minutes of it ({:.1} e9 rows), PROBE_DISK={}M",
        share * 1440.0,
        BUSY_ROWS as f64 / 1e9,
        BUSY_DISK >> 20
    ));
    let served = ServeProcess::start("busy", &[("PROBE_DISK", BUSY_DISK.to_string())]).await?;
    let mut sender = Sender::connect(&served.socket, "busy").await?;
    say(&served, "busy", "in the morning")?;
    let began = Instant::now();
    let count = BUSY_ROWS / ROWS as u64;
    for seq in 1..=count {
        sender.send(seq).await?;
        if seq % (count / 6) == 0 {
            sender.acknowledged(seq).await?;
            say(&served, "busy", &format!("after {:.2} e9 rows", (seq * ROWS as u64) as f64 / 1e9))?;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("\n{:.2} M rows/s on this machine", BUSY_ROWS as f64 / seconds / 1e6);
    served.stop()
}
