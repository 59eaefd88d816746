//! Dumps of NCCL's inspector, a plugin of its profiler: JSON objects one after another, each of a finished operation.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::Ordering;

use probe_common::error::{Error, Result};
use probe_proto::table::Time;
use probe_proto::tables::nccl_inspector;
use probe_store::row_files::RowSink;
use serde_json::Value;

use super::capture::{CaptureFacts, CaptureSource, ImportedCapture, RowCounts};
use super::elements::{ElementReader, JsonElement};
use super::head::FileHead;
use super::imported_process;
use super::input::TextInput;
use super::metadata::rank_in_name;
use super::rows::ProcessRows;

/// The format's name in `--format` and `python.captures`.
pub(crate) const NAME: &str = "nccl-inspector";

/// Objects between two reports of progress.
const REPORT: u64 = 1024;
/// Longest text that is kept of a value (bytes).
const MAX_TEXT: usize = 1 << 10;

/// Whether a file with this beginning is a dump.
pub(crate) fn recognises(head: &FileHead) -> bool {
    head.is_json() && head.has_key("header") && (head.has_key("coll_perf") || head.has_key("p2p_perf"))
}

/// Most processes of a file; further ones are counted.
const MAX_PROCESSES: usize = 64;

/// The process that wrote a dump.
#[derive(Debug, Clone, PartialEq)]
struct DumpingProcess {
    host: String,
    pid: i32,
}

/// The result of reading the objects of one process.
#[derive(Default)]
struct ProcessObjects {
    left_out: BTreeMap<Cow<'static, str>, u64>,
    problem: Option<String>,
    text_bytes: u64,
}

/// Reads a dump and writes its rows, with a capture for each process.
///
/// # Errors
/// The file is no dump, or rows can't be written.
pub(crate) fn import(
    reading: &CaptureSource<'_>,
    files: &mut dyn RowSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<ImportedCapture>> {
    // A file belongs to one process, unless dumps were put together: then it is read once more for each process.
    let mut processes = Vec::new();
    let found = read(reading, progress, &mut |operation| {
        if !processes.contains(&operation.process) && processes.len() < MAX_PROCESSES {
            processes.push(operation.process.clone());
        }
        Ok(())
    })?;
    if processes.is_empty() {
        let why = found.problem.unwrap_or_else(|| "no finished operation is in it".into());
        return Err(Error::failed(format!("{} has no operations to import: {why}", reading.path.display()))
            .hint("NCCL's inspector writes them to the directory in NCCL_INSPECTOR_DUMP_DIR"));
    }
    let mut captures = Vec::new();
    for process in &processes {
        let name = match processes.len() {
            1 => reading.capture.to_owned(),
            _ => format!("{}/{}/{}", reading.capture, process.host, process.pid),
        };
        captures.push(import_process(reading, (process, &processes, &name), files, progress)?);
    }
    Ok(captures)
}

/// Imports one process. The first also gets the counts of the whole file.
fn import_process(
    reading: &CaptureSource<'_>,
    (process, processes, name): (&DumpingProcess, &[DumpingProcess], &str),
    files: &mut dyn RowSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ImportedCapture> {
    let rank = reading.path.file_name().and_then(|name| rank_in_name(name.to_str()?));
    let identity = imported_process::identity(reading.run, Some(&process.host), Some(process.pid), rank, None);
    let mut rows = ProcessRows::new(files, identity);
    let (mut operations, mut past, mut window) = (0_i64, 0, None::<(i64, i64)>);
    let mut found = read(reading, progress, &mut |operation| {
        if operation.process != *process {
            past += u64::from(!processes.contains(&operation.process));
            return Ok(());
        }
        operations += 1;
        let began = operation.began.unwrap_or(operation.dumped);
        let window = window.get_or_insert((began, operation.dumped));
        *window = (window.0.min(began), window.1.max(operation.dumped));
        operation.push(name, &mut rows)
    })?;
    if past > 0 {
        found.left_out.insert("past the number of processes".into(), past);
    }
    if processes.first() != Some(process) {
        found.left_out.clear();
    }
    let facts = CaptureFacts {
        tool: NAME,
        rank,
        rank_source: if rank.is_some() { "name" } else { "none" },
        file: Some(reading.path.display().to_string()),
        file_bytes: TextInput::open(reading.path)?.file_bytes,
        text_bytes: found.text_bytes,
        has_date: true,
        window,
        events: operations as u64 + found.left_out.values().sum::<u64>(),
        rows: RowCounts { collectives: operations, ..RowCounts::default() },
        left_out: found.left_out,
        problem: found.problem,
        ..CaptureFacts::default()
    };
    let capture = facts.write(name, &mut rows)?;
    rows.finish()?;
    Ok(capture)
}

/// Reads all objects, and calls `each` with those that are operations.
fn read(
    reading: &CaptureSource<'_>,
    progress: &mut dyn FnMut(u64, u64),
    each: &mut dyn FnMut(&InspectedOperation<'_>) -> Result<()>,
) -> Result<ProcessObjects> {
    let input = TextInput::open(reading.path)?;
    // Objects follow each other with nothing between, so that brackets around them make them an array.
    let mut elements = ElementReader::new((&b"["[..]).chain(input.text).chain(&b"]"[..]));
    let (mut found, mut objects) = (ProcessObjects::default(), 0_u64);
    loop {
        match elements.next() {
            Ok(Some(JsonElement::Event(text, _))) => {
                objects += 1;
                if objects.is_multiple_of(REPORT) {
                    progress(input.consumed.load(Ordering::Relaxed), input.file_bytes);
                }
                let object = serde_json::from_slice::<Value>(text).ok();
                match object.as_ref().and_then(InspectedOperation::of) {
                    Some(operation) => each(&operation)?,
                    None => *found.left_out.entry("no finished operation".into()).or_insert(0) += 1,
                }
            }
            Ok(Some(JsonElement::Value(..))) => {}
            Ok(None) => break,
            Err(stopped) => {
                // The added bracket before the text is not in the file.
                let offset = stopped.offset.saturating_sub(1);
                found.problem =
                    Some(format!("at byte {offset} of its text, after {objects} objects: {}", stopped.what));
                break;
            }
        }
    }
    found.text_bytes = elements.offset().saturating_sub(2);
    Ok(found)
}

/// An operation.
struct InspectedOperation<'a> {
    process: DumpingProcess,
    /// Nanoseconds from 1970.
    dumped: i64,
    began: Option<i64>,
    header: &'a Value,
    /// The measurements.
    measured: &'a Value,
    p2p: bool,
    kind: &'a str,
    communicator: &'a str,
}

impl<'a> InspectedOperation<'a> {
    fn of(object: &'a Value) -> Option<Self> {
        let header = object.get("header")?;
        let about = object.get("metadata")?;
        let (measured, p2p) = match (object.get("coll_perf"), object.get("p2p_perf")) {
            (Some(measured), _) => (measured, false),
            (None, measured) => (measured?, true),
        };
        let nanoseconds = |value: &Value| value.as_i64().filter(|time| *time > 0)?.checked_mul(1000);
        let host = short(about.get("hostname")).unwrap_or("unknown").to_owned();
        let pid = about.get("pid").and_then(Value::as_i64).and_then(|pid| i32::try_from(pid).ok()).unwrap_or(-1);
        let verbose = measured.get("event_trace_ts");
        let start = verbose.and_then(|times| times.get("coll_start_ts").or_else(|| times.get("p2p_start_ts")));
        Some(Self {
            process: DumpingProcess { host, pid },
            dumped: nanoseconds(about.get("dump_timestamp_us")?)?,
            began: start.and_then(nanoseconds),
            header,
            measured,
            p2p,
            kind: short(measured.get(if p2p { "p2p" } else { "coll" }))?,
            communicator: short(header.get("id"))?,
        })
    }

    fn push(&self, capture: &str, rows: &mut ProcessRows<'_>) -> Result<()> {
        let (header, measured) = (self.header, self.measured);
        let field = |name: &str| measured.get(&*format!("{}_{name}", if self.p2p { "p2p" } else { "coll" }));
        let small = |value: Option<&Value>| value.and_then(Value::as_i64).and_then(|value| i32::try_from(value).ok());
        let float = |value: Option<&Value>| value.and_then(Value::as_f64).filter(|value| *value >= 0.0);
        rows.push(|id| nccl_inspector::Row {
            capture: id(capture),
            dumped: Time(self.dumped),
            ts: self.began.map(Time),
            duration: float(field("exec_time_us")).map(|duration| duration / 1e6),
            timing: short(field("timing_source")).map(&mut *id),
            communicator: id(self.communicator),
            communicator_name: short(header.get("comm_name")).map(&mut *id),
            communicator_rank: small(header.get("rank")),
            ranks: small(header.get("n_ranks")),
            nodes: small(header.get("nnodes")),
            operation_type: id(self.kind),
            seq: field("sn").and_then(Value::as_i64),
            p2p: self.p2p,
            peer: small(field("peer")),
            bytes: field("msg_size_bytes").and_then(Value::as_i64).filter(|bytes| *bytes >= 0),
            algbw_gbps: float(field("algobw_gbs")),
            busbw_gbps: float(field("busbw_gbs")),
        })
    }
}

/// Text that is short enough for a cell, and not empty.
fn short(value: Option<&Value>) -> Option<&str> {
    value?.as_str().filter(|text| !text.is_empty() && text.len() <= MAX_TEXT)
}
