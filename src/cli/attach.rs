//! `probe attach PID`: the agent into a process that runs already.

mod collector;
mod targets;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use probe_common::error::{Error, Result};
use probe_common::paths;
use probe_inspect::attach::{self, AttachSettings, AttachState, BootstrapReport, InjectionMethod, SharedDirectory};
use probe_proto::config;

use self::collector::{KnownProcess, RunCollector};
use self::targets::AttachTarget;
use super::status::CommandStatus;
use super::{connect, report};

/// Put the agent into a running Python process
///
/// The process is recorded from its next step on, in a run that ends when the process ends or is detached. The agent
/// finds the modules, optimizers, process groups and data loaders that exist. For a torchrun, probe attaches to its
/// workers. The results of training stay the same to the last bit. One thread of the process, an idle one if possible,
/// stops for a fraction of a millisecond. The main thread stops for about ten milliseconds while hooks are installed,
/// and for longer when every core is busy.
///
/// The command prints the mechanism before it uses it: from Python 3.14 on, the interpreter's debugger protocol (PEP
/// 768); on earlier versions, ptrace (on x86-64 and aarch64). Both need permission to trace the process. probe doctor
/// says what is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  probe list                          # shows training processes without an agent
  probe attach 4711
  probe attach 4711 --name gpt        # into the run gpt, a new one where none of that name is live
  probe attach 4711 --dry-run
  probe detach 4711")]
pub(super) struct Args {
    /// The process, or the launcher (torchrun) of several processes
    pid: u32,
    /// The run to join. If no run of that name is live, a new one starts [default: a new run named after the script]
    #[arg(long, value_name = "RUN")]
    name: Option<String>,
    /// Which steps have their modules recorded: auto, every-step, 1/N or off
    #[arg(long)]
    detail: Option<String>,
    /// Only print what would be done, and whether it is permitted
    #[arg(long)]
    dry_run: bool,
    /// How long to wait for the process's main thread
    #[arg(long, value_name = "DURATION", value_parser = super::amounts::duration, default_value = "30s")]
    timeout: Duration,
    /// Directory with the package probe_agent, for a Python without it [default: the one beside this command]
    #[arg(long, value_name = "DIR")]
    agent: Option<PathBuf>,
}

/// How much longer than its timeout a process that has begun may take: imports take long on a busy machine.
const EXTRA_PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(args: Args) -> Result<CommandStatus> {
    let finding = connect::one_thread()?;
    let known = finding.block_on(collector::known_processes())?;
    let candidates = targets::find(args.pid)?;
    let mut pending = Vec::new();
    let asked_at = Instant::now();
    for one in candidates {
        match known.iter().find(|known| known.live && known.pid == one.pid) {
            Some(KnownProcess { pid, run, .. }) => {
                report::note(format_args!("process {pid} has an agent already, in run {run}"));
                report::hint(format_args!("probe {run} query …"));
            }
            None if one.has_uplink(asked_at) => {
                report::note(format_args!(
                    "process {} has an agent already, of a collector that is not known here",
                    one.pid
                ));
            }
            None => pending.push(one),
        }
    }
    if let Some(name) = &args.name {
        probe_common::run_name::RunName::parse(name)?;
    }
    if let Some(detail) = &args.detail {
        config::check(config::DETAIL, detail).map_err(|why| Error::usage(format!("--detail {detail}: {why}")))?;
    }
    if pending.is_empty() {
        return Ok(0);
    }
    pending.iter().try_for_each(AttachTarget::check)?;
    for one in &pending {
        report::note(one.plan(args.dry_run));
    }
    if args.dry_run {
        return Ok(0);
    }
    let mut found = finding.block_on(collector::find_or_start(args.name.as_deref(), &pending, &known))?;
    let packages: Vec<PathBuf> = args.agent.clone().map_or_else(targets::packages, |directory| vec![directory]);
    let mut failed = None;
    let mut attached = Vec::new();
    for one in &pending {
        match attach_to(one, &found, &args, &packages) {
            Ok(state) => attached.push((one.pid, state)),
            // The others are attached to all the same: half a run is better than none.
            Err(error) => {
                if pending.len() > 1 {
                    report::note(format_args!("cannot attach to process {}: {error}", one.pid));
                }
                failed = Some(error);
            }
        }
    }
    if attached.is_empty() {
        found.give_up();
    }
    if !attached.is_empty() {
        let run = &found.run;
        let recorded = attached.iter().filter(|(_, state)| *state == AttachState::Recording).map(|(pid, _)| *pid);
        finding.block_on(found.wait_for(&recorded.collect::<Vec<u32>>()))?;
        report::note(format_args!(
            "ask with: probe {run} query \"SELECT …\", probe {run} eval CODE; probe detach {run}"
        ));
    }
    failed.map_or(Ok(0), Err)
}

fn attach_to(one: &AttachTarget, found: &RunCollector, args: &Args, packages: &[PathBuf]) -> Result<AttachState> {
    let pid = one.pid as i32;
    let desk = SharedDirectory::set_up(&paths::runtime_dir()?, pid)?;
    let patience_s = args.timeout.as_secs_f64();
    let statement = desk.statement(&AttachSettings {
        run: &found.run,
        collector: &found.address,
        detail: args.detail.as_deref(),
        patience_s,
        packages,
    })?;
    let sent = attach::send(pid, &one.interpreter, &statement, &desk.script())?;
    // The main thread may reach a safe point late twice: at the beginning, and when hooks are put in.
    let Some(report) = desk.wait(pid, args.timeout, args.timeout + EXTRA_PATIENCE)? else {
        return Err(Error::limit(format!(
            "the main thread of process {pid} ran no Python code within {patience_s} s, so nothing was done"
        ))
        .hint(format!("probe {pid} stack shows where it is; --timeout waits longer")));
    };
    attach::finish(pid, &one.interpreter, &sent);
    tell(one, &report, &sent, found)
}

/// Prints how attaching went.
fn tell(
    one: &AttachTarget,
    report: &BootstrapReport,
    sent: &attach::SentStatement,
    found: &RunCollector,
) -> Result<AttachState> {
    let pid = one.pid;
    if let Some(error) = &report.error {
        let hint = match error.contains("probe_agent") {
            true => "install the wheel of the same version there: python -m pip install trainprobe; or say where it is by --agent DIR".to_owned(),
            false => format!("probe {pid} stack shows what it does; see also its own standard error"),
        };
        return Err(Error::failed(format!("the agent could not be started in process {pid}"))
            .because(error.as_str())
            .hint(hint));
    }
    if let Some(why) = &report.refused {
        return Err(Error::failed(format!("cannot attach to process {pid}: {why}")));
    }
    let state = report.state.unwrap_or(AttachState::Unknown);
    match state {
        AttachState::Recording => {
            let stood = sent.stopped.map_or_else(String::new, |(time, main)| {
                format!(
                    "a thread{} stood still for {:.2} ms, ",
                    if main { " (the main one)" } else { "" },
                    milliseconds(time)
                )
            });
            let waited = report.waited_s.unwrap_or_default() * 1e3;
            report::note(format_args!(
                "process {pid} is recorded in run {} from its next step on ({stood}the main thread for {waited:.1} ms)",
                found.run
            ));
        }
        AttachState::WaitsForTorch => {
            report::note(format_args!(
                "process {pid} has no torch yet, and is recorded in run {} once it has",
                found.run
            ));
        }
        AttachState::HasAgent => {
            let run = report.run.as_deref().or(report.collector.as_deref()).unwrap_or("a collector that is gone");
            report::note(format_args!("process {pid} has an agent already, in run {run}"));
        }
        AttachState::Unknown => {
            return Err(Error::failed(format!(
                "this version of probe does not understand the answer of process {pid}"
            )));
        }
    }
    if let Some(problem) = report.problem.as_deref().filter(|problem| !problem.is_empty()) {
        report::note(format_args!("process {pid}: {problem}"));
    }
    Ok(state)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl AttachTarget {
    /// How the process would be attached to (`dry`), or is attached to now, for people.
    fn plan(&self, dry: bool) -> String {
        let Self { pid, interpreter, .. } = self;
        let how = match interpreter.method() {
            InjectionMethod::RemoteDebugging => "by its own protocol for debuggers (PEP 768)",
            InjectionMethod::Borrowing => "by borrowing one of its threads (ptrace) for a call of Py_AddPendingCall",
        };
        let would = if dry { "would be attached to" } else { "is being attached to" };
        let (version, path) = (interpreter.version_text(), &interpreter.path);
        format!("process {pid} (Python {version}, {path}) {would} {how}{}", if dry { ", and may be" } else { "" })
    }
}
