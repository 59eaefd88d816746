//! Imports a Kineto or Chrome trace.

use std::path::Path;

use probe_common::error::{Error, Result};
use probe_store::ProcessIdentity;
use probe_store::row_files::RowSink;

use super::capture::{CaptureFacts, CaptureSource, ImportedCapture};
use super::collect::CollectedEvents;
use super::host_processes::{CollectOptions, SelectedProcess};
use super::imported_process;
use super::input::TextInput;
use super::metadata;
use super::row_writer::RangeTable;
use super::rows::ProcessRows;
use super::second_pass;

/// Times above this count from 1970 already (nanoseconds).
const UNIX: i64 = 1_000_000_000_000_000_000;
/// Largest base, so that no sum overflows.
const MAX_BASE: u64 = i64::MAX as u64 / 4;

/// The process that the rows belong to, as far as the file does not say.
pub(crate) enum TraceOrigin<'a> {
    /// A file that a user imports.
    File { run: &'a str, capture: &'a str },
    /// A process of a live run, which wrote the file for us.
    Process {
        identity: &'a ProcessIdentity,
        capture: &'a str,
        /// Bytes of text whose events become rows.
        max_text: u64,
        /// Seconds that training waited for the capture.
        waited: f64,
    },
}

impl TraceOrigin<'_> {
    fn capture(&self) -> &str {
        match self {
            Self::File { capture, .. } | Self::Process { capture, .. } => capture,
        }
    }

    /// The process, and the source of its rank.
    fn identity(&self, collected: &CollectedEvents, path: &Path) -> (ProcessIdentity, &'static str) {
        match self {
            Self::Process { identity, .. } => ((*identity).clone(), "run"),
            Self::File { run, .. } => {
                let metadata = &collected.metadata;
                let (rank, rank_source) = rank(collected, path);
                let identity = imported_process::identity(
                    run,
                    metadata.host.as_deref(),
                    Some(collected.pid),
                    rank,
                    metadata.world_size,
                );
                (identity, rank_source)
            }
        }
    }
}

/// Whether times can count from 1970, and the base to add to them for that.
fn clock(collected: &CollectedEvents) -> (bool, i64) {
    let first = collected.window.map_or(0, |(first, _)| first);
    match collected.metadata.base.filter(|base| base.unsigned_abs() <= MAX_BASE) {
        _ if first > UNIX => (true, 0),
        Some(base) => (true, base),
        None => (false, 0),
    }
}

/// The rank, and the source of that.
fn rank(collected: &CollectedEvents, path: &Path) -> (Option<i32>, &'static str) {
    // A file of several processes has the ranks of all of them.
    let is_alone = !collected.is_part();
    let in_name = || metadata::rank_in_name(path.file_name()?.to_str()?).filter(|_| is_alone);
    let in_metadata = collected.metadata.rank.filter(|_| is_alone);
    match (in_metadata.or_else(|| collected.processes.rank(collected.pid)), in_name()) {
        (Some(rank), _) => (Some(rank), "file"),
        (None, Some(rank)) => (Some(rank), "name"),
        (None, None) => (None, "none"),
    }
}

/// Reads a file that a user imports, and writes its rows.
///
/// # Errors
/// The file is no trace, or rows can't be written.
pub(crate) fn import_file(
    reading: &CaptureSource<'_>,
    files: &mut dyn RowSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<ImportedCapture>> {
    let (path, scratch) = (reading.path, reading.scratch);
    let origin = TraceOrigin::File { run: reading.run, capture: reading.capture };
    let step_range = reading.ranges.steps.as_ref();
    let part = |only| CollectOptions { max_text: u64::MAX, only, step_range };
    let found = read(path, part(None), scratch, progress)?;
    let processes = found.collected.processes.with_operators();
    if processes.len() < 2 {
        return write(found, path, &origin, files, scratch).map(|capture| vec![capture]);
    }
    if found.collected.has_devices {
        let listed: Vec<String> = processes.iter().take(8).map(i32::to_string).collect();
        return Err(Error::failed(format!(
            "cannot import {}: it has operators of {} processes ({}), and nothing says which of them its device activities belong to",
            path.display(),
            processes.len(),
            listed.join(", ")
        ))
        .hint("import the separate traces, one for each process; of a run of probe, probe export --per-rank DIR writes them"));
    }
    drop(found);
    // Threads and steps of different processes have the same numbers, so each process is read by itself.
    let mut captures = Vec::new();
    for pid in &processes {
        let others = processes.iter().copied().filter(|other| other != pid).collect();
        let only = SelectedProcess { pid: *pid, others, is_first: captures.is_empty() };
        let found = read(path, part(Some(only)), scratch, progress)?;
        let origin = TraceOrigin::File { run: reading.run, capture: &format!("{}/{pid}", reading.capture) };
        captures.push(write(found, path, &origin, files, scratch)?);
    }
    Ok(captures)
}

/// Reads a file and writes its rows.
///
/// # Errors
/// The file is no trace, or rows can't be written.
pub(crate) fn import(
    path: &Path,
    origin: &TraceOrigin<'_>,
    files: &mut dyn RowSink,
    scratch: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ImportedCapture> {
    let max_text = match *origin {
        TraceOrigin::File { .. } => u64::MAX,
        TraceOrigin::Process { max_text, .. } => max_text,
    };
    let part = CollectOptions { max_text, only: None, step_range: None };
    let found = read(path, part, scratch, progress)?;
    write(found, path, origin, files, scratch)
}

/// A file after the first pass.
struct FoundEvents {
    collected: CollectedEvents,
    file_bytes: u64,
}

/// Reads a file, or one process of it.
///
/// # Errors
/// The file can't be read, or has no events that are known.
fn read(
    path: &Path,
    part: CollectOptions<'_>,
    scratch: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<FoundEvents> {
    let input = TextInput::open(path)?;
    let (file_bytes, consumed) = (input.file_bytes, input.consumed);
    let mut report = || progress(consumed.load(std::sync::atomic::Ordering::Relaxed), file_bytes);
    let collected = CollectedEvents::read_part(input.text, scratch, part, &mut report)?;
    if collected.is_empty() {
        let why = collected.problem.unwrap_or_else(|| "no event of it is of a kind that is known here".into());
        return Err(Error::failed(format!("{} has no events to import: {why}", path.display())).hint(
            "events are known by their category (cat): those of torch.profiler (cpu_op, user_annotation, kernel …), and those of \
             TensorFlow and JAX; other tools' Chrome JSON is not read",
        ));
    }
    Ok(FoundEvents { collected, file_bytes })
}

fn write(
    FoundEvents { mut collected, file_bytes }: FoundEvents,
    path: &Path,
    origin: &TraceOrigin<'_>,
    files: &mut dyn RowSink,
    scratch: &Path,
) -> Result<ImportedCapture> {
    let waited = match *origin {
        TraceOrigin::File { .. } => None,
        TraceOrigin::Process { waited, .. } => Some(waited),
    };
    let (identity, rank_source) = origin.identity(&collected, path);
    let rank = identity.rank;
    let file = matches!(origin, TraceOrigin::File { .. }).then(|| path.display().to_string());
    let (has_date, base) = clock(&collected);
    let mut rows = ProcessRows::new(files, identity);
    let ranges = (base, RangeTable::Operators);
    let written = second_pass::write(&mut collected, origin.capture(), ranges, scratch, &mut rows)?;
    let facts = CaptureFacts {
        tool: "kineto",
        rank,
        rank_source,
        file,
        file_bytes,
        text_bytes: collected.text_bytes,
        versions: collected.metadata.versions(),
        devices: collected.metadata.devices(),
        has_date,
        cost: collected.overhead.map(|overhead| overhead as f64 / 1e9),
        waited,
        ..written
    };
    let capture = facts.write(origin.capture(), &mut rows)?;
    rows.finish()?;
    Ok(capture)
}
