//! `probe run -- CMD…`: a launcher. The command is its child, and so is the collector, which is a process of its own.

mod collector;
pub(super) mod greeting;
mod pythons;
mod torch_imports;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use probe_common::error::{Error, Result};
use probe_inspect::process_exit::shell_status;
use probe_proto::env;
use probe_proto::v1::{FinishCall, FinishOutcome};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout_at};

use self::collector::{CollectorProcess, TIMEOUT};
use self::pythons::PythonProcesses;
use self::torch_imports::TorchImportReports;
use super::launch::{self, LaunchFailure};
use super::listen::ListenOptions;
use super::signals::{EndingSignals, child_had_it};
use super::status::CommandStatus;
use super::{connect, report};

/// The hint where no process has reported to this launcher.
const NONE_IMPORTED_TORCH: &str = "no process that has the wheel imported torch: python -m pip show trainprobe, with the Python that trains, says whether it has; in a container or on another machine it needs PROBE, PROBE_COLLECTOR and PROBE_RUN too";
/// The hint where the command failed besides: mostly before it imported torch, and it has said why.
const FAILED_WITHOUT_TORCH: &str = "the command failed, and its own message may say why; if it had imported torch before that: python -m pip show trainprobe, with the Python that trains, says whether it has the wheel; in a container or on another machine it needs PROBE, PROBE_COLLECTOR and PROBE_RUN too";
/// The hint where the agent's variables did not arrive.
const NONE_REACHED: &str = "pass on PROBE, PROBE_COLLECTOR and PROBE_RUN (sudo --preserve-env=PROBE,PROBE_COLLECTOR,PROBE_RUN …), or start probe run inside: env -i … probe run -- python train.py";
/// The hint where processes imported torch, and none became an agent.
const NONE_TRAINED: &str = "a process is recorded from its first call of a module, step of an optimizer, compilation or process group on, \
and one that multiprocessing spawned when it makes an optimizer or joins a group; probe_agent.start() begins at once";

/// The hint where the command has ended and a process that it left behind may still train.
const NONE_TRAINED_YET: &str = "the run has ended, so what such a process trains from now on is not recorded: let the command wait for it (wait, in a shell), or start it with probe run";

/// A command that fails this soon, before anything in it has imported torch, has said itself what is wrong: a script that is not there.
const EARLY: Duration = Duration::from_secs(1);
/// Signals that come this soon after the end of the command were meant for the command.
const TOGETHER: Duration = Duration::from_secs(1);

/// Start training with the agent in it and a collector beside it
///
/// The command keeps its own input, output and exit status. Every Python process that it starts, imports torch and
/// trains is recorded. When it has ended, the run stays as a directory that you can query like a live run.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe run [OPTIONS] [--] <CMD>...",
    after_help = "Examples:
  probe run -- python train.py --epochs 3
  probe run --name gpt -- torchrun --nproc-per-node 2 train.py"
)]
pub(super) struct Args {
    /// Name of the run [default: PROBE_RUN, else the script's name]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    listening: ListenOptions,
    /// What to run
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(args: Args) -> Result<CommandStatus> {
    let Some(program) = args.command.first() else { return Err(Error::usage("there is no command to run")) };
    // Before anything is started, so that a typing mistake leaves no run behind.
    if let Err(missing) = launch::look_for(program) {
        return Ok(not_started(program, &missing));
    }
    // A run within a run has its own name, not its parent's, which has a number.
    let from_environment = || std::env::var(env::PROBE_RUN).ok().filter(|name| !name.is_empty() && !name.contains('@'));
    let given = args.name.or_else(from_environment);
    // A name that the user did not choose must not keep a second training of one script from starting.
    let may_rename = given.is_none();
    let name = given.unwrap_or_else(|| launch::name_of(&args.command));
    connect::one_thread()?.block_on(async {
        let mut signals = EndingSignals::listen()?;
        let mut collector = CollectorProcess::start(
            (&name, may_rename),
            launch::command_text(&args.command),
            args.listening.to_arguments(),
        )
        .await?;
        let ready = tokio::select! {
            ready = collector.ready() => ready?,
            signal = signals.next() => {
                collector.end().await;
                return Ok(by_signal(signal));
            }
        };
        if let Some(status) = ready {
            return Ok(status);
        }
        let run = collector.run().to_owned();
        let short = run.split('@').next().unwrap_or(&run);
        let endpoint = collector.endpoint();
        if short != name {
            report::note(format_args!("a run called {name} is live, so this one is called {short}"));
        }
        report::note(format_args!("run {run} at {endpoint}; from another terminal: probe {short} query \"SELECT …\""));
        let seen = TorchImportReports::begin(endpoint);
        let child = Command::new(program)
            .args(&args.command[1..])
            .env(env::PROBE, "1")
            .env(env::PROBE_COLLECTOR, endpoint)
            .env(env::PROBE_RUN, &run)
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                collector.end().await;
                return Err(Error::failed(format!("{} could not be started", program.to_string_lossy())).because(error));
            }
        };
        let (pid, began) = (child.id().unwrap_or_default(), Instant::now());
        let mut pythons = PythonProcesses::below(pid, endpoint);
        let ended = tokio::select! {
            ended = wait(child, &mut signals) => ended?,
            never = collector.watch() => match never {},
            never = pythons.watch(&seen) => match never {},
        };
        let call = FinishCall { pid, wait_status: ended.into_raw() };
        let failed_early = !ended.success() && began.elapsed() < EARLY && seen.is_empty();
        let reason = || if failed_early { (Vec::new(), None) } else { why_none(&seen, &pythons, ended) };
        finish(&mut collector, call, &mut signals, reason).await;
        Ok(shell_status(ended))
    })
}

/// Waits for the child, and hands on signals that this process gets meanwhile.
async fn wait(mut child: Child, signals: &mut EndingSignals) -> io::Result<ExitStatus> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
    loop {
        tokio::select! {
            ended = child.wait() => return ended,
            signal = signals.next() => if let Some(pid) = pid && !child_had_it(signal) {
                // The child may have ended just now.
                let _ = kill(pid, signal);
            },
        }
    }
}

/// Tells the collector to write the run, and prints what a person should know of it. `why_none`: sentences about processes that
/// were not recorded, and a hint. The command's exit status stays its own.
async fn finish(
    collector: &mut CollectorProcess,
    call: FinishCall,
    signals: &mut EndingSignals,
    why_none: impl FnOnce() -> (Vec<String>, Option<&'static str>),
) {
    let run = collector.run().to_owned();
    let impatient = async {
        // A signal that came with the command's end was meant for the command.
        let together = Instant::now() + TOGETHER;
        while Instant::now() < together {
            let _ = timeout_at(together, signals.next()).await;
        }
        signals.next().await
    };
    let outcome = tokio::select! {
        outcome = collector.finish(call) => outcome,
        _ = impatient => {
            report::note(format_args!("not waiting for the collector, which writes run {run} on its own"));
            return;
        }
    };
    match outcome {
        Some(FinishOutcome { agents, problem, hint }) => {
            if !problem.is_empty() {
                let error = Error::failed(problem);
                report::error(&if hint.is_empty() { error } else { error.hint(hint) });
            }
            if agents == 0 {
                report::note("no training process connected, so nothing was recorded");
                let (sentences, hint) = why_none();
                sentences.iter().for_each(report::note);
                hint.iter().for_each(report::hint);
            }
        }
        None if collector.was_ended() => {}
        None => {
            let patience = TIMEOUT.as_secs();
            let stopped =
                collector.pid().map(|pid| format!("if it is stopped, kill -CONT {pid} lets it write the run; "));
            report::note(format_args!(
                "the collector of run {run} has not answered for {patience} s, so the run may not be written"
            ));
            report::hint(format_args!(
                "{}if it is gone, probe {run} query … reads what it kept",
                stopped.unwrap_or_default()
            ));
        }
    }
}

/// What is known of the processes that the command started, and of how it ended, in sentences, and a hint.
fn why_none(
    seen: &TorchImportReports,
    pythons: &PythonProcesses,
    ended: ExitStatus,
) -> (Vec<String>, Option<&'static str>) {
    let (unreached, running) = (pythons.unreached(), pythons.running());
    let (sentences, hint) = match () {
        () if !seen.is_empty() => (seen.sentences(), NONE_TRAINED),
        () if !unreached.is_empty() => (unreached, NONE_REACHED),
        () if running.is_empty() && !ended.success() => (pythons.reached(), FAILED_WITHOUT_TORCH),
        () if running.is_empty() => (pythons.reached(), NONE_IMPORTED_TORCH),
        () => (running, NONE_TRAINED_YET),
    };
    (sentences, Some(hint))
}

fn by_signal(signal: Signal) -> CommandStatus {
    128 + signal as CommandStatus
}

/// Says why the command can't be started, with a shell's exit statuses.
fn not_started(program: &std::ffi::OsStr, missing: &LaunchFailure) -> CommandStatus {
    let program = program.to_string_lossy();
    match missing {
        LaunchFailure::NotFound if program.starts_with('-') => {
            report::error(
                &Error::usage(format!("probe run has no option '{program}'"))
                    .hint("options come before the command: probe run --name gpt -- python train.py"),
            );
            2
        }
        LaunchFailure::NotFound => {
            report::error(
                &Error::failed(format!("there is no command '{program}'")).hint("give its path, or add it to PATH"),
            );
            127
        }
        LaunchFailure::NotExecutable(path) => {
            report::error(
                &Error::failed(format!("{} is not executable", path.display()))
                    .hint(format!("python {program}, or chmod +x")),
            );
            126
        }
    }
}
