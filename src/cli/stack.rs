//! `probe [ENDPOINT] stack`.

mod recorded;
mod rows;
pub(super) mod target;

use std::io::{self, Write};
use std::time::Duration;

use probe_common::error::{Error, ErrorKind, Result};
use probe_inspect::stacks::page;
use probe_proto::v1::{StackMethod, StacksAnswer, StacksCall};

use self::target::StackTarget;
use super::connect::{self, ConnectOptions};
use super::status::{CommandStatus, INTERRUPTED};
use super::watch::{INTERVAL, RedrawnScreen};
use crate::output::{self, OutputFormat, Terminal};

/// The default rate, in samples a second.
pub(super) const RATE: f64 = 100.0;

/// Show where every thread is
///
/// Shows the Python stacks of all processes of the run on the collector's node, innermost frame first, with the
/// current line. Stacks are read from memory while the processes run, so this also works when a process hangs in a
/// collective or with the GIL held. Ranks at the same place are one entry. A process id also works without an agent.
/// For a run that has ended, shows the last stacks that were read, for example when steps stopped.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] stack [OPTIONS]",
    after_help = "Examples:
  probe gpt stack
  probe gpt stack --rank 3 --watch 2s
  probe gpt stack --duration 10s
  probe 4711 stack --pause"
)]
pub(super) struct Args {
    /// Only this rank
    #[arg(long, value_name = "N")]
    rank: Option<i32>,
    /// Pause a process while it is read (some milliseconds), so that all frames are from one moment
    #[arg(long, conflicts_with_all = ["ask_agent", "duration"])]
    pause: bool,
    /// Also show C and C++ frames. Pauses the process like --pause, the first time for as long as it takes to read its
    /// libraries' symbols. Only in a build with the feature `native`
    #[arg(long, conflicts_with_all = ["ask_agent", "duration"])]
    native: bool,
    /// Ask the agent in the process instead of reading its memory. The agent needs the GIL to answer
    #[arg(long, conflicts_with = "duration")]
    ask_agent: bool,
    /// Sample for this long, and show where time was spent (10s, 1m)
    #[arg(long, value_name = "DURATION", value_parser = super::amounts::duration)]
    duration: Option<Duration>,
    /// Samples a second
    #[arg(long, value_name = "N", default_value_t = RATE, requires = "duration")]
    rate: f64,
    /// Repeat every INTERVAL (2s if not given), until Ctrl-C
    #[arg(long, value_name = "INTERVAL", value_parser = super::amounts::duration, num_args = 0..=1, default_missing_value = INTERVAL, conflicts_with = "duration")]
    watch: Option<Duration>,
    /// Output format: a page to read, or rows like those of python.stacks
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    connection: ConnectOptions,
}

impl Args {
    fn method(&self) -> StackMethod {
        match self {
            Self { native: true, .. } => StackMethod::Native,
            Self { pause: true, .. } => StackMethod::Paused,
            Self { ask_agent: true, .. } => StackMethod::Agent,
            _ => StackMethod::Auto,
        }
    }
}

pub(super) fn run(args: Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    args.format.check_stdout()?;
    if args.watch.is_some() && args.format != OutputFormat::Table {
        return Err(Error::usage("--watch shows pages, one after another")
            .hint("probe gpt query --watch asks python.stacks, which has every capture"));
    }
    let call = StacksCall {
        rank: args.rank,
        method: args.method().into(),
        duration_s: args.duration.map_or(0.0, |duration| duration.as_secs_f64()),
        rate: args.rate,
        ..StacksCall::default()
    };
    // Watching has no end of its own: an interrupt is its normal end.
    let interrupted = if args.watch.is_some() { 0 } else { INTERRUPTED };
    connect::interruptible_alone(interrupted, async {
        let mut target = StackTarget::find(endpoint, &args.connection).await?;
        if args.watch.is_some() && !target.is_live() {
            return Err(Error::usage("this run has ended: its stacks do not change any more")
                .hint("without --watch, those that were read last are shown"));
        }
        let Some(interval) = args.watch else {
            let answer = target.stacks(call).await?;
            let Args { format, .. } = args;
            show(&answer, &target, format)?;
            return status(&answer);
        };
        let mut screen = RedrawnScreen::default();
        let mut ticks = tokio::time::interval(interval);
        loop {
            ticks.tick().await;
            let answer = target.stacks(call).await?;
            let page = page::page(&answer, target.name());
            let terminal = Terminal::of_stdout();
            let read = if terminal.is_terminal() {
                let room = terminal.height.saturating_sub(1).max(1);
                output::unless_closed(screen.draw(page.lines().take(room), terminal))?
            } else {
                output::unless_closed(writeln!(io::stdout(), "{page}"))?
            };
            if !read {
                return Ok(0);
            }
        }
    })
}

fn show(answer: &StacksAnswer, target: &StackTarget, format: OutputFormat) -> Result<()> {
    if format != OutputFormat::Table {
        return rows::show(answer, format);
    }
    let sampled = answer.processes.iter().any(|process| process.samples > 1);
    let page = if sampled { page::sampled(answer, target.name()) } else { page::page(answer, target.name()) };
    let before = if target.is_live() { "" } else { "This run has ended. These stacks were read last:\n" };
    output::unless_closed(write!(io::stdout(), "{before}{page}")).map(|_| ())
}

/// The exit status. An answer without a thread of any process has failed: denied if a process may not be read.
pub(super) fn status(answer: &StacksAnswer) -> Result<CommandStatus> {
    if answer.processes.iter().any(|process| !process.threads.is_empty()) {
        return Ok(0);
    }
    let denied = answer.processes.iter().any(|process| process.problem.contains("may not be read"));
    Ok(if denied { ErrorKind::Denied } else { ErrorKind::Failed } as CommandStatus)
}
