//! XPlane, the traces of TensorFlow, JAX and torch_xla (`*.xplane.pb`), as rows of the tables that captures have.
//!
//! A file has a plane for each device and one for the host, whose names come after the events that use them: a plane is read
//! twice, and only the names of its events are kept.

pub(crate) mod event_stats;
pub(crate) mod events;
pub(crate) mod lines;
mod message;
mod names;
mod plane;
mod space;
mod wire;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;
use probe_store::row_files::RowSink;

use super::capture::{CaptureFacts, CaptureSource, ImportedCapture};
use super::collect::{CollectedEvents, TEXT_REFUSED};
use super::imported_process;
use super::input::TextInput;
use super::metadata::rank_in_name;
use super::range_patterns::StepRange;
use super::row_writer::RangeTable;
use super::rows::ProcessRows;
use super::second_pass;
use super::step_ranges::StepRanges;
use message::Fields;
use plane::PlaneReader;
use space::XSpace;

/// The format's name in `--format` and `python.captures`.
pub(crate) const NAME: &str = "xplane";

/// Times above this count from 1970 already (nanoseconds).
const UNIX: i64 = 1_000_000_000_000_000_000;

/// Whether a file with this beginning is a trace: a list of planes, of which the first has a name.
pub(crate) fn recognises(head: &[u8]) -> bool {
    // Only the beginning of the plane was read, so that its length is larger than the rest.
    let Some((b'\n', rest)) = head.split_first() else { return false };
    let Some(begin) = rest.iter().take(10).position(|byte| *byte < 0x80) else { return false };
    let mut fields = Fields::of(&rest[begin + 1..]);
    let name = fields.find_map(|(number, value)| (number == 2).then(|| value.bytes()).flatten());
    name.is_some_and(|name| {
        [&b"/host:"[..], b"/device:", b"Task Environment"].iter().any(|start| name.starts_with(start))
    })
}

/// Reads a file and writes its rows.
///
/// # Errors
/// The file is no trace with events, or rows can't be written.
pub(crate) fn import(
    reading: &CaptureSource<'_>,
    files: &mut dyn RowSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ImportedCapture> {
    let (file, file_bytes) = open(reading.path, reading.scratch)?;
    let text_bytes = file.metadata().map_err(|error| io_error_at(reading.path, error))?.len();
    let mut report = |at: u64| {
        progress((at as f64 / text_bytes.max(1) as f64 * file_bytes as f64) as u64, file_bytes);
    };
    let (mut collected, space) = read(file, (reading.scratch, reading.ranges.steps.as_ref()), &mut report)?;
    if collected.is_empty() {
        let why = collected.problem.unwrap_or_else(|| "no plane of it has events of a kind that is known here".into());
        return Err(Error::failed(format!("{} has no events to import: {why}", reading.path.display()))
            .hint("the profilers of TensorFlow, JAX and torch_xla write *.xplane.pb below plugins/profile"));
    }
    let first = collected.window.map_or(0, |(first, _)| first);
    let (has_date, base) = match space.began {
        _ if first > UNIX => (true, 0),
        Some(began) => (true, began),
        None => (false, 0),
    };
    // Files have the name of their host, and the 3 of worker-3 there is no rank.
    let name = reading.path.file_name().and_then(|name| name.to_str()).filter(|name| name.contains("rank"));
    let rank = name.and_then(rank_in_name);
    let identity = imported_process::identity(reading.run, space.host.as_deref(), None, rank, None);
    let mut rows = ProcessRows::new(files, identity);
    let written =
        second_pass::write(&mut collected, reading.capture, (base, RangeTable::Operators), reading.scratch, &mut rows)?;
    let facts = CaptureFacts {
        tool: NAME,
        rank,
        rank_source: if rank.is_some() { "name" } else { "none" },
        file: Some(reading.path.display().to_string()),
        file_bytes,
        text_bytes,
        devices: space.devices(),
        has_date,
        ..written
    };
    let capture = facts.write(reading.capture, &mut rows)?;
    rows.finish()?;
    Ok(capture)
}

/// Opens the file, unpacked into `scratch` where it is packed; its size is that before unpacking.
fn open(path: &Path, scratch: &Path) -> Result<(File, u64)> {
    let failed = |error: std::io::Error| Error::failed(format!("cannot read {}", path.display())).because(error);
    let mut input = TextInput::open(path)?;
    if !input.packed {
        return Ok((File::open(path).map_err(failed)?, input.file_bytes));
    }
    let unpacked = |error: std::io::Error| io_error_at(scratch, error);
    let mut file = tempfile::tempfile_in(scratch).map_err(unpacked)?;
    // The part of a damaged file before the damage is kept.
    let copied = std::io::copy(&mut input.text, &mut file);
    file.flush().map_err(unpacked)?;
    if file.metadata().map_err(unpacked)?.len() == 0 {
        copied.map_err(failed)?;
    }
    file.seek(SeekFrom::Start(0)).map_err(unpacked)?;
    Ok((file, input.file_bytes))
}

/// Reads all planes.
///
/// # Errors
/// Records can't be written.
pub(crate) fn read(
    file: impl Read + Seek,
    (scratch, step_range): (&Path, Option<&StepRange>),
    progress: &mut dyn FnMut(u64),
) -> Result<(CollectedEvents, XSpace)> {
    let collected = CollectedEvents::empty(scratch);
    let steps = step_range.map(|pattern| StepRanges::new(Some(pattern)));
    let (mut collected, space) = PlaneReader::new(file, collected, steps, progress).read()?;
    collected.finish_planes()?;
    collected.steps.sort_unstable();
    if collected.texts.refused > 0 {
        collected.leave_out(TEXT_REFUSED, collected.texts.refused);
    }
    Ok((collected, space))
}
