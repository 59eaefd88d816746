//! The progress of a capture, on a line of a terminal.

use std::collections::BTreeMap;

use probe_proto::v1::{CaptureBegan, CaptureProgress};

use crate::cli::progress_line::ProgressLine;
use crate::cli::report;

/// The progress of each process.
pub(super) struct ShownProgress {
    steps: u32,
    line: ProgressLine,
    done: BTreeMap<(Option<i32>, u32), (u32, bool)>,
}

impl ShownProgress {
    pub(super) fn new(steps: u32) -> Self {
        Self { steps, line: ProgressLine::new(), done: BTreeMap::new() }
    }

    pub(super) fn begin(&mut self, began: &CaptureBegan) {
        self.done.extend(began.processes.iter().map(|process| ((process.rank, process.pid), (0, false))));
        let processes = if began.processes.len() == 1 { "process" } else { "processes" };
        let (first, count) = (began.step, began.processes.len());
        report::note(format_args!("{} begins at step {first} in {count} {processes}", began.capture));
        self.draw();
    }

    pub(super) fn show(&mut self, progress: &CaptureProgress) {
        self.done.insert((progress.rank, progress.pid), (progress.steps, progress.reading));
        self.draw();
    }

    fn draw(&mut self) {
        let least = self.done.values().map(|(steps, _)| *steps).min().unwrap_or_default();
        let line = match self.done.values().all(|(_, reading)| *reading) {
            true => "reading the traces".to_owned(),
            false if least >= self.steps => "writing the traces".to_owned(),
            false => format!("{least} of {} steps", self.steps),
        };
        self.line.show_now(line);
    }

    pub(super) fn clear(&self) {
        self.line.clear();
    }
}
