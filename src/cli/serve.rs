//! `probe serve`: a collector by itself.

mod findings;

use std::fs;
use std::time::Duration;

use nix::sys::signal::SigSet;
use nix::unistd::setsid;
use probe_collector::{Collector, CollectorOptions};
use probe_common::error::Result;

use super::listen::{self, ListenOptions};
use super::run::greeting::{self, LaunchMessage, ReadyMessage};
use super::signals::EndingSignals;
use super::status::CommandStatus;
use super::{connect, report};

/// How long the first process is waited for where the collector is to end when it is idle.
const FIRST_AGENT: Duration = Duration::from_secs(60);
/// A collector whose launcher is gone ends when no process has been connected for this long.
const QUIET: Duration = Duration::from_secs(10);
/// What the kernel adds to the memory of this process when it chooses a process to end, in thousandths of all memory: that of
/// the control group, if its limit was reached. This is the largest value, and the only one that puts a collector first
/// whatever its memory: with 500, training that has half of the memory more than the collector goes first.
const OOM_SCORE: &str = "1000";

/// Run a collector by itself
///
/// Use this when something else starts training: set PROBE=1 and the PROBE_COLLECTOR that this command prints in its
/// environment. SIGTERM and Ctrl-C end the collector, which then writes its rows to the run's directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  probe serve --name gpt
  probe serve --name gpt --listen 0.0.0.0:7777 --tls-self-signed
  probe serve --name gpt --exit-when-idle 5m
  probe serve --resume gpt@2")]
pub(super) struct Args {
    /// Name of the run
    #[arg(long, default_value = "training", env = probe_proto::env::PROBE_RUN)]
    name: String,
    /// Continue a run whose collector died. Its agents reconnect and send the rows that were not stored
    #[arg(long, value_name = "RUN", conflicts_with = "name")]
    resume: Option<String>,
    #[command(flatten)]
    listening: ListenOptions,
    /// Exit when no process has been connected for this long, or none connects within the first minute
    #[arg(long, value_name = "DURATION", value_parser = super::amounts::duration)]
    exit_when_idle: Option<Duration>,
    /// Started by probe run, which sends the rest on standard input and reads on standard output where the collector is
    #[arg(long, hide = true)]
    launched: bool,
}

pub(super) fn run(args: Args) -> Result<CommandStatus> {
    // The parent may have blocked all signals, as an agent does for its threads, and a mask is inherited.
    let _ = SigSet::empty().thread_set_mask();
    probe_query::keep_little();
    let launch = if args.launched { Some(launched()?) } else { None };
    end_before_training();
    probe_collector::server::raise_file_limit();
    let diagnose_every = findings::interval()?;
    let resume = args.resume.is_some();
    let name = args.resume.unwrap_or(args.name);
    let may_rename = launch.as_ref().is_some_and(|launch| launch.may_rename);
    let command = launch.map(|launch| launch.command).unwrap_or_default();
    let options = CollectorOptions { resume, may_rename, ..args.listening.options(name, command)? };
    connect::many_threads()?.block_on(async {
        let signals = EndingSignals::listen()?;
        let collector = Collector::start(options).await?;
        if args.launched {
            listen::say_pin(&collector);
            ReadyMessage { run: collector.run().to_owned(), endpoint: collector.endpoint() }.say();
        } else {
            say(&collector);
        }
        let findings = diagnose_every.map(|interval| findings::watch(&collector, interval)).transpose()?;
        let exit_status = until_over(&collector, signals, args.exit_when_idle, args.launched).await?;
        drop(findings);
        match collector.stop(exit_status).await {
            // The launcher has got the error, and prints it.
            Err(error) if exit_status.is_some() => Ok(error.kind() as CommandStatus),
            stopped => stopped.map(|()| 0),
        }
    })
}

/// Waits until the collector has to end. Returns the command's exit status where the launcher has sent it.
async fn until_over(
    collector: &Collector,
    mut signals: EndingSignals,
    exit_when_idle: Option<Duration>,
    launched: bool,
) -> Result<Option<i32>> {
    if launched {
        // Schedulers that end a job send signals to all of its processes. The command may take its time to end, and what
        // it does meanwhile is recorded: its launcher says when it has ended.
        tokio::select! {
            status = collector.command_ended() => return Ok(Some(status)),
            gone = greeting::launcher_gone() => gone?,
        }
        signals = EndingSignals::listen()?;
    }
    let idle = async {
        match (exit_when_idle, launched) {
            (Some(quiet), _) => collector.idle(quiet, FIRST_AGENT).await,
            (None, true) => collector.idle(QUIET, QUIET).await,
            (None, false) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = signals.next() => Ok(None),
        status = collector.command_ended() => Ok(Some(status)),
        () = idle => {
            report::note("idle, ending");
            Ok(None)
        }
    }
}

/// Leaves the launcher's terminal, whose Ctrl-C is for the command, and reads the launcher's message.
fn launched() -> Result<LaunchMessage> {
    // This fails for the leader of a process group, which was started in a group of its own.
    let _ = setsid();
    LaunchMessage::read()
}

/// Makes the kernel end a collector rather than training when memory runs out: another collector takes over the run.
fn end_before_training() {
    // Raising the score needs no privilege.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
}

/// Prints where the collector listens, and how to train with it.
fn say(collector: &Collector) {
    let endpoint = collector.endpoint();
    // The run's own socket comes first.
    let listening: Vec<String> = collector.listening().iter().skip(1).map(|listen| format!(", {listen}")).collect();
    report::note(format_args!("run {} at {endpoint}{}", collector.run(), listening.concat()));
    listen::say_pin(collector);
    report::note(format_args!("train with: PROBE=1 PROBE_COLLECTOR={endpoint} python train.py"));
}
