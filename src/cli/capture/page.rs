//! The first page of a capture: what it cost, and what its steps did.

use std::io::{self, Write};
use std::time::Duration;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, Int64Type};
use probe_client::{Client, collect};
use probe_common::error::Result;
use probe_proto::v1::{Captured, CapturedRows};
use tokio::time::{Instant, sleep};

use crate::output::{self, OutputFormat};

/// Number of steps before a capture that are compared with its own.
const BEFORE: i64 = 64;
/// How long rows of the captured steps are waited for: they come with the next batches of their agents.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Lines of a table.
const TOP: usize = 10;

pub(super) async fn show(client: &mut Client, captured: &Captured) -> Result<()> {
    let Captured { capture, processes } = captured;
    let steps = processes.iter().map(|process| process.steps).max().unwrap_or_default();
    let firsts = firsts(processes);
    let mut text = title(capture, steps, &firsts);
    let waited = processes.iter().map(|process| process.waited_s).fold(0.0, f64::max);
    let bytes = processes.iter().map(|process| process.bytes).max().unwrap_or_default() as f64;
    let megabytes = bytes / 1e6;
    let what = if processes.iter().any(|process| process.memory_blocks > 0) { "snapshot" } else { "trace" };
    let slower = slower(client, steps, &firsts, processes.len()).await?;
    text +=
        &format!("\ncost: {slower}training stood still for {waited:.2} s, and a rank's {what} has {megabytes:.1} MB");
    let sum = |rows: fn(&probe_proto::v1::CapturedRows) -> i64| processes.iter().map(rows).sum::<i64>();
    let (operators, kernels) = (sum(|process| process.operators), sum(|process| process.kernels));
    let (launches, frames) = (sum(|process| process.launches), sum(|process| process.frames));
    let left_out: u64 = processes.iter().map(|process| process.left_out).sum();
    let (events, blocks) = (sum(|process| process.memory_events), sum(|process| process.memory_blocks));
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
    let counts = counts.iter().enumerate().filter(|(index, (rows, _))| *rows > 0 || is_profile && *index < 4);
    let counts: Vec<String> = counts.map(|(_, (rows, what))| format!("{rows} {what}")).collect();
    text += &format!("\nrows: {}; {left_out} events have none\n", counts.join(", "));
    for (whose, note) in
        processes.iter().filter(|process| !process.note.is_empty()).map(|process| (whose(process), &process.note))
    {
        text += &format!("{whose}: {note}\n");
    }
    for problem in processes.iter().map(|process| &process.problem).filter(|problem| !problem.is_empty()) {
        text += &format!("a trace was read in part: {problem}\n");
    }
    if !output::unless_closed(write!(io::stdout(), "{text}"))? {
        return Ok(());
    }
    let ours = format!("capture LIKE '{capture}/%'");
    // Factor from seconds of all steps and ranks to milliseconds of one step of one rank.
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
        table(client, "what held memory at the peak", &peak).await?;
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
fn whose(process: &CapturedRows) -> String {
    process.rank.map_or_else(|| format!("process {}", process.pid), |rank| format!("rank {rank}"))
}

async fn table(client: &mut Client, title: &str, sql: &str) -> Result<()> {
    if output::unless_closed(writeln!(io::stdout(), "\n{title}"))? {
        let answer = client.query(sql).await?;
        output::print(answer, OutputFormat::Table, Some(TOP * 10)).await?;
    }
    Ok(())
}

/// The processes by their first step, that of the lowest rank first: each has its own count of steps.
fn firsts(processes: &[CapturedRows]) -> Vec<(i64, Vec<&CapturedRows>)> {
    let mut firsts: Vec<(i64, Vec<&CapturedRows>)> = Vec::new();
    for process in processes {
        match firsts.iter_mut().find(|(first, _)| *first == process.first_step) {
            Some((_, those)) => those.push(process),
            None => firsts.push((process.first_step, vec![process])),
        }
    }
    firsts
}

/// "capture-1: steps 40 to 42 on rank 0, 11 to 13 on ranks 1, 2".
fn title(capture: &str, steps: u32, firsts: &[(i64, Vec<&CapturedRows>)]) -> String {
    let each: Vec<String> = firsts
        .iter()
        .map(|(first, processes)| {
            let mut words = match steps {
                0 => first.to_string(),
                _ => format!("{first} to {}", first + i64::from(steps) - 1),
            };
            let ranks: Vec<String> = processes.iter().filter_map(|process| Some(process.rank?.to_string())).collect();
            if !ranks.is_empty() {
                words += &format!(" on rank{} {}", if ranks.len() == 1 { "" } else { "s" }, ranks.join(", "));
            }
            words
        })
        .collect();
    let what = if steps == 0 { "a memory snapshot at step" } else { "steps" };
    format!("{capture}: {what} {}", each.join(", "))
}

/// Rows of `python.steps` from some steps before the capture to its end, of its processes.
fn of_steps(steps: u32, firsts: &[(i64, Vec<&CapturedRows>)]) -> String {
    let each: Vec<String> = firsts
        .iter()
        .map(|(first, processes)| {
            let pids: Vec<String> = processes.iter().map(|process| process.pid.to_string()).collect();
            let (from, to) = (first - BEFORE, first + i64::from(steps) - 1);
            format!("step BETWEEN {from} AND {to} AND pid IN ({})", pids.join(", "))
        })
        .collect();
    each.join(" OR ")
}

/// How much longer the captured steps took than those before, in words that end in a semicolon; empty where that is not known.
async fn slower(
    client: &mut Client,
    steps: u32,
    firsts: &[(i64, Vec<&CapturedRows>)],
    processes: usize,
) -> Result<String> {
    if steps == 0 || processes == 0 {
        return Ok(String::new());
    }
    let sql = format!(
        "SELECT MEDIAN(duration) FILTER (WHERE captured) AS during, MEDIAN(duration) FILTER (WHERE captured IS FALSE) AS before, \
         COUNT(*) FILTER (WHERE captured) AS steps FROM python.steps WHERE {}",
        of_steps(steps, firsts)
    );
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let (_, batches) = collect(client.query(&sql).await?).await?;
        let Some(batch) = batches.first() else { return Ok(String::new()) };
        let float = |index: usize| {
            let column = batch.column(index).as_primitive_opt::<Float64Type>()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn process(rank: Option<i32>, pid: u32, first_step: i64) -> CapturedRows {
        CapturedRows { rank, pid, first_step, ..CapturedRows::default() }
    }

    #[test]
    fn each_process_has_the_numbers_of_its_own_count_of_steps() {
        let processes = [process(Some(0), 7, 140), process(Some(1), 8, 40), process(Some(2), 9, 140)];
        let firsts = firsts(&processes);
        assert_eq!(title("capture-1", 3, &firsts), "capture-1: steps 140 to 142 on ranks 0, 2, 40 to 42 on rank 1");
        assert_eq!(
            title("capture-1", 0, &firsts),
            "capture-1: a memory snapshot at step 140 on ranks 0, 2, 40 on rank 1"
        );
        assert_eq!(
            of_steps(3, &firsts),
            "step BETWEEN 76 AND 142 AND pid IN (7, 9) OR step BETWEEN -24 AND 42 AND pid IN (8)"
        );
    }

    #[test]
    fn a_process_without_a_rank_is_not_named() {
        let processes = [process(None, 7, 10)];
        assert_eq!(title("capture-2", 2, &firsts(&processes)), "capture-2: steps 10 to 11");
    }
}
