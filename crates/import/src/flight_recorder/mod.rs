//! Dumps of PyTorch's Flight Recorder, as the watchdog writes them (`TORCH_FR_DUMP_TEMP_FILE`) and as
//! `torch._C._distributed_c10d` returns them: pickle and JSON.

mod dump;
mod groups;
mod operation;
mod rows;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use probe_common::error::{Error, Result};
use probe_store::row_files::RowSink;

use super::capture::{CaptureFacts, CaptureSource, ImportedCapture, RowCounts};
use super::head::FileHead;
use super::imported_process;
use super::input::TextInput;
use super::pickle::{self, PickleLimits};
use super::rows::ProcessRows;
use dump::FlightDump;
use groups::DumpedGroups;

/// Largest dump, unpacked (bytes). An operation takes two KiB with its stack.
const MAX_BYTES: usize = 64 << 20;

/// Whether a file with this beginning is a dump.
pub(crate) fn is_dump(head: &FileHead) -> bool {
    let says = |word: &str| memchr::memmem::find(&head.bytes, word.as_bytes()).is_some();
    if head.is_json() {
        let about = head.has_key("pg_config") || head.has_key("pg_status");
        return about || head.has_key("entries") && says("\"collective_seq_id\"");
    }
    pickle::is_pickle(&head.bytes) && (says("pg_config") || says("collective_seq_id"))
}

/// Reads a dump and writes its rows.
///
/// # Errors
/// The file is no dump or past a bound, or rows can't be written.
pub(crate) fn import_file(
    reading: &CaptureSource<'_>,
    files: &mut dyn RowSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ImportedCapture> {
    let failed = |what: String| {
        Error::failed(format!("cannot import {} as a Flight Recorder dump: {what}", reading.path.display()))
    };
    let input = TextInput::open(reading.path)?;
    let file_bytes = input.file_bytes;
    let mut bytes = Vec::new();
    input.text.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    progress(file_bytes, file_bytes);
    if bytes.len() > MAX_BYTES {
        return Err(failed(format!("it has more than {MAX_BYTES} bytes")));
    }
    let text_bytes = bytes.len() as u64;
    let (dump, problem) = parse(bytes).map_err(failed)?;
    write(reading, dump, problem, (file_bytes, text_bytes), files)
}

/// The dump in a file's bytes, and why it is not whole: a process that is killed while it writes its dump leaves a part of it.
pub(crate) fn parse(bytes: Vec<u8>) -> Result<(FlightDump, Option<String>), String> {
    let (dump, problem) = if pickle::is_pickle(&bytes) {
        let read = pickle::read_as_far(&bytes[..], PickleLimits::WHOLE, &mut ());
        let is_code = read.stopped.as_ref().is_some_and(|stopped| stopped.is_code);
        let problem = read.problem();
        let dump: Result<FlightDump, String> = read.pickle.parse().map_err(|error| error.to_string());
        match (dump, problem) {
            (_, Some(problem)) if is_code => return Err(problem),
            (Ok(dump), problem) => (dump, problem),
            (Err(mismatch), problem) => return Err(problem.unwrap_or(mismatch)),
        }
    } else {
        (serde_json::from_slice::<FlightDump>(&bytes).map_err(|error| error.to_string())?, None)
    };
    if dump.version.is_none() || dump.entries.is_none() && dump.pg_config.is_none() && dump.pg_status.is_none() {
        return Err(problem.unwrap_or_else(|| "it has no version, or neither entries nor process groups".into()));
    }
    Ok((dump, problem))
}

fn write(
    reading: &CaptureSource<'_>,
    mut dump: FlightDump,
    problem: Option<String>,
    (file_bytes, text_bytes): (u64, u64),
    files: &mut dyn RowSink,
) -> Result<ImportedCapture> {
    let rank = rank_in_name(reading.path);
    let mut left_out = BTreeMap::new();
    let operations =
        dump.entries.take().map_or_else(Vec::new, |entries| operation::read_operations(entries, &mut left_out));
    let groups = DumpedGroups::new(&dump, &operations, &mut left_out);
    let identity = imported_process::identity(reading.run, None, None, rank, groups.world_size());
    let mut rows = ProcessRows::new(files, identity);
    for operation in &operations {
        rows::push_operation(operation, reading.capture, &mut rows)?;
    }
    for group in groups.iter() {
        rows::push_group(group, reading.capture, &mut rows)?;
    }
    let facts = CaptureFacts {
        tool: "flight-recorder",
        rank,
        rank_source: if rank.is_some() { "name" } else { "none" },
        file: Some(reading.path.display().to_string()),
        file_bytes,
        text_bytes,
        versions: dump.versions(),
        has_date: true,
        window: operation::window(&operations),
        events: operations.len() as u64 + left_out.values().sum::<u64>(),
        rows: RowCounts { collectives: operations.len() as i64, ..RowCounts::default() },
        left_out,
        problem,
        ..CaptureFacts::default()
    };
    let capture = facts.write(reading.capture, &mut rows)?;
    rows.finish()?;
    Ok(capture)
}

/// The rank that torch puts at the end of a dump's name: `nccl_trace_rank_3`, `_dump_3`, `dump3.json`.
fn rank_in_name(path: &Path) -> Option<i32> {
    let mut name = path.file_name()?.to_str()?;
    for ending in [".gz", ".json", ".pickle", ".pkl"] {
        name = name.strip_suffix(ending).unwrap_or(name);
    }
    let digits = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    name[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{parse, rank_in_name};

    #[test]
    fn a_rank_is_at_the_end_of_the_name() {
        for (name, rank) in [
            ("_dump_12", Some(12)),
            ("/tmp/nccl_trace_rank_0", Some(0)),
            ("fr7.json.gz", Some(7)),
            ("dump.pickle", None),
            ("dump_99999999999", None),
        ] {
            assert_eq!(rank_in_name(Path::new(name)), rank, "{name}");
        }
    }

    #[test]
    fn operations_past_the_bound_are_counted() {
        // One empty dict, named 200000 times: what takes two bytes in the file takes hundreds in memory.
        let begin = b"\x80\x02}X\x07\x00\x00\x00versionX\x01\x00\x00\x002sX\x07\x00\x00\x00entries](}q\x01";
        let pickle = [begin.to_vec(), b"h\x01".repeat(200_000), b"es.".to_vec()].concat();
        let entries =
            parse(pickle).ok().and_then(|(dump, _)| dump.entries).map(|entries| (entries.items.len(), entries.more));
        assert_eq!(entries, Some((1 << 17, 200_001 - (1 << 17))));
    }
}
