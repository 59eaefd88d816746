//! Stacks of a run that has ended: the newest that were read of it, as `python.stacks` has them.

use std::collections::BTreeMap;

use probe_client::Client;
use probe_common::error::{Error, Result};
use probe_proto::v1::{ProcessStacks, StackFrame, StackMethod, StacksAnswer, ThreadStack};

use crate::small_rows::{AnswerRow, rows};

/// The newest capture, of all ranks or of one.
///
/// # Errors
/// No stacks were read, or none of that rank; and the query's.
pub(super) async fn newest(client: &mut Client, rank: Option<i32>) -> Result<StacksAnswer> {
    let condition = rank.map_or_else(|| "TRUE".to_owned(), |rank| format!("rank = {rank}"));
    let sql = format!(
        "SELECT capture, ts, host, pid, rank, method, thread, thread_name, os_thread, main, gil, running, waits_for, \
         samples, moving, function, file, line, user_code FROM python.stacks \
         WHERE capture = (SELECT MAX(capture) FROM python.stacks WHERE {condition}) AND {condition} \
         ORDER BY rank, host, pid, thread, depth"
    );
    let found = rows(client, &sql).await?;
    let Some(first) = found.first() else {
        let whose = rank.map(|rank| format!(" of rank {rank}")).unwrap_or_default();
        return Err(Error::unreachable(format!("this run has ended, and no stacks{whose} were read before")).hint(
            "probe crash shows how it ended; stacks are kept of `probe stack` on a live run, and when steps stop",
        ));
    };
    let mut answer = StacksAnswer {
        capture: first.int(0).unwrap_or_default(),
        unix_ns: found.iter().filter_map(|row| row.int(1)).min().unwrap_or_default(),
        ..StacksAnswer::default()
    };
    let mut processes: Vec<(ProcessStacks, BTreeMap<i64, ThreadStack>)> = Vec::new();
    for row in &found {
        let process = process(row);
        let is_same = |(of, _): &(ProcessStacks, _)| (of.pid, &of.host) == (process.pid, &process.host);
        if !processes.last().is_some_and(is_same) {
            processes.push((process, BTreeMap::new()));
        }
        let Some((_, threads)) = processes.last_mut() else { continue };
        let thread = threads.entry(row.int(6).unwrap_or_default()).or_insert_with(|| thread(row));
        thread.frames.extend(frame(row));
    }
    answer.processes = processes
        .into_iter()
        .map(|(process, threads)| {
            let threads: Vec<ThreadStack> = threads.into_values().collect();
            // A single read is one sample of every thread.
            let samples = threads.iter().filter(|thread| thread.main).map(|thread| thread.samples).sum();
            ProcessStacks { threads, samples, ..process }
        })
        .collect();
    Ok(answer)
}

fn process(row: &AnswerRow) -> ProcessStacks {
    let mut process = ProcessStacks {
        host: row.text(2).unwrap_or_default(),
        pid: row.int(3).and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default(),
        rank: row.int(4).and_then(|rank| i32::try_from(rank).ok()),
        ..ProcessStacks::default()
    };
    process.set_method(match row.text(5).as_deref() {
        Some("paused") => StackMethod::Paused,
        Some("agent") => StackMethod::Agent,
        Some("native") => StackMethod::Native,
        _ => StackMethod::Memory,
    });
    process
}

fn thread(row: &AnswerRow) -> ThreadStack {
    ThreadStack {
        name: row.text(7).unwrap_or_default(),
        os_thread: row.int(8).and_then(|id| u32::try_from(id).ok()),
        main: row.flag(9),
        gil: row.flag(10),
        running: row.flag(11),
        waits_for: row.text(12).unwrap_or_default(),
        samples: row.int(13).and_then(|samples| u64::try_from(samples).ok()).unwrap_or_default(),
        moving: row.flag(14),
        frames: Vec::new(),
    }
}

/// A frame; None in the row of a thread that ran no Python.
fn frame(row: &AnswerRow) -> Option<StackFrame> {
    Some(StackFrame {
        function: row.text(15)?,
        file: row.text(16).unwrap_or_default(),
        line: row.int(17).and_then(|line| u32::try_from(line).ok()),
        user_code: row.flag(18),
        ..StackFrame::default()
    })
}
