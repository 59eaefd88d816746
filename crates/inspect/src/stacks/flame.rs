//! Samples as flame graphs: folded lines, an SVG made of them, and speedscope's JSON.

use std::collections::BTreeMap;
use std::io::Write;

use probe_common::error::{Error, Result};
use probe_proto::v1::{ProcessStacks, StackFrame, StacksAnswer, ThreadStack};
use serde_json::{Value, json};

use super::fold::{ProcessLabel, names};
use super::page::location;

/// Which samples a graph has, and whether it separates ranks.
#[derive(Debug, Clone, Copy, Default)]
pub struct StackChoice {
    /// One tower for each rank, instead of one for all ranks.
    pub by_rank: bool,
    /// Also threads that waited. Main threads are always in the graph, because it is to show where training waits.
    pub idle: bool,
}

impl StackChoice {
    fn takes(self, thread: &ThreadStack) -> bool {
        !thread.frames.is_empty() && (thread.main || thread.running || self.idle)
    }

    /// The outermost frames, which no program has: the process and the thread.
    fn above(self, process: &ProcessStacks, thread: &ThreadStack) -> Vec<String> {
        let rank = self.by_rank.then(|| names(&[ProcessLabel::of(process)]));
        let thread =
            (!thread.main).then(|| format!("thread {}", if thread.name.is_empty() { "?" } else { &thread.name }));
        rank.into_iter().chain(thread).collect()
    }
}

/// The sampled stacks as lines "outer;inner 12", one a stack, in order.
pub fn folded(answer: &StacksAnswer, choice: StackChoice) -> Vec<String> {
    let mut counts = BTreeMap::<String, u64>::new();
    for process in &answer.processes {
        for thread in process.threads.iter().filter(|thread| choice.takes(thread)) {
            let frames = thread.frames.iter().rev().map(label);
            let all: Vec<String> =
                choice.above(process, thread).into_iter().chain(frames).map(|name| name.replace(';', ",")).collect();
            *counts.entry(all.join(";")).or_default() += thread.samples;
        }
    }
    counts.into_iter().map(|(stack, count)| format!("{stack} {count}")).collect()
}

fn label(frame: &StackFrame) -> String {
    format!("{} ({})", frame.function, location(frame)).replace(['\n', '\r'], " ")
}

/// Writes an SVG that a browser can zoom and search.
///
/// # Errors
/// There is nothing to draw, or it can't be written.
pub fn svg(answer: &StacksAnswer, choice: StackChoice, title: &str, out: &mut dyn Write) -> Result<()> {
    draw(&folded(answer, choice), title, "samples", out)
}

fn draw(lines: &[String], title: &str, unit: &str, out: &mut dyn Write) -> Result<()> {
    let mut options = inferno::flamegraph::Options::default();
    options.title = title.to_owned();
    options.count_name = unit.into();
    inferno::flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
        .map_err(|error| Error::failed("the flame graph could not be drawn").because(error))
}

/// Stacks of any kind of frames, outermost first, with their weights.
pub type WeighedStacks = BTreeMap<Vec<String>, u64>;

/// Weighed stacks as lines "outer;inner 12", one a stack, in order.
pub fn fold(stacks: &WeighedStacks) -> Vec<String> {
    let name = |name: &String| name.replace(';', ",").replace(['\n', '\r'], " ");
    let line = |(stack, weight): (&Vec<String>, &u64)| {
        format!("{} {weight}", stack.iter().map(name).collect::<Vec<_>>().join(";"))
    };
    stacks.iter().map(line).collect()
}

/// Writes an SVG of stacks that a browser can zoom and search.
///
/// # Errors
/// There is nothing to draw, or it can't be written.
pub fn svg_of_stacks(stacks: &WeighedStacks, title: &str, unit: &str, out: &mut dyn Write) -> Result<()> {
    draw(&fold(stacks), title, unit, out)
}

/// A file for speedscope.app with one profile of all stacks.
pub fn speedscope_of_stacks(stacks: &WeighedStacks, name: &str, unit: &str) -> Value {
    let mut frames = Vec::<Value>::new();
    let mut indexes = BTreeMap::<&str, usize>::new();
    let (mut samples, mut weights) = (Vec::new(), Vec::new());
    for (stack, weight) in stacks {
        let mut index = |name| {
            *indexes.entry(name).or_insert_with(|| {
                frames.push(json!({ "name": name }));
                frames.len() - 1
            })
        };
        samples.push(stack.iter().map(|name| index(name.as_str())).collect::<Vec<_>>());
        weights.push(*weight);
    }
    let end = weights.iter().sum::<u64>();
    let profile = json!({ "type": "sampled", "name": name, "unit": unit, "startValue": 0, "endValue": end, "samples": samples, "weights": weights });
    speedscope_file(name, &frames, &[profile])
}

fn speedscope_file(name: &str, frames: &[Value], profiles: &[Value]) -> Value {
    json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": format!("probe {}", probe_proto::VERSION),
        "name": name,
        "shared": { "frames": frames },
        "profiles": profiles,
    })
}

/// The process of a thread, where ranks are not merged, and the thread's title.
type ThreadTitle = (Option<ProcessLabel>, String);
/// Stacks as indexes of frames, outermost first, and how often each was seen.
type CountedStacks = (Vec<Vec<usize>>, Vec<u64>);

/// A file for speedscope.app: one profile a rank, or one of all, whose weights are numbers of samples.
pub fn speedscope(answer: &StacksAnswer, choice: StackChoice, name: &str) -> Value {
    let mut frames = Vec::<Value>::new();
    let mut indexes = BTreeMap::<(String, String, Option<u32>), usize>::new();
    let mut profiles = BTreeMap::<ThreadTitle, CountedStacks>::new();
    for process in &answer.processes {
        for thread in process.threads.iter().filter(|thread| choice.takes(thread)) {
            let title = if thread.main { "main thread".to_owned() } else { format!("thread {}", thread.name) };
            let (samples, weights) =
                profiles.entry((choice.by_rank.then(|| ProcessLabel::of(process)), title)).or_default();
            let mut index = |frame: &StackFrame| {
                let key = (frame.function.clone(), frame.file.clone(), frame.line);
                *indexes.entry(key).or_insert_with(|| {
                    frames.push(json!({ "name": frame.function, "file": frame.file, "line": frame.line }));
                    frames.len() - 1
                })
            };
            samples.push(thread.frames.iter().rev().map(&mut index).collect());
            weights.push(thread.samples);
        }
    }
    let profile = |((owner, title), (samples, weights)): (ThreadTitle, CountedStacks)| {
        let name = owner.map_or_else(|| title.clone(), |owner| format!("{}, {title}", names(&[owner])));
        let end = weights.iter().sum::<u64>();
        json!({ "type": "sampled", "name": name, "unit": "none", "startValue": 0, "endValue": end, "samples": samples, "weights": weights })
    };
    let profiles: Vec<Value> = profiles.into_iter().map(profile).collect();
    speedscope_file(name, &frames, &profiles)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> StacksAnswer {
        let frame = |name: &str| StackFrame {
            function: name.into(),
            file: "/t.py".into(),
            line: Some(3),
            ..StackFrame::default()
        };
        let thread = |main, running, samples| ThreadStack {
            name: "T".into(),
            main,
            running,
            samples,
            frames: vec![frame("a;b"), frame("<module>")],
            ..ThreadStack::default()
        };
        let process = |rank| ProcessStacks {
            rank: Some(rank),
            threads: vec![thread(true, false, 5), thread(false, false, 7)],
            ..ProcessStacks::default()
        };
        StacksAnswer { processes: vec![process(0), process(1)], ..StacksAnswer::default() }
    }

    #[test]
    fn ranks_are_merged_or_told_apart() {
        assert_eq!(folded(&answer(), StackChoice::default()), ["<module> (/t.py:3);a,b (/t.py:3) 10"]);
        let apart = folded(&answer(), StackChoice { by_rank: true, idle: true });
        assert_eq!(apart[0], "rank 0;<module> (/t.py:3);a,b (/t.py:3) 5");
        assert_eq!(apart[1], "rank 0;thread T;<module> (/t.py:3);a,b (/t.py:3) 7");
        assert_eq!(apart.len(), 4);
    }

    #[test]
    fn speedscope_weighs_samples() {
        let file = speedscope(&answer(), StackChoice { by_rank: true, idle: false }, "gpt@1");
        assert_eq!(file["shared"]["frames"].as_array().map(Vec::len), Some(2));
        assert_eq!(file["profiles"][1]["name"], "rank 1, main thread");
        assert_eq!(file["profiles"][1]["endValue"], 5);
        assert_eq!(file["profiles"][1]["samples"][0], json!([0, 1]));
    }

    #[test]
    fn an_svg_is_drawn() {
        let mut out = Vec::new();
        svg(&answer(), StackChoice::default(), "gpt@1", &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("<svg") && text.contains("a,b"), "{text}");
    }
}
