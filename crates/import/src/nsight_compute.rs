//! CSV pages of Nsight Compute (`ncu --csv`), details and raw, as rows of `gpu.kernel_metrics`.
//!
//! A page is read several times: first for its processes and for the decimal mark, which depends on the language with which
//! it was printed, and then once for each process.

mod decimal;
mod page;
mod records;
mod rows;
mod survey;

use probe_common::error::{Error, Result};
use probe_store::row_files::RowSink;

use super::capture::{CaptureFacts, CaptureSource, ImportedCapture, RowCounts};
use super::imported_process;
use super::input::TextInput;
use super::metadata::rank_in_name;
use super::rows::{DiscardingSink, ProcessRows};
use records::PageRecords;
use rows::MetricRows;
use survey::{PageSurvey, ProfiledProcess};

/// The format's name in `--format` and `python.captures`.
pub(crate) const NAME: &str = "nsight-compute";

/// Whether a file with this beginning is a page: by its header, or by the tool's lines before it.
pub(crate) fn recognises(text: &[u8]) -> bool {
    let text = text.strip_prefix(records::BYTE_ORDER_MARK).unwrap_or(text);
    let mut lines = text.split(|byte| *byte == b'\n');
    lines.any(|line| line.starts_with(b"==PROF==") || line.starts_with(b"\"ID\",\"Process ID\","))
}

/// Reads a file and writes its rows, with a capture for each process.
///
/// # Errors
/// The file is no such page, or rows can't be written.
pub(crate) fn import(
    reading: &CaptureSource<'_>,
    files: &mut dyn RowSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<ImportedCapture>> {
    let open = || -> Result<PageRecords> {
        PageRecords::open(reading.path)?.ok_or_else(|| {
            refused(reading, "no line of it begins with \"ID\", as the header of the details and the raw page does")
        })
    };
    let survey = PageSurvey::of(open()?, progress);
    if survey.processes.is_empty() {
        return Err(refused(reading, survey.problem.as_deref().unwrap_or("there is no kernel in it")));
    }
    let mut captures = Vec::new();
    for process in &survey.processes {
        captures.push(import_process(reading, open()?, &survey, process, captures.is_empty(), files, progress)?);
    }
    Ok(captures)
}

fn refused(reading: &CaptureSource<'_>, why: &str) -> Error {
    Error::failed(format!("{} has no metrics to import: {why}", reading.path.display()))
        .hint("print the page with ncu --import REPORT --csv, or ncu --import REPORT --csv --page raw")
}

/// Reads a text without a file, and returns the number of its records and of the rows of its first process.
pub(crate) fn read(text: &[u8]) -> Result<(u64, u64)> {
    let input = || TextInput::of(std::io::Cursor::new(text.to_vec()), text.len() as u64).map_err(Error::caused);
    let open = || PageRecords::of(input()?).map_err(Error::caused);
    let Some(records) = open()? else { return Ok((0, 0)) };
    let survey = PageSurvey::of(records, &mut |_, _| ());
    let (Some(process), Some(records)) = (survey.processes.first(), open()?) else { return Ok((survey.records, 0)) };
    let mut sink = DiscardingSink;
    let identity = imported_process::identity("fuzz", process.host.as_deref(), Some(process.pid), None, None);
    let mut rows = ProcessRows::new(&mut sink, identity);
    let mut written = MetricRows { capture: "", mark: survey.mark, pid: process.pid, rows: &mut rows, written: 0 };
    written.write(records, survey.records, &mut |_, _| ())?;
    Ok((survey.records, written.written as u64))
}

/// Imports one process. With `is_first`, it also gets the counts of the whole file.
fn import_process(
    reading: &CaptureSource<'_>,
    records: PageRecords,
    survey: &PageSurvey,
    process: &ProfiledProcess,
    is_first: bool,
    files: &mut dyn RowSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ImportedCapture> {
    let file_bytes = records.file_bytes;
    let name = match survey.processes.len() {
        1 => reading.capture.to_owned(),
        _ => format!("{}/{}", reading.capture, process.pid),
    };
    let rank = reading.path.file_name().and_then(|name| rank_in_name(name.to_str()?));
    let rank = rank.filter(|_| survey.processes.len() == 1);
    let identity = imported_process::identity(reading.run, process.host.as_deref(), Some(process.pid), rank, None);
    let mut rows = ProcessRows::new(files, identity);
    let mut metric_rows =
        MetricRows { capture: &name, mark: survey.mark, pid: process.pid, rows: &mut rows, written: 0 };
    metric_rows.write(records, survey.records, progress)?;
    let facts = CaptureFacts {
        tool: NAME,
        rank,
        rank_source: if rank.is_some() { "name" } else { "none" },
        file: Some(reading.path.display().to_string()),
        file_bytes,
        text_bytes: survey.text_bytes,
        events: if is_first { survey.records - survey.records_of_others() } else { process.records },
        rows: RowCounts { metrics: metric_rows.written, ..RowCounts::default() },
        left_out: if is_first { survey.left_out.clone() } else { Default::default() },
        problem: survey.problem.clone(),
        ..CaptureFacts::default()
    };
    let capture = facts.write(&name, &mut rows)?;
    rows.finish()?;
    Ok(capture)
}
