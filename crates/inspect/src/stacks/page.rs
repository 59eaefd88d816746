//! Stacks as a page of text.

use std::fmt::Write;

use probe_proto::v1::{NativeThreads, ProcessStacks, StackFrame, StackMethod, StacksAnswer, ThreadStack};
use unicode_width::UnicodeWidthStr;

use super::fold::{self, ProcessLabel, ThreadGroup, names};
use super::is_of_agent;

/// Widest column of functions (characters).
const MAX_WIDTH: usize = 44;
/// How the file of a snippet's frames begins: the agent names it by the snippet's number.
const SNIPPET: &str = "<probe eval ";
/// Lines of a summary.
const TOP: usize = 20;

/// A page with all stacks of an answer. `of`: the run's or the process's name.
pub fn page(answer: &StacksAnswer, of: &str) -> String {
    let mut page = String::new();
    header(&mut page, answer, of);
    let groups = fold::groups(&answer.processes);
    for group in groups.iter().filter(|group| !is_ours(group.thread)) {
        page.push('\n');
        head(&mut page, group);
        frames(&mut page, &group.thread.frames);
    }
    natives(&mut page, &answer.processes);
    problems(&mut page, &answer.processes);
    page
}

/// A page with the shares of samples by line of the user's code, of the main threads of all ranks together.
pub fn sampled(answer: &StacksAnswer, of: &str) -> String {
    let mut page = String::new();
    header(&mut page, answer, of);
    let sum = |count: fn(&ProcessStacks) -> u64| answer.processes.iter().map(count).sum::<u64>();
    let (samples, missed, left_out) =
        (sum(|process| process.samples), sum(|process| process.missed), sum(|process| process.left_out));
    let _ = write!(page, "{samples} samples");
    if missed > 0 {
        let _ = write!(page, ", {missed} more could not be taken");
    }
    if left_out > 0 {
        let _ = write!(page, ", {left_out} of threads left out (torn, or too many different stacks)");
    }
    page.push('\n');
    let mut lines = std::collections::HashMap::<(String, String), u64>::new();
    let mut total = 0;
    for thread in answer.processes.iter().flat_map(|process| &process.threads).filter(|thread| thread.main) {
        let user = thread.frames.iter().find(|frame| frame.user_code).or(thread.frames.last());
        let at = |frame: Option<&StackFrame>| {
            frame.map_or_else(
                || "(no Python)".into(),
                |frame| format!("{} ({})", location(frame), clean(&frame.function)),
            )
        };
        *lines.entry((at(user), at(thread.frames.first()))).or_default() += thread.samples;
        total += thread.samples;
    }
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    page.push_str("\nmain threads, by line of your code and what runs there:\n");
    for ((user, innermost), count) in lines.iter().take(TOP) {
        let share = *count as f64 * 100.0 / total.max(1) as f64;
        let below = if user == innermost { String::new() } else { format!("  in {innermost}") };
        let _ = writeln!(page, "{share:6.1} %  {user}{below}");
    }
    if lines.len() > TOP {
        let _ = writeln!(page, "          and {} more; probe flamegraph shows all", lines.len() - TOP);
    }
    problems(&mut page, &answer.processes);
    page
}

fn problems(page: &mut String, processes: &[ProcessStacks]) {
    for process in processes.iter().filter(|process| !process.problem.is_empty()) {
        let _ = write!(page, "\n{}: {}\n", names(&[ProcessLabel::of(process)]), process.problem);
        if !process.hint.is_empty() {
            let _ = writeln!(page, "hint: {}", process.hint);
        }
    }
}

fn header(page: &mut String, answer: &StacksAnswer, of: &str) {
    let read: Vec<&ProcessStacks> = answer.processes.iter().filter(|process| !process.threads.is_empty()).collect();
    let mut owners: Vec<ProcessLabel> = read.iter().map(|process| ProcessLabel::of(process)).collect();
    owners.sort_unstable();
    let time = local_time(answer.unix_ns);
    let whose = if owners.is_empty() { "nothing could be read".to_owned() } else { names(&owners) };
    let _ = write!(page, "{of}: {whose}, {time}");
    if answer.capture > 0 {
        let _ = write!(page, ", capture {}", answer.capture);
    }
    let mut how: Vec<&str> = read.iter().map(|process| method(process)).collect();
    how.sort_unstable();
    how.dedup();
    if !how.is_empty() {
        let _ = write!(page, ", {}", how.join(" and "));
    }
    let stopped = read.iter().map(|process| process.stopped_s).fold(0.0, f64::max);
    if stopped > 0.0 {
        let _ = write!(page, " for {:.1} ms", stopped * 1e3);
    }
    page.push('\n');
}

/// A time (ns since 1970) as people here read it.
pub fn local_time(unix_ns: i64) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or_default();
    time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

fn method(process: &ProcessStacks) -> &'static str {
    match process.method() {
        StackMethod::Paused | StackMethod::Native => "read while stopped",
        StackMethod::Agent => "asked of the agent in the process",
        StackMethod::Memory | StackMethod::Auto => "read while running",
    }
}

/// Threads of probe itself in the process; rows have them, and a page would only be longer.
fn is_ours(thread: &ThreadStack) -> bool {
    // A snippet that runs beside training is a client's own, and may be what holds everything up.
    let runs_snippet = thread.frames.iter().any(|frame| frame.file.starts_with(SNIPPET));
    // Python has no name for the thread that takes snippets, whose outermost frame is the agent's.
    !runs_snippet
        && (thread.frames.last().is_some_and(is_of_agent)
            || thread.name.starts_with("probe-") && thread.frames.iter().any(is_of_agent))
}

fn head(page: &mut String, group: &ThreadGroup<'_>) {
    let thread = group.thread;
    let mut parts = vec![names(&group.owners)];
    parts.push(match (thread.main, thread.name.as_str()) {
        (true, _) => "main thread".to_owned(),
        (false, "") => "a thread without a name".to_owned(),
        (false, name) => format!("thread {name}"),
    });
    let several = group.count > 1;
    if group.count > group.owners.len() {
        parts.push(format!("{} of them", group.count));
    }
    let mut say = |count: usize, one: &str| {
        if count == group.count && (count > 0) {
            parts.push(one.to_owned());
        } else if count > 0 {
            parts.push(format!("{count} {one}"));
        }
    };
    say(group.gil, if several && group.gil != 1 { "hold the GIL" } else { "holds the GIL" });
    say(group.running, "running");
    if !group.waits_for.is_empty() {
        let what: Vec<&str> = group.waits_for.iter().copied().collect();
        parts.push(format!("waiting: {}", what.join(" / ")));
    }
    if group.moving > 0 {
        parts.push("it moved while it was read: --pause shows one moment".to_owned());
    }
    let _ = writeln!(page, "{}", parts.join(" · "));
}

fn frames(page: &mut String, frames: &[StackFrame]) {
    if frames.is_empty() {
        page.push_str("    no Python runs on it\n");
        return;
    }
    let user = frames.iter().position(|frame| frame.user_code);
    let widest = |widths: &mut dyn Iterator<Item = usize>| widths.max().unwrap_or_default();
    let functions = widest(&mut frames.iter().map(|frame| frame.function.width())).min(MAX_WIDTH);
    let locations =
        widest(&mut frames.iter().filter(|frame| !frame.source.is_empty()).map(|frame| location(frame).width()));
    for (depth, frame) in frames.iter().enumerate() {
        let mark = if Some(depth) == user { '>' } else { ' ' };
        let (function, location) = (clean(&frame.function), location(frame));
        let gap = " ".repeat(functions.saturating_sub(function.width()));
        let _ = write!(page, "  {mark} {function}{gap}  {location}");
        if !frame.source.is_empty() {
            let gap = " ".repeat(locations.saturating_sub(location.width()));
            let _ = write!(page, "{gap}  {}", frame.source);
        }
        page.push('\n');
    }
}

/// A frame's file and line, as `train.py:12`. The path of a package's file begins with the package.
pub fn location(frame: &StackFrame) -> String {
    let file = clean(short(&frame.file));
    frame.line.map_or_else(|| file.clone(), |line| format!("{file}:{line}"))
}

/// The path of a file; of a package or of the standard library, from there on.
fn short(file: &str) -> &str {
    for part in ["/site-packages/", "/dist-packages/"] {
        if let Some((_, rest)) = file.rsplit_once(part) {
            return rest;
        }
    }
    let library = file.find("/lib/python3").and_then(|at| file[at + 1..].splitn(3, '/').nth(2));
    library.filter(|rest| !rest.is_empty()).unwrap_or(file)
}

/// A text without control characters: a name may hold any, and a terminal must not obey them.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Writes the threads that run no Python: one line a process, and one for all processes with equal threads.
fn natives(page: &mut String, processes: &[ProcessStacks]) {
    let mut lines = Vec::<(String, Vec<ProcessLabel>)>::new();
    for process in processes.iter().filter(|process| !process.native.is_empty()) {
        let text = |native: &NativeThreads| {
            let running = if native.running > 0 { format!(" ({} running)", native.running) } else { String::new() };
            let times = if native.count > 1 { format!(" ×{}", native.count) } else { String::new() };
            format!("{}{times}{running}", clean(&native.name))
        };
        let all = process.native.iter().map(text).collect::<Vec<_>>().join(", ");
        match lines.iter_mut().find(|(line, _)| *line == all) {
            Some((_, owners)) => owners.push(ProcessLabel::of(process)),
            None => lines.push((all, vec![ProcessLabel::of(process)])),
        }
    }
    if !lines.is_empty() {
        page.push('\n');
    }
    for (line, owners) in lines {
        let _ = writeln!(page, "{}, threads without Python: {line}", names(&owners));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_agent_are_left_out_unless_a_snippet_runs_there() {
        let frame = |file: &str| StackFrame { file: file.into(), ..StackFrame::default() };
        let thread = |files: &[&str]| ThreadStack {
            name: "probe-snippet".into(),
            frames: files.iter().map(|file| frame(file)).collect(),
            ..ThreadStack::default()
        };
        let agent = "/v/lib/python3.11/site-packages/probe_agent/eval/runner.py";
        let threading = "/usr/lib/python3.11/threading.py";
        assert!(is_ours(&thread(&[threading, agent, threading])));
        assert!(!is_ours(&thread(&["<probe eval 7>", agent, threading])));
    }

    #[test]
    fn a_file_is_shown_from_its_package_on() {
        for (file, shown) in [
            ("/v/lib/python3.11/site-packages/torch/x.py", "torch/x.py"),
            ("/usr/lib/python3.11/threading.py", "threading.py"),
            ("/usr/lib/python3.11/multiprocessing/queues.py", "multiprocessing/queues.py"),
            ("/home/me/train.py", "/home/me/train.py"),
            ("<string>", "<string>"),
        ] {
            assert_eq!(short(file), shown);
        }
    }
}
