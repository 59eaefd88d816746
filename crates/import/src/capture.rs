//! What came of a file: for whoever imports it, and as its row of `python.captures`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use probe_common::error::Result;
use probe_proto::table::Time;
use probe_proto::tables::captures;

use super::rows::ProcessRows;
use super::step_range::StepRange;

/// A file to read as one format, and whose its rows are.
pub(crate) struct Reading<'a> {
    pub path: &'a Path,
    /// The run.
    pub run: &'a str,
    /// What the file is called in the run.
    pub capture: &'a str,
    /// Which ranges of the program are steps, where somebody says so.
    pub step_range: Option<&'a StepRange>,
    /// Where temporary files may be written.
    pub scratch: &'a Path,
}

/// Rows by kind.
#[derive(Debug, Default, Clone, Copy)]
pub struct RowCounts {
    /// Of python.operators.
    pub operators: i64,
    /// Of gpu.kernels.
    pub kernels: i64,
    /// Of gpu.launches.
    pub launches: i64,
    /// Of python.frames.
    pub frames: i64,
    /// Of python.flight_recorder and python.nccl_inspector.
    pub collectives: i64,
    /// Of python.spans.
    pub spans: i64,
    /// Of gpu.kernel_metrics.
    pub metrics: i64,
    /// Of python.memory_events.
    pub memory_events: i64,
    /// Of gpu.memory_blocks.
    pub memory_blocks: i64,
    /// Of python.execution_trace.
    pub nodes: i64,
}

impl RowCounts {
    /// Each with what it is called where a person reads it.
    pub fn named(&self) -> Vec<(&'static str, i64)> {
        vec![
            ("operators", self.operators),
            ("device activities", self.kernels),
            ("launches", self.launches),
            ("Python frames", self.frames),
            ("collective operations", self.collectives),
            ("spans", self.spans),
            ("kernel metrics", self.metrics),
            ("memory events", self.memory_events),
            ("memory blocks", self.memory_blocks),
            ("operators without times", self.nodes),
        ]
    }
}

/// What came of a file.
#[derive(Debug)]
pub struct Capture {
    /// Its name in the run.
    pub name: String,
    /// The rank of its process, where it is known.
    pub rank: Option<i32>,
    /// When its first event began (nanoseconds from 1970), where that is known.
    pub began: Option<i64>,
    /// Events read.
    pub events: u64,
    /// Rows that they became.
    pub rows: RowCounts,
    /// Events that became no row, by reason.
    pub left_out: Vec<(String, u64)>,
    /// Why the file was not read to its end.
    pub problem: Option<String>,
    /// Size of its text (bytes).
    pub text_bytes: u64,
}

/// All that `python.captures` says of a file. A format sets what it knows.
#[derive(Debug, Default)]
pub(crate) struct CaptureFacts {
    /// The format's name.
    pub tool: &'static str,
    pub rank: Option<i32>,
    /// `run`, `file`, `name` or `none`.
    pub rank_source: &'static str,
    /// The file that was imported; None for a trace of a live run.
    pub file: Option<String>,
    pub file_bytes: u64,
    pub text_bytes: u64,
    /// In JSON.
    pub versions: Option<String>,
    pub devices: Option<String>,
    /// Times are from 1970.
    pub has_date: bool,
    /// When the first event began and the last ended.
    pub window: Option<(i64, i64)>,
    pub steps: i64,
    pub first_step: Option<i64>,
    pub last_step: Option<i64>,
    pub events: u64,
    pub rows: RowCounts,
    pub without_launch: i64,
    /// Events that became no row, by reason.
    pub left_out: BTreeMap<Cow<'static, str>, u64>,
    pub mended: u64,
    pub problem: Option<String>,
    /// Seconds.
    pub cost: Option<f64>,
    /// Seconds.
    pub waited: Option<f64>,
}

impl CaptureFacts {
    /// Adds the row, and sums up.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn write(self, name: &str, rows: &mut ProcessRows<'_>) -> Result<Capture> {
        let reasons = serde_json::to_string(&self.left_out).ok().filter(|_| !self.left_out.is_empty());
        rows.push(|id| captures::Row {
            capture: id(name),
            ts: self.window.map(|(first, _)| Time(first)),
            duration: self.window.map(|(first, last)| (last - first) as f64 / 1e9),
            tool: id(self.tool),
            file: self.file.as_deref().map(&mut *id),
            file_bytes: self.file_bytes as i64,
            text_bytes: self.text_bytes as i64,
            versions: self.versions.as_deref().map(&mut *id),
            devices: self.devices.as_deref().map(&mut *id),
            clock: id(match (self.window, self.has_date) {
                (None, _) => "none",
                (Some(_), true) => "unix",
                (Some(_), false) => "relative",
            }),
            rank_source: id(self.rank_source),
            steps: self.steps,
            first_step: self.first_step,
            last_step: self.last_step,
            events: self.events as i64,
            operators: self.rows.operators,
            kernels: self.rows.kernels,
            launches: self.rows.launches,
            frames: self.rows.frames,
            metrics: self.rows.metrics,
            spans: self.rows.spans,
            memory_events: self.rows.memory_events,
            memory_blocks: self.rows.memory_blocks,
            nodes: self.rows.nodes,
            without_launch: self.without_launch,
            left_out: self.left_out.values().sum::<u64>() as i64,
            reasons: reasons.as_deref().map(&mut *id),
            mended: self.mended as i64,
            complete: self.problem.is_none(),
            problem: self.problem.as_deref().map(&mut *id),
            cost: self.cost,
            waited: self.waited,
        })?;
        Ok(Capture {
            name: name.to_owned(),
            rank: self.rank,
            began: self.window.filter(|_| self.has_date).map(|(first, _)| first),
            events: self.events,
            rows: self.rows,
            left_out: self.left_out.into_iter().map(|(reason, events)| (reason.into_owned(), events)).collect(),
            problem: self.problem,
            text_bytes: self.text_bytes,
        })
    }
}
