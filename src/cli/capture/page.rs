//! The first page of a capture: what it cost, and what its steps did.

use std::io::{self, Write};
use std::time::Duration;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, Int64Type};
use probe_client::{Client, collect};
use probe_common::error::Result;
use probe_proto::v1::{Captured, CapturedRows};
use tokio::time::{Instant, sleep};

use crate::output::{self, Format};

/// Steps before a capture that its own are compared with.
const BEFORE: i64 = 64;
/// Rows of its steps come with the next batches of their agents: how long they are waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// Lines of a table.
const TOP: usize = 10;

pub(super) async fn show(client: &mut Client, captured: &Captured) -> Result<()> {
    let Captured { capture, processes } = captured;
    let first = processes.iter().map(|of| of.first_step).min().unwrap_or_default();
    let steps = processes.iter().map(|of| of.steps).max().unwrap_or_default();
    let mut text = match steps {
        0 => format!("{capture}: a memory snapshot at step {first}"),
        _ => format!("{capture}: steps {first} to {}", first + i64::from(steps) - 1),
    };
    let ranks: Vec<String> = processes.iter().filter_map(|of| Some(of.rank?.to_string())).collect();
    if !ranks.is_empty() {
        text += &format!(" on rank{} {}", if ranks.len() == 1 { "" } else { "s" }, ranks.join(", "));
    }
    let waited = processes.iter().map(|of| of.waited_s).fold(0.0, f64::max);
    let bytes = processes.iter().map(|of| of.bytes).max().unwrap_or_default() as f64;
    let megabytes = bytes / 1e6;
    let what = if processes.iter().any(|of| of.memory_blocks > 0) { "snapshot" } else { "trace" };
    let slower = slower(client, (first, steps), processes.len()).await?;
    text +=
        &format!("\ncost: {slower}training stood still for {waited:.2} s, and a rank's {what} has {megabytes:.1} MB");
    let sum = |rows: fn(&probe_proto::v1::CapturedRows) -> i64| processes.iter().map(rows).sum::<i64>();
    let (operators, kernels) = (sum(|of| of.operators), sum(|of| of.kernels));
    let (launches, frames) = (sum(|of| of.launches), sum(|of| of.frames));
    let left_out: u64 = processes.iter().map(|of| of.left_out).sum();
    let (events, blocks) = (sum(|of| of.memory_events), sum(|of| of.memory_blocks));
    let counts = [
        (operators, "operators"),
        (kernels, "device activities"),
        (launches, "launches"),
        (frames, "Python frames"),
        (events, "memory events"),
        (blocks, "memory blocks"),
    ];
    // The first four are of every profile, the others of those that record memory.
    let is_profile = operators > 0;
    let counts = counts.iter().enumerate().filter(|(place, (rows, _))| *rows > 0 || is_profile && *place < 4);
    let counts: Vec<String> = counts.map(|(_, (rows, what))| format!("{rows} {what}")).collect();
    text += &format!("\nrows: {}; {left_out} events have none\n", counts.join(", "));
    for (whose, note) in processes.iter().filter(|of| !of.note.is_empty()).map(|of| (whose(of), &of.note)) {
        text += &format!("{whose}: {note}\n");
    }
    for problem in processes.iter().map(|of| &of.problem).filter(|problem| !problem.is_empty()) {
        text += &format!("a trace was read in part: {problem}\n");
    }
    if !output::unless_closed(write!(io::stdout(), "{text}"))? {
        return Ok(());
    }
    let ours = format!("capture LIKE '{capture}/%'");
    // Of one step of one rank.
    let each = 1e3 / (f64::from(steps.max(1)) * processes.len().max(1) as f64);
    let categories = format!(
        "SELECT rank, ROUND(AVG(total) * 1e3, 3) AS total, ROUND(AVG(kernel) * 1e3, 3) AS kernel, \
         ROUND(AVG(memcpy + memset) * 1e3, 3) AS memory, ROUND(AVG(communication) * 1e3, 3) AS communication, \
         ROUND(AVG(runtime) * 1e3, 3) AS runtime, ROUND(AVG(dataloader) * 1e3, 3) AS dataloader, \
         ROUND(AVG(cpu) * 1e3, 3) AS cpu, ROUND(AVG(other) * 1e3, 3) AS other \
         FROM python.step_categories WHERE {ours} GROUP BY rank ORDER BY rank"
    );
    let operators = format!(
        "SELECT name, CAST(ROUND(COUNT(*) * {each} / 1e3) AS BIGINT) AS calls, ROUND(SUM(self_duration) * {each}, 3) AS own_ms, \
         ROUND(SUM(duration) * {each}, 3) AS total_ms, ROUND(SUM(device_self_duration) * {each}, 3) AS device_ms \
         FROM python.operators WHERE {ours} AND kind = 'operator' GROUP BY name \
         ORDER BY SUM(COALESCE(device_self_duration, 0)) DESC, SUM(self_duration) DESC LIMIT {TOP}"
    );
    let modules = format!(
        "SELECT module, stage, ROUND(SUM(self_duration) * {each}, 3) AS own_ms, \
         ROUND(SUM(device_self_duration) * {each}, 3) AS device_ms \
         FROM python.operators WHERE {ours} AND kind = 'operator' AND module IS NOT NULL GROUP BY module, stage \
         ORDER BY SUM(COALESCE(device_self_duration, 0)) DESC, SUM(self_duration) DESC LIMIT {TOP}"
    );
    let devices = format!(
        "SELECT category, name, CAST(ROUND(COUNT(*) * {each} / 1e3) AS BIGINT) AS calls, ROUND(SUM(duration) * {each}, 3) AS ms \
         FROM gpu.kernels WHERE {ours} AND kind <> 'sync' GROUP BY category, name ORDER BY SUM(duration) DESC LIMIT {TOP}"
    );
    let peak = format!(
        "SELECT rank, device, origin, module, operator, file, line, ROUND(bytes / 1e6, 3) AS mb, blocks, ROUND(share, 1) AS percent \
         FROM python.memory_peak WHERE {ours} ORDER BY rank, device, bytes DESC LIMIT {TOP}"
    );
    let blocks_by_line = format!(
        "SELECT rank, device, state, file, line, function, ROUND(SUM(size) / 1e6, 3) AS mb, COUNT(*) AS blocks \
         FROM gpu.memory_blocks WHERE {ours} GROUP BY rank, device, state, file, line, function \
         ORDER BY SUM(size) DESC LIMIT {TOP}"
    );
    if blocks > 0 {
        table(client, "memory of the allocator, by who asked for it", &blocks_by_line).await?;
    }
    if events > 0 {
        table(client, "who held memory when the most was allocated", &peak).await?;
    }
    if !is_profile {
        return Ok(());
    }
    table(client, "what a step's time went to (ms)", &categories).await?;
    table(client, "operators, by own time (per step and rank)", &operators).await?;
    table(client, "modules, by own time of their operators (per step and rank)", &modules).await?;
    if kernels > 0 {
        table(client, "device activities (per step and rank)", &devices).await?;
    }
    Ok(())
}

/// A process as people call it.
fn whose(of: &CapturedRows) -> String {
    of.rank.map_or_else(|| format!("process {}", of.pid), |rank| format!("rank {rank}"))
}

async fn table(client: &mut Client, title: &str, sql: &str) -> Result<()> {
    if output::unless_closed(writeln!(io::stdout(), "\n{title}"))? {
        let answer = client.query(sql).await?;
        output::print(answer, Format::Table, Some(TOP * 10)).await?;
    }
    Ok(())
}

/// How much longer its steps took than those before, in words that end in a comma; nothing where it is not known.
async fn slower(client: &mut Client, (first, steps): (i64, u32), processes: usize) -> Result<String> {
    if steps == 0 {
        return Ok(String::new());
    }
    let last = first + i64::from(steps) - 1;
    let sql = format!(
        "SELECT MEDIAN(duration) FILTER (WHERE captured) AS during, MEDIAN(duration) FILTER (WHERE captured IS FALSE) AS before, \
         COUNT(*) FILTER (WHERE captured) AS steps FROM python.steps WHERE step BETWEEN {} AND {last}",
        first - BEFORE
    );
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (_, batches) = collect(client.query(&sql).await?).await?;
        let Some(batch) = batches.first() else { return Ok(String::new()) };
        let float = |place: usize| {
            let column = batch.column(place).as_primitive_opt::<Float64Type>()?;
            column.is_valid(0).then(|| column.value(0) * 1e3)
        };
        let there = batch.column(2).as_primitive_opt::<Int64Type>().map_or(0, |column| column.value(0));
        if there < i64::from(steps) * processes as i64 && Instant::now() < deadline {
            sleep(Duration::from_millis(50)).await;
            continue;
        }
        return Ok(match (float(0), float(1)) {
            (Some(during), Some(before)) if before > 0.0 => {
                let percent = 100.0 * (during / before - 1.0);
                format!("a step took {during:.1} ms, and {before:.1} ms before ({percent:+.0} %); ")
            }
            (Some(during), _) => format!("a step took {during:.1} ms; "),
            _ => String::new(),
        });
    }
}
