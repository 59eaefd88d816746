//! The result of importing a file: for the caller, and as a row of `python.captures`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use probe_common::error::Result;
use probe_proto::table::Time;
use probe_proto::tables::captures;

use super::range_patterns::RangePatterns;
use super::rows::ProcessRows;

/// A file to read as one format, and the run of its rows.
pub(crate) struct CaptureSource<'a> {
    pub path: &'a Path,
    /// The run.
    pub run: &'a str,
    /// The file's name in the run.
    pub capture: &'a str,
    /// What the user said about ranges of the program.
    pub ranges: &'a RangePatterns,
    /// A directory for temporary files.
    pub scratch: &'a Path,
}

/// Numbers of rows by table.
#[derive(Debug, Default, Clone, Copy)]
pub struct RowCounts {
    /// Rows of python.operators.
    pub operators: i64,
    /// Rows of gpu.kernels.
    pub kernels: i64,
    /// Rows of gpu.launches.
    pub launches: i64,
    /// Rows of python.frames.
    pub frames: i64,
    /// Rows of python.flight_recorder and python.nccl_inspector.
    pub collectives: i64,
    /// Rows of python.spans.
    pub spans: i64,
    /// Rows of gpu.kernel_metrics.
    pub metrics: i64,
    /// Rows of python.memory_events.
    pub memory_events: i64,
    /// Rows of gpu.memory_blocks.
    pub memory_blocks: i64,
    /// Rows of python.execution_trace.
    pub nodes: i64,
}

impl RowCounts {
    /// The numbers with their names in singular and plural, for messages.
    pub fn named(&self) -> Vec<([&'static str; 2], i64)> {
        vec![
            (["operator", "operators"], self.operators),
            (["device activity", "device activities"], self.kernels),
            (["launch", "launches"], self.launches),
            (["Python frame", "Python frames"], self.frames),
            (["collective operation", "collective operations"], self.collectives),
            (["span", "spans"], self.spans),
            (["kernel metric", "kernel metrics"], self.metrics),
            (["memory event", "memory events"], self.memory_events),
            (["memory block", "memory blocks"], self.memory_blocks),
            (["operator without times", "operators without times"], self.nodes),
        ]
    }
}

/// The result of importing a file.
#[derive(Debug)]
pub struct ImportedCapture {
    /// The capture's name in the run.
    pub name: String,
    /// The rank of the process, where it is known.
    pub rank: Option<i32>,
    /// The begin of the first event (nanoseconds from 1970), where it is known.
    pub began: Option<i64>,
    /// Events read.
    pub events: u64,
    /// Rows that the events became.
    pub rows: RowCounts,
    /// Events that became no row, by reason.
    pub left_out: Vec<(String, u64)>,
    /// Why the file was not read to its end.
    pub problem: Option<String>,
    /// Size of the file's text (bytes).
    pub text_bytes: u64,
}

/// The facts of a file for `python.captures`. A format sets those that it knows.
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
    /// Versions as JSON.
    pub versions: Option<String>,
    pub devices: Option<String>,
    /// Whether times count from 1970.
    pub has_date: bool,
    /// The begin of the first event and the end of the last.
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
    /// Writes the row, and returns the result.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn write(self, name: &str, rows: &mut ProcessRows<'_>) -> Result<ImportedCapture> {
        let reasons = serde_json::to_string(&self.left_out).ok().filter(|_| !self.left_out.is_empty());
        rows.push(|id| captures::Row {
            capture: id(name),
            ts: self.window.map(|(first, _)| Time(first)),
            // In 128 bits: the times of a damaged file may lie further apart than 64 bits count.
            duration: self.window.map(|(first, last)| (i128::from(last) - i128::from(first)) as f64 / 1e9),
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
        Ok(ImportedCapture {
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
