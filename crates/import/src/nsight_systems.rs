//! Nsight Systems' SQLite exports, of 2022 to 2026, as rows of the tables that captures have.
//!
//! A file can have several processes, whose numbers of launches repeat. Each process is read alone and is a capture of its own.

mod about;
mod activities;
mod database;
mod events;
mod names;
mod processes;
mod range_text;
mod tables;

use probe_common::error::{Error, Result};
use probe_store::row_files::RowSink;

use super::capture::{CaptureFacts, CaptureSource, ImportedCapture};
use super::collect::CollectedEvents;
use super::imported_process;
use super::row_writer::RangeTable;
use super::rows::ProcessRows;
use super::second_pass;
use about::FileFacts;
use database::Database;
use events::DatabaseEvents;
use processes::{ExportedProcesses, pid};

/// The format's name in `--format` and `python.captures`.
pub(crate) const NAME: &str = "nsight-systems";

/// Whether a file with this beginning is a database.
pub(crate) fn recognises(head: &[u8]) -> bool {
    head.starts_with(database::MAGIC)
}

/// Reads a file and writes its rows, with a capture for each process.
///
/// # Errors
/// The file is no export of Nsight Systems with events, or rows can't be written.
pub(crate) fn import(
    reading: &CaptureSource<'_>,
    files: &mut dyn RowSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<ImportedCapture>> {
    let database = Database::open(reading.path, reading.scratch)?;
    if tables::EVENTS.iter().all(|(table, _)| database.table(table).is_none()) {
        return Err(refused(reading, "it has none of the tables that an export of Nsight Systems has"));
    }
    let about = FileFacts::read(&database)?;
    let processes = ExportedProcesses::find(&database)?;
    if processes.found.is_empty() {
        let why = processes.problem.as_deref().unwrap_or("no kernel, call or range of the program is in it");
        return Err(refused(reading, why));
    }
    let rows: u64 = processes.found.values().map(|process| process.rows).sum();
    let mut before = 0;
    let mut captures = Vec::new();
    for (key, process) in &processes.found {
        let mut report = |read: u64| {
            let share = (before + read) as f64 / rows.max(1) as f64;
            progress((share * database.file_bytes as f64) as u64, database.file_bytes);
        };
        let context = FileContext { reading, database: &database, about: &about, processes: &processes };
        captures.push(context.process(*key, captures.is_empty(), files, &mut report)?);
        before += process.rows;
    }
    Ok(captures)
}

fn refused(reading: &CaptureSource<'_>, why: &str) -> Error {
    Error::failed(format!("{} has no events to import: {why}", reading.path.display()))
        .hint("export a report with nsys export --type sqlite, and import what that writes")
}

/// What all processes of a file share.
struct FileContext<'a> {
    reading: &'a CaptureSource<'a>,
    database: &'a Database,
    about: &'a FileFacts,
    processes: &'a ExportedProcesses,
}

impl FileContext<'_> {
    /// Imports one process. With `is_first`, it also gets the counts of the whole file.
    fn process(
        &self,
        key: Option<i64>,
        is_first: bool,
        files: &mut dyn RowSink,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ImportedCapture> {
        let Self { reading, database, about, processes } = *self;
        let is_alone = processes.found.len() == 1;
        let name = match is_alone {
            true => reading.capture.to_owned(),
            false => format!("{}/{}", reading.capture, pid(key)),
        };
        let (rank, rank_source) = processes.rank(key, reading.path);
        let collected = CollectedEvents::empty(reading.scratch);
        let process = (!is_alone).then_some(key);
        let mut collected = DatabaseEvents::new(database, collected, process, reading.ranges, progress).read()?;
        if is_first {
            self.count_left_out(&mut collected)?;
            collected.problem = collected.problem.take().or(processes.problem.clone());
        }
        let identity = imported_process::identity(reading.run, about.host.as_deref(), Some(pid(key)), rank, None);
        let base = about.start.unwrap_or(0);
        let mut rows = ProcessRows::new(files, identity);
        let written = second_pass::write(&mut collected, &name, (base, RangeTable::Spans), reading.scratch, &mut rows)?;
        let facts = CaptureFacts {
            tool: NAME,
            rank,
            rank_source,
            file: Some(reading.path.display().to_string()),
            file_bytes: database.file_bytes,
            text_bytes: database.bytes,
            versions: about.versions(),
            devices: about.devices(),
            has_date: about.start.is_some(),
            ..written
        };
        let capture = facts.write(&name, &mut rows)?;
        rows.finish()?;
        Ok(capture)
    }

    /// Counts the rows that become no rows here.
    fn count_left_out(&self, collected: &mut CollectedEvents) -> Result<()> {
        if self.processes.past > 0 {
            collected.events += self.processes.past;
            collected.leave_out("past the number of processes", self.processes.past);
        }
        for (table, what) in tables::LEFT_OUT {
            let mut rows = 0;
            let stopped = self.database.scan(table, &[], None, &mut |_| {
                rows += 1;
                Ok(())
            })?;
            if rows > 0 {
                collected.events += rows;
                collected.leave_out(*what, rows);
            }
            collected.problem = collected.problem.take().or(stopped);
        }
        Ok(())
    }
}
