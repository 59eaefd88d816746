//! Traces that other tools made, as rows of a run directory.
//!
//! [`formats`](self) lists the formats and their readers. A trace of torch.profiler ([`kineto`](self)) is read as a
//! stream, and its events are sorted on disk where they are many, so that memory stays bounded whatever the size:
//! [`elements`](self) cuts the text, [`collect`](self) keeps a record of each event, [`join`](self) gives device
//! activities their launches, and [`walk`](self) goes through threads in order of time and writes rows.
//!
//! The crate knows the formats of other tools and the tables that they fill. It knows no agent, no query and no command.

mod blank_records;
mod capture;
mod chrome_events;
mod chrome_planes;
mod collect;
mod device_lines;
mod elements;
mod event;
mod execution_trace;
mod files;
mod flight_recorder;
mod flops;
mod formats;
mod head;
mod host_processes;
mod imported_process;
mod input;
mod join;
mod kinds;
mod kineto;
mod lenient;
mod memory_snapshot;
mod mend;
mod metadata;
mod nccl_inspector;
mod nsight_compute;
mod nsight_systems;
mod number;
mod pickle;
mod python_frame;
mod range_patterns;
mod records;
mod row_writer;
mod rows;
mod second_pass;
mod sorter;
mod step_ranges;
mod steps;
mod tensor_bytes;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
mod text_table;
mod walk;
mod xplane;

use std::path::Path;

use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;
use probe_store::ProcessIdentity;
use probe_store::row_files::{RowFiles, RowSink};

use capture::CaptureSource;
use rows::DiscardingSink;

pub use capture::{ImportedCapture, RowCounts};
pub use files::{FilesToImport, TraceFile, find};
pub use formats::TraceFormat;
pub use range_patterns::{ModuleRange, RangePatterns, StepRange};

/// How far an import is.
#[derive(Debug, Clone, Copy)]
pub struct ImportProgress<'a> {
    /// The file that is being read.
    pub capture: &'a str,
    /// Its number, from 0.
    pub file: usize,
    /// Bytes of it that have been read.
    pub read: u64,
    /// Its size (bytes).
    pub size: u64,
}

/// What came of an import.
#[derive(Debug)]
pub struct ImportResult {
    /// The files that were read.
    pub captures: Vec<ImportedCapture>,
    /// Files that are no traces, and why.
    pub refused: Vec<(TraceFile, Error)>,
}

/// Writes the rows of all `files` to `directory`, as rows of the run called `run`. A file that is no trace is left out, and returned
/// with the reason. `ranges` says what ranges of the program are.
///
/// # Errors
/// No file is a trace, or rows can't be written.
pub fn import(
    files: &[TraceFile],
    run: &str,
    directory: &Path,
    ranges: &RangePatterns,
    progress: &mut dyn FnMut(ImportProgress<'_>),
) -> Result<ImportResult> {
    let mut row_files = RowFiles::new(directory, "import");
    let (mut captures, mut refused) = (Vec::new(), Vec::new());
    for (number, file) in files.iter().enumerate() {
        let reading = CaptureSource { path: &file.path, run, capture: &file.capture, ranges, scratch: directory };
        let mut report =
            |read: u64, size: u64| progress(ImportProgress { capture: &file.capture, file: number, read, size });
        match file.format.import(&reading, &mut row_files, &mut report) {
            Ok(imported) => captures.extend(imported),
            Err(error) => refused.push((file.clone(), error)),
        }
    }
    if captures.is_empty() {
        let first = refused.into_iter().next().map(|(_, error)| error);
        return Err(first.unwrap_or_else(|| Error::failed("there is no trace to import")));
    }
    Ok(ImportResult { captures, refused })
}

/// Writes the rows of a trace, or of a memory snapshot, that the process `identity` of a live run wrote to `path`, as the capture
/// of this name. Events of a trace past `max_text` bytes of its text are counted and become no rows. `waited` is the time that
/// training waited for it (seconds).
///
/// # Errors
/// The file is no trace, or rows can't be written.
pub fn import_of_process(
    path: &Path,
    (capture, identity): (&str, &ProcessIdentity),
    (max_text, waited): (u64, f64),
    rows: &mut dyn RowSink,
) -> Result<ImportedCapture> {
    if pickle::is_pickle(&head::FileHead::read(path)?.bytes) {
        let origin = memory_snapshot::SnapshotOrigin::Process { identity, capture, waited };
        return memory_snapshot::import(path, &origin, rows, &mut |_, _| ());
    }
    let scratch = path.parent().unwrap_or(Path::new("."));
    let origin = kineto::TraceOrigin::Process { identity, capture, max_text, waited };
    kineto::import(path, &origin, rows, scratch, &mut |_, _| ())
}

/// Reads `text` as the text of a trace, and counts the events that became records: for `fuzz/` and tests.
///
/// # Errors
/// Records can't be written to `directory`.
#[doc(hidden)]
pub fn read(text: &[u8], directory: &Path) -> Result<u64> {
    let collected = collect::CollectedEvents::read(text, directory, u64::MAX, &mut || ())?;
    let left_out: u64 = collected.left_out.values().sum();
    Ok(collected.events.saturating_sub(left_out))
}

/// Reads `bytes` as a dump of the Flight Recorder: for `fuzz/` and tests.
///
/// # Errors
/// The reason why `bytes` are no dump.
#[doc(hidden)]
pub fn read_flight_recorder(bytes: &[u8]) -> Result<(), String> {
    flight_recorder::parse(bytes.to_vec()).map(|_| ())
}

/// Reads `bytes` as a memory snapshot: for `fuzz/` and tests.
///
/// # Errors
/// The reason why `bytes` are no memory snapshot.
#[doc(hidden)]
pub fn read_memory_snapshot(bytes: &[u8]) -> Result<(), String> {
    let mut nothing = || ();
    let mut history = memory_snapshot::AllocatorHistory::new(&mut nothing);
    let read = memory_snapshot::read(bytes, &mut history)?;
    memory_snapshot::parse(&read).map(|_| ())
}

/// Reads `bytes` as an XPlane trace, and counts its events and those that became no record: for `fuzz/` and tests.
///
/// # Errors
/// Records can't be written to `directory`.
#[doc(hidden)]
pub fn read_planes(bytes: &[u8], directory: &Path) -> Result<(u64, u64)> {
    let (collected, _) = xplane::read(std::io::Cursor::new(bytes), (directory, None), &mut |_| ())?;
    Ok((collected.events, collected.left_out.values().sum()))
}

/// Reads `text` as a page of Nsight Compute, and counts its records and the rows that they became: for `fuzz/` and tests.
///
/// # Errors
/// It can't be unpacked.
#[doc(hidden)]
pub fn read_page(text: &[u8]) -> Result<(u64, u64)> {
    nsight_compute::read(text)
}

/// Reads `bytes` as an export of Nsight Systems, by a file in `directory`, and counts its events: for `fuzz/` and tests.
///
/// # Errors
/// The bytes are no export, or files can't be written to `directory`.
#[doc(hidden)]
pub fn read_nsight_systems(bytes: &[u8], directory: &Path) -> Result<u64> {
    as_file(bytes, directory, nsight_systems::NAME, |reading| {
        nsight_systems::import(reading, &mut DiscardingSink, &mut |_, _| ())
    })
}

/// Reads `bytes` as an execution trace of PyTorch, by a file in `directory`, and counts its nodes: for `fuzz/` and tests.
///
/// # Errors
/// The bytes are no execution trace, or files can't be written to `directory`.
#[doc(hidden)]
pub fn read_execution_trace(bytes: &[u8], directory: &Path) -> Result<u64> {
    as_file(bytes, directory, execution_trace::NAME, |reading| {
        execution_trace::import(reading, &mut DiscardingSink, &mut |_, _| ()).map(|capture| vec![capture])
    })
}

/// Reads `bytes` as a dump of NCCL's inspector, by a file in `directory`, and counts its objects: for `fuzz/` and tests.
///
/// # Errors
/// The bytes are no dump, or files can't be written to `directory`.
#[doc(hidden)]
pub fn read_nccl_inspector(bytes: &[u8], directory: &Path) -> Result<u64> {
    as_file(bytes, directory, nccl_inspector::NAME, |reading| {
        nccl_inspector::import(reading, &mut DiscardingSink, &mut |_, _| ())
    })
}

/// Imports `bytes` of a format by a file in `directory`, and counts the events of its captures.
fn as_file(
    bytes: &[u8],
    directory: &Path,
    format: &str,
    import: impl FnOnce(&CaptureSource<'_>) -> Result<Vec<ImportedCapture>>,
) -> Result<u64> {
    let path = directory.join(format!("probe-{}.{format}", std::process::id()));
    std::fs::write(&path, bytes).map_err(|error| io_error_at(&path, error))?;
    let ranges = RangePatterns::default();
    let reading = CaptureSource { path: &path, run: "run@1", capture: "capture", ranges: &ranges, scratch: directory };
    let captures = import(&reading);
    let removed = std::fs::remove_file(&path).map_err(|error| io_error_at(&path, error));
    let events = captures?.iter().map(|capture| capture.events).sum();
    removed.map(|()| events)
}
