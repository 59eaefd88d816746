//! `probe import`: traces of other tools as a run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;
use nix::sys::signal::Signal;
use probe_common::error::{Error, Result};
use probe_common::paths::ProbeDirectories;
use probe_import::{
    FilesToImport, ImportProgress, ImportResult, ImportedCapture, ModuleRange, RangePatterns, StepRange, TraceFile,
    TraceFormat,
};
use probe_proto::tables::TABLES;
use probe_store::runs::{RunInfo, RunReservation, RunState};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{self, UnboundedSender};

use super::connect;
use super::progress_line::ProgressLine;
use super::report;
use super::signals::EndingSignals;
use super::status::CommandStatus;

/// The status where files that were named are left out.
const LEFT_OUT: CommandStatus = 1;
/// How long an import that a signal has ended may go on until its next report of progress.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Import traces as a recorded run
///
/// Reads traces of torch.profiler (Kineto), of 2021 to today, and other Chrome JSON; execution traces of PyTorch; SQLite exports
/// of Nsight Systems; CSV pages of Nsight Compute; XPlane traces of TensorFlow, JAX and torch_xla; memory snapshots of torch's
/// CUDA allocator; and dumps of PyTorch's Flight Recorder and of NCCL's inspector, plain or gzip. All files of one call become one
/// recorded run, a rank each, which you query like any other. python.captures lists what was read and what was left out. For
/// Flight Recorder dumps, probe hang shows which ranks have not entered which collective.
///
/// A damaged file is imported as far as it can be read, and python.captures has the reason. If one of several files can't be read,
/// it is skipped and the reason is printed. The exit status is 1 if you named that file.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe import [OPTIONS] <FILE|DIR>...",
    after_help = "Examples:
  probe import trace.json.gz
  probe import --name before log/
  probe import report.sqlite --step-range '^iteration (\\d+)$' --module-range '^module (.+)$'
  probe import --name stuck dumps/ && probe stuck hang
  probe before query \"SELECT * FROM gpu.kernel_profile LIMIT 10\""
)]
pub(super) struct Args {
    /// Trace files, and directories of them
    #[arg(value_name = "FILE|DIR", required = true)]
    paths: Vec<PathBuf>,
    /// Name of the run
    #[arg(long, value_name = "NAME", default_value = "trace")]
    name: String,
    /// Format of the files [default: detected from their content]
    #[arg(long, value_name = "FORMAT", value_parser = formats())]
    format: Option<TraceFormat>,
    /// Ranges that are steps, of Nsight Systems (NVTX) and XPlane traces: a regular expression for their text
    ///
    /// The number of a step is that of the first group, else the first in what matches. Where a text has none, steps are
    /// counted from 0. Without this, ranges called ProfilerStep#N are steps.
    #[arg(long, value_name = "REGEX")]
    step_range: Option<String>,
    /// NVTX ranges of Nsight Systems that are calls of modules: a regular expression for their text
    ///
    /// The name of the module is that of the first group, else all that matches. Operators and kernels have the innermost
    /// module that runs when they begin or are launched; backward operators that of the forward operator with their number.
    #[arg(long, value_name = "REGEX")]
    module_range: Option<String>,
}

fn formats() -> impl TypedValueParser<Value = TraceFormat> {
    PossibleValuesParser::new(
        TraceFormat::ALL.iter().map(|format| PossibleValue::new(format.name()).help(format.about())),
    )
    .try_map(|name| TraceFormat::named(&name))
}

pub(super) fn run(args: &Args) -> Result<CommandStatus> {
    let ranges = RangePatterns {
        steps: args.step_range.as_deref().map(StepRange::parse).transpose()?,
        modules: args.module_range.as_deref().map(ModuleRange::parse).transpose()?,
    };
    let FilesToImport { files, unknown, unreadable, refused, repeated } = probe_import::find(&args.paths, args.format)?;
    let directories = ProbeDirectories::from_environment()?;
    let runtime = connect::one_thread()?;
    // A signal may come as soon as there is a directory.
    let signals = runtime.block_on(async { EndingSignals::listen() })?;
    let reservation = RunReservation::reserve(&directories, &args.name)?;
    let paths: Vec<String> = args.paths.iter().map(|path| path.display().to_string()).collect();
    let import =
        Arc::new(ImportJob { files, reservation, ranges, paths: paths.join(" "), is_ended: AtomicBool::new(false) });
    let name = import.reservation.name().to_string();
    let outcome = unless_ended(runtime, signals, &import);
    if !matches!(outcome, Ok(ImportOutcome::Done(_))) {
        // The directory holds only what was just written.
        let _ = std::fs::remove_dir_all(import.reservation.directory());
    }
    match outcome? {
        ImportOutcome::Done(imported) => {
            refused.iter().chain(&unreadable).for_each(|error| report::note(format_args!("left out: {error}")));
            tell_of_unknown(&unknown);
            for path in &repeated {
                report::note(format_args!("read once: {} is one of the other files", path.display()));
            }
            tell(&name, &imported);
            let is_whole = refused.is_empty() && !imported.refused.iter().any(|(file, _)| file.named);
            Ok(if is_whole { 0 } else { LEFT_OUT })
        }
        ImportOutcome::Ended(signal) => {
            report::note(format_args!("ended by {signal}: nothing is left of run {name}"));
            Ok(128 + signal as CommandStatus)
        }
    }
}

/// What is read, and what it becomes.
struct ImportJob {
    files: Vec<TraceFile>,
    reservation: RunReservation,
    ranges: RangePatterns,
    /// The files and directories that were named.
    paths: String,
    /// Whether a signal has ended the import.
    is_ended: AtomicBool,
}

/// How an import ended: done, or by a signal.
enum ImportOutcome {
    Done(ImportResult),
    Ended(Signal),
}

/// Imports, until it is done or a signal comes; nothing is written any more then.
fn unless_ended(runtime: Runtime, mut signals: EndingSignals, import: &Arc<ImportJob>) -> Result<ImportOutcome> {
    let outcome = runtime.block_on(async {
        let (stopped, mut has_stopped) = mpsc::unbounded_channel();
        let filled = tokio::task::spawn_blocking({
            let import = Arc::clone(import);
            move || import.fill(&stopped)
        });
        tokio::select! {
            filled = filled => Ok(ImportOutcome::Done(filled.map_err(Error::caused)??)),
            signal = signals.next() => {
                import.is_ended.store(true, Ordering::Relaxed);
                // The thread stops at its next report of progress, or ends.
                let _ = tokio::time::timeout(TIMEOUT, has_stopped.recv()).await;
                Ok(ImportOutcome::Ended(signal))
            }
        }
    });
    runtime.shutdown_background();
    outcome
}

impl ImportJob {
    /// Writes the run's files. Once the import has ended, reports that by `stopped` and does not return.
    fn fill(&self, stopped: &UnboundedSender<()>) -> Result<ImportResult> {
        let (directory, name) = (self.reservation.directory(), self.reservation.name());
        let mut line = ProgressLine::new();
        let mut report = |progress: ImportProgress<'_>| {
            line.show(|| shown(progress, self.files.len()));
            if self.is_ended.load(Ordering::Relaxed) {
                line.clear();
                let _ = stopped.send(());
                loop {
                    thread::park();
                }
            }
        };
        let imported = probe_import::import(&self.files, &name.to_string(), directory, &self.ranges, &mut report);
        line.clear();
        let imported = imported?;
        let captures = &imported.captures;
        probe_store::write_system(directory, TABLES, &[])?;
        let mut info = RunInfo::begin(name, &format!("probe import {}", self.paths));
        let began = captures.iter().filter_map(|capture| capture.began).min();
        if let Some(began) = began.and_then(|began| Timestamp::from_nanosecond(began.into()).ok()) {
            info.started = began;
        }
        info.state = RunState::Ended;
        info.ended = Some(Timestamp::now());
        info.ranks = captures.iter().filter_map(|capture| capture.rank).collect();
        info.agents = captures.len();
        info.bytes = Some(probe_store::runs::file_bytes(directory));
        info.write(directory)?;
        Ok(imported)
    }
}

fn tell(name: &str, ImportResult { captures, refused }: &ImportResult) {
    for capture in captures {
        if let Some(problem) = &capture.problem {
            report::note(format_args!("{} was read in part: {problem}", capture.name));
        }
    }
    for (_, error) in refused {
        report::note(format_args!("left out: {error}"));
    }
    let events: u64 = captures.iter().map(|capture| capture.events).sum();
    let files = if captures.len() == 1 { "1 trace".to_owned() } else { format!("{} traces", captures.len()) };
    let events = if events == 1 { "1 event".to_owned() } else { format!("{events} events") };
    report::note(format_args!("{files} with {events} became run {name}: {}", rows_of(captures)));
    let base = name.split('@').next().unwrap_or(name);
    report::hint(format_args!(
        "probe {base} query \"SELECT * FROM python.captures\" says what was read and what was left out"
    ));
}

/// "12 operators, 3 launches".
fn rows_of(captures: &[ImportedCapture]) -> String {
    let mut sums: Vec<([&str; 2], i64)> = Vec::new();
    for (what, rows) in captures.iter().flat_map(|capture| capture.rows.named()) {
        match sums.iter_mut().find(|(known, _)| *known == what) {
            Some((_, sum)) => *sum += rows,
            None => sums.push((what, rows)),
        }
    }
    let counted = |([one, many], rows): &([&str; 2], i64)| match rows {
        1 => format!("1 {one}"),
        rows => format!("{rows} {many}"),
    };
    let each: Vec<String> = sums.iter().filter(|(_, rows)| *rows > 0).map(counted).collect();
    if each.is_empty() { "no rows".into() } else { each.join(", ") }
}

/// Says that files of directories were passed over.
fn tell_of_unknown(files: &[PathBuf]) {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match files {
        [] => {}
        [one] => report::note(format_args!("left out: {} has no known format", name(one))),
        [first, ..] => report::note(format_args!(
            "left out: {} files have no known format ({} is the first)",
            files.len(),
            name(first)
        )),
    }
}

fn shown(progress: ImportProgress<'_>, files: usize) -> String {
    let percent = 100 * progress.read / progress.size.max(1);
    let capture: String = progress.capture.chars().filter(|c| !c.is_control()).take(40).collect();
    format!("{percent:>3} % of {capture} ({} of {files})", progress.file + 1)
}
