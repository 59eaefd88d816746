//! Puts samples into `python.stack_samples`.

use std::sync::{Arc, Mutex, PoisonError};

use probe_inspect::stacks::main_thread::MainThread;
use probe_inspect::stacks::part;
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Time;
use probe_proto::tables::stack_samples;
use probe_proto::v1::StackFrame;
use probe_store::ProcessIdentity;

use super::pace::SampleReason;
use crate::self_ingest::SelfIngest;

/// A sample of a process.
#[derive(Debug)]
pub(super) struct StackSample {
    pub(super) identity: Arc<ProcessIdentity>,
    pub(super) unix_ns: i64,
    pub(super) step: i64,
    pub(super) kind: SampleReason,
    pub(super) elapsed: Option<f64>,
    pub(super) main: MainThread,
}

/// Collects samples, so that rows are kept once a second, and not one by one.
#[derive(Debug)]
pub(super) struct StackSamples {
    table: SelfIngest,
    /// Samples that are not rows yet; None when the run is being written, and no more rows are taken.
    waiting: Mutex<Option<Vec<StackSample>>>,
}

impl StackSamples {
    pub(super) fn new(table: SelfIngest) -> Self {
        Self { table, waiting: Mutex::new(Some(Vec::new())) }
    }

    pub(super) fn add(&self, sample: StackSample) {
        if let Some(waiting) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            waiting.push(sample);
        }
    }

    /// Makes rows of the samples that wait.
    pub(super) fn store_waiting(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = waiting.as_mut().map(std::mem::take).unwrap_or_default();
        self.rows_of(&samples);
    }

    /// Makes rows of the samples that wait, and drops those that come later.
    pub(super) fn finish(&self) {
        let samples = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        self.rows_of(&samples);
    }

    fn rows_of(&self, samples: &[StackSample]) {
        let mut left: Vec<&StackSample> = samples.iter().collect();
        while let Some(first) = left.first() {
            let identity = Arc::clone(&first.identity);
            let (these, others) = left.into_iter().partition(|sample| sample.identity == identity);
            let these: Vec<&StackSample> = these;
            left = others;
            let result = self.table.store_rows(&identity, |rows, texts| {
                these.iter().for_each(|sample| sample.push(rows, texts));
            });
            if let Err(error) = result {
                tracing::warn!("python.stack_samples: {error}");
            }
        }
    }
}

impl StackSample {
    fn push(&self, rows: &mut BatchBuilder, texts: &mut StringTable) {
        let Self { main, .. } = self;
        let line =
            |frame: Option<&StackFrame>| frame.and_then(|frame| frame.line).and_then(|line| i32::try_from(line).ok());
        let (user, library, holder) = (main.user_frame(), main.library_frame(), main.holder_frame());
        let mut text = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(|text| texts.id(text));
        let mut function = |frame: Option<&StackFrame>| text(frame.map(|frame| frame.function.as_str()));
        let functions = [function(user), function(library), function(holder)];
        let mut file = |frame: Option<&StackFrame>| text(frame.map(|frame| frame.file.as_str()));
        let files = [file(user), file(library), file(holder)];
        let gil_thread = text(main.gil_holder.as_ref().map(|thread| thread.name.as_str()));
        rows.push(stack_samples::Row {
            ts: Time(self.unix_ns),
            step: self.step,
            kind: texts.id(self.kind.as_str()),
            elapsed: self.elapsed,
            part: texts.id(part(&main.thread.frames).as_str()),
            function: functions[0],
            file: files[0],
            line: line(user),
            library_function: functions[1],
            library_file: files[1],
            library_line: line(library),
            running: main.thread.running,
            gil: main.thread.gil,
            gil_elsewhere: main.gil_holder.is_some(),
            gil_thread,
            gil_function: functions[2],
            gil_file: files[2],
            gil_line: line(holder),
        });
    }
}
