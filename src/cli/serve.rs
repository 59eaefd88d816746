//! `probe serve`: a collector by itself.

use std::time::Duration;

use nix::sys::signal::SigSet;

use super::listen::{self, Listening};
use super::signals::Signals;
use super::{Status, ask, report};
use crate::collector::{Collector, Options};
use crate::error::Result;

/// Run a collector by itself
///
/// For training that something else starts: give it PROBE=1 and PROBE_COLLECTOR, which this command prints.
/// SIGTERM and Ctrl-C end it; what it has is then written to the run's directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  probe serve --name gpt
  probe serve --name gpt --listen 0.0.0.0:7777 --tls-self-signed
  probe serve --name gpt --exit-when-idle 5m
  probe serve --resume gpt@2")]
pub(super) struct Args {
    /// What to call the run
    #[arg(long, default_value = "training", env = probe_proto::env::PROBE_RUN)]
    name: String,
    /// Go on with a run whose collector died: its agents find it again, and send what was not kept
    #[arg(long, value_name = "RUN", conflicts_with = "name")]
    resume: Option<String>,
    #[command(flatten)]
    listening: Listening,
    /// End when no process has been connected for so long
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    exit_when_idle: Option<Duration>,
}

pub(super) fn run(args: Args) -> Result<Status> {
    // Whoever started it may have blocked them all, as an agent does for its threads, and a mask is inherited.
    let _ = SigSet::empty().thread_set_mask();
    let resume = args.resume.is_some();
    let name = args.resume.unwrap_or(args.name);
    let options = Options { resume, ..args.listening.options(name, String::new(), args.exit_when_idle)? };
    ask::many_threads()?.block_on(async {
        let mut signals = Signals::listen()?;
        let collector = Collector::start(options).await?;
        let endpoint = collector.endpoint();
        // The run's own socket comes first.
        let listening: Vec<String> = collector.listening().iter().skip(1).map(|listen| format!(", {listen}")).collect();
        report::note(format_args!("run {} at {endpoint}{}", collector.run(), listening.concat()));
        listen::say_pin(&collector);
        report::note(format_args!("train with: PROBE=1 PROBE_COLLECTOR={endpoint} python train.py"));
        tokio::select! {
            _ = signals.next() => {}
            () = collector.idle() => report::note("idle, ending"),
        }
        collector.stop(None).await?;
        Ok(0)
    })
}
