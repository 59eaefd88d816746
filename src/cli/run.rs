//! `probe run -- CMD…`: a collector in this process and the training as its child.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::kill;
use nix::unistd::Pid;
use probe_proto::env;
use tokio::process::{Child, Command};

use super::launch::{self, Missing};
use super::listen::{self, Listening};
use super::signals::{Signals, child_had_it};
use super::{Status, ask, report};
use crate::collector::Collector;
use crate::error::{Error, Result};

/// Start training with the agent in it, and a collector beside it
///
/// The command's input, output and exit status are its own. Every Python process below it that imports torch and
/// trains is recorded. When it has ended the run stays, as a directory that can be asked like a live run.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe run [OPTIONS] [--] <CMD>...",
    after_help = "Examples:
  probe run -- python train.py --epochs 3
  probe run --name gpt -- torchrun --nproc-per-node 2 train.py"
)]
pub(super) struct Args {
    /// What to call the run [default: PROBE_RUN, else the script's name]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    listening: Listening,
    /// What to run
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) fn run(args: Args) -> Result<Status> {
    let Some(program) = args.command.first() else { return Err(Error::usage("there is no command to run")) };
    // Before anything is started, so that a typing mistake leaves no run behind.
    if let Err(missing) = launch::look_for(program) {
        return Ok(not_started(program, &missing));
    }
    // A run within a run has its own name, not its parent's, which has a number.
    let told = || std::env::var(env::PROBE_RUN).ok().filter(|name| !name.is_empty() && !name.contains('@'));
    let name = args.name.or_else(told).unwrap_or_else(|| launch::name_of(&args.command));
    let options = args.listening.options(name, launch::shown(&args.command), None)?;
    ask::many_threads()?.block_on(async {
        let mut signals = Signals::listen()?;
        let collector = Collector::start(options).await?;
        let run = collector.run().to_owned();
        let short = run.split('@').next().unwrap_or(&run);
        report::note(format_args!("run {run} at {}; from another terminal: probe {short} query \"SELECT …\"", collector.endpoint()));
        listen::say_pin(&collector);
        let child = Command::new(program)
            .args(&args.command[1..])
            .env(env::PROBE, "1")
            .env(env::PROBE_COLLECTOR, collector.endpoint())
            .env(env::PROBE_RUN, &run)
            .spawn();
        let ended = match child {
            Ok(child) => {
                let pid = child.id();
                let ended = wait(child, &mut signals).await?;
                if let Some(pid) = pid {
                    collector.child_ended(pid, ended);
                }
                ended
            }
            Err(error) => {
                collector.stop(None).await?;
                return Err(Error::failed(format!("{} could not be started: {error}", program.to_string_lossy())));
            }
        };
        let agents = collector.agent_count();
        let status = ended.code().unwrap_or_else(|| 128 + ended.signal().unwrap_or_default());
        // Not the reason for which the command fails: its status is its own.
        if let Err(error) = collector.stop(Some(status)).await {
            report::error(&error);
        }
        if agents == 0 {
            report::note("no training process connected, so nothing was recorded");
            report::hint(
                "the Python that trains needs the wheel: python -m pip show probe-agent (only processes that import torch and train connect)",
            );
        }
        Ok(status as Status)
    })
}

/// Waits for the child, handing on what others send us meanwhile.
async fn wait(mut child: Child, signals: &mut Signals) -> io::Result<ExitStatus> {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
    loop {
        tokio::select! {
            ended = child.wait() => return ended,
            signal = signals.next() => if let Some(pid) = pid && !child_had_it(signal) {
                // It may have ended just now.
                let _ = kill(pid, signal);
            },
        }
    }
}

/// Says why the command can't be started, with a shell's exit statuses.
fn not_started(program: &std::ffi::OsStr, missing: &Missing) -> Status {
    let program = program.to_string_lossy();
    match missing {
        Missing::NotFound => {
            report::error(
                &Error::failed(format!("there is no command '{program}'")).hint("give its path, or put it on PATH"),
            );
            127
        }
        Missing::NotExecutable(path) => {
            report::error(
                &Error::failed(format!("{} is not executable", path.display()))
                    .hint(format!("python {program}, or chmod +x")),
            );
            126
        }
    }
}
