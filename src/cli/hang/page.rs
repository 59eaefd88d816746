//! The verdict as a page for people: a sentence, and a line a rank.

use std::fmt::Write;

use probe_collector::hang_sentences::seconds;
use probe_inspect::stacks::fold::{ProcessLabel, names};
use probe_inspect::stacks::page::{local_time, location};
use probe_proto::v1::{HangAnswer, RankState};
use unicode_width::UnicodeWidthStr;

use crate::shared_steps::SharedSteps;

/// The whole page, for the run or process called `name`. If it is not live, that is what the collector noticed before it ended.
pub(crate) fn page(answer: &HangAnswer, shared: &SharedSteps, name: &str, is_live: bool) -> String {
    let mut page = format!("{name}: {}\n", answer.verdict);
    if !is_live {
        let _ = writeln!(page, "The collector noticed this at {}, before the run ended.", local_time(answer.unix_ns));
    }
    page.push('\n');
    if answer.ranks.is_empty() {
        return page;
    }
    let head = ["", "steps", "last step", "waits in", "is in"].map(str::to_owned);
    let mut rows = vec![head];
    rows.extend(answer.ranks.iter().map(|rank| row(rank, shared)));
    let mut widths = [0; 5];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell}{}  ", " ".repeat(width - cell.width()));
        }
        let _ = writeln!(page, "{}", line.trim_end());
    }
    if let Some(unknown) = shared.not_shared() {
        let _ = writeln!(page, "\n{unknown}");
    }
    for (number, state) in answer.ranks.iter().filter(|state| !state.flight_recorder.is_empty()).enumerate() {
        let heading =
            if number == 0 { "\nNot finished, by PyTorch's Flight Recorder and its own numbers:\n" } else { "" };
        let _ = writeln!(page, "{heading}{}  {}", names(&[owner(state)]), state.flight_recorder);
    }
    if answer.capture > 0 {
        let _ = writeln!(
            page,
            "\nprobe {name} stack shows all threads; python.stacks has these as capture {}",
            answer.capture
        );
    }
    page
}

fn owner(state: &RankState) -> ProcessLabel {
    state.rank.map_or(ProcessLabel::Pid(state.pid), ProcessLabel::Rank)
}

fn row(state: &RankState, shared: &SharedSteps) -> [String; 5] {
    let usual = state.step_s.map(|usual| format!(" (usually {})", usual_step(usual))).unwrap_or_default();
    let mut at = match &state.frame {
        Some(frame) => format!("{} {}", frame.function, location(frame)),
        None if state.problem.is_empty() => "no Python of yours".into(),
        None => state.problem.clone(),
    };
    let mut remarks = Vec::new();
    if state.gil {
        remarks.push("holds the GIL".to_owned());
    }
    if state.moving {
        remarks.push("moves".into());
    }
    if state.running {
        remarks.push("running".into());
    }
    if !state.waits_for.is_empty() {
        remarks.push(format!("waiting: {}", state.waits_for));
    }
    if !remarks.is_empty() {
        let _ = write!(at, " · {}", remarks.join(" · "));
    }
    [
        names(&[owner(state)]),
        shared.count(state).map_or_else(|| format!("{} of its own", state.step), |step| step.to_string()),
        state.step_ago_s.map_or_else(|| "-".to_owned(), |ago| format!("{} ago{usual}", seconds(ago))),
        if state.operation.is_empty() { "-".into() } else { state.operation.clone() },
        at,
    ]
}

fn usual_step(duration: f64) -> String {
    if duration < 1.0 { format!("{:.0} ms", duration * 1e3) } else { seconds(duration) }
}
