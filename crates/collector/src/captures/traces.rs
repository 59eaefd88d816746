//! Reads the traces that processes have written into rows of the run, and sends them in pieces to clients that ask for the
//! files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;
use probe_import::{ImportedCapture, RowCounts};
use probe_proto::v1::{CaptureEvent, CapturedRows, TracePiece, capture_event::Event};
use probe_store::{LiveFiles, ProcessIdentity, Store};
use tokio::sync::mpsc;
use tonic::Status;

use super::agents::ProgressLine;
use super::plan::{CapturePlan, name_of, process_name};

/// Endings of the names of traces and of memory snapshots.
const ENDINGS: [&str; 2] = [".json", ".pickle"];
/// Size of a piece (bytes); gRPC's clients take 4 MB.
const PIECE: usize = 1 << 20;

/// Reads the traces of all processes, on a thread of its own, and sends them to `client` where it asks for them. Each trace is
/// removed when it has been read.
///
/// # Errors
/// A trace is missing or malformed, or its rows can't be kept.
pub(super) async fn read(
    plan: CapturePlan,
    reports: Vec<ProgressLine>,
    store: Arc<Store>,
    client: mpsc::Sender<Result<CaptureEvent, Status>>,
) -> Result<Vec<CapturedRows>> {
    let (done, result) = tokio::sync::oneshot::channel();
    let work = move || {
        // Training comes first for the processor.
        probe_common::priority::lower_priority();
        // Sending fails where the client has gone.
        let _ = done.send(read_all(&plan, &reports, &store, &client));
    };
    std::thread::Builder::new().name("probe-capture".into()).spawn(work).map_err(Error::no_thread)?;
    result.await.unwrap_or_else(|_| Err(Error::failed("reading the traces was broken off")))
}

fn read_all(
    plan: &CapturePlan,
    reports: &[ProgressLine],
    store: &Arc<Store>,
    client: &mpsc::Sender<Result<CaptureEvent, Status>>,
) -> Result<Vec<CapturedRows>> {
    let mut all = Vec::with_capacity(reports.len());
    for (process, report) in plan.processes.iter().zip(reports) {
        let path = path(&plan.directory, process, report)?;
        let mut random = [0_u8; 8];
        getrandom::fill(&mut random).map_err(|error| Error::failed("no random numbers").because(error))?;
        let instance = format!("{}{:016x}", crate::instance::PREFIX, u64::from_le_bytes(random));
        let mut rows = LiveFiles::new(Arc::clone(store), &instance);
        let bounds = (plan.call.max_bytes, report.waited);
        let name = name_of(&plan.name, process);
        let capture = probe_import::import_of_process(&path, (&name, process), bounds, &mut rows)?;
        if plan.call.files {
            send(&path, process, client)?;
        }
        // A file that stays is removed with the directory.
        let _ = std::fs::remove_file(&path);
        all.push(captured(process, report, &capture));
    }
    Ok(all)
}

/// The path of a process's trace, which may be no other than the one that it was given.
fn path(directory: &Path, process: &ProcessIdentity, report: &ProgressLine) -> Result<PathBuf> {
    for ending in ENDINGS {
        let path = directory.join(format!("{}{ending}", process.pid));
        let is_there = report.file.as_deref() == path.to_str();
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        if is_there && is_file {
            return Ok(path);
        }
    }
    Err(Error::failed(format!("{} has written no trace to {}", process_name(process), directory.display())))
}

fn send(path: &Path, process: &ProcessIdentity, client: &mpsc::Sender<Result<CaptureEvent, Status>>) -> Result<()> {
    let unread = |error| io_error_at(path, error);
    let mut file = File::open(path).map_err(unread)?;
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        if file.by_ref().take(PIECE as u64).read_to_end(&mut piece).map_err(unread)? == 0 {
            return Ok(());
        }
        let pid = u32::try_from(process.pid).unwrap_or_default();
        let snapshot = path.extension().is_some_and(|ending| ending == "pickle");
        let piece = TracePiece { rank: process.rank, pid, data: Bytes::from(piece), snapshot };
        let event = CaptureEvent { event: Some(Event::Piece(piece)) };
        client.blocking_send(Ok(event)).map_err(|_| Error::failed("the client has disconnected"))?;
    }
}

fn captured(process: &ProcessIdentity, report: &ProgressLine, capture: &ImportedCapture) -> CapturedRows {
    let RowCounts { operators, kernels, launches, frames, memory_events, memory_blocks, .. } = capture.rows;
    CapturedRows {
        rank: process.rank,
        pid: u32::try_from(process.pid).unwrap_or_default(),
        first_step: report.first.unwrap_or(-1),
        steps: u32::try_from(report.seconds.len()).unwrap_or_default(),
        waited_s: report.waited,
        bytes: capture.text_bytes,
        events: capture.events,
        left_out: capture.left_out.iter().map(|(_, events)| events).sum(),
        operators,
        kernels,
        launches,
        frames,
        problem: capture.problem.clone().unwrap_or_default(),
        memory_events,
        memory_blocks,
        note: report.note.clone().unwrap_or_default(),
    }
}
