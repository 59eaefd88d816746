//! `probe [ENDPOINT] flamegraph`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use probe_common::error::Result;
use probe_inspect::stacks::flame::{self, StackChoice};
use probe_proto::v1::{StackMethod, StacksAnswer, StacksCall};

use super::connect::{self, ConnectOptions};
use super::report;
use super::stack::target::StackTarget;
use super::stack::{RATE, status};
use super::status::{CommandStatus, INTERRUPTED};
use crate::output::{self, UnfinishedFile};
use crate::profile::{self, CaptureSelection, StackWeight};
use crate::step_window::StepWindow;

/// Sample stacks and draw a flame graph
///
/// Reads the Python stacks of all processes many times a second while they run, and writes a flame graph. It includes
/// main threads, and other threads while they ran. python.stacks keeps the samples. With --operators nothing is sampled: the
/// operators of captures are drawn, also of a run that has ended.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] flamegraph [OPTIONS]",
    after_help = "Examples:
  probe gpt flamegraph -o gpt.svg
  probe gpt flamegraph --by-rank --duration 30s -o ranks.svg
  probe gpt flamegraph -o gpt.speedscope.json
  probe 4711 flamegraph --format folded > stacks.txt
  probe gpt flamegraph --operators --weight device -o kernels.svg"
)]
pub(super) struct Args {
    /// Write to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Output format [default: by the extension of FILE, else svg]
    #[arg(long, value_enum, hide_default_value = true)]
    format: Option<FlamegraphFormat>,
    /// How long to sample
    #[arg(long, value_name = "DURATION", value_parser = super::amounts::duration, default_value = "10s")]
    duration: Duration,
    /// Samples a second
    #[arg(long, value_name = "N", default_value_t = RATE)]
    rate: f64,
    /// Draw the operators that were captured or imported, by their own time
    #[arg(long, conflicts_with_all = ["duration", "rate", "idle"])]
    operators: bool,
    /// What the width of an operator is
    #[arg(long, value_enum, default_value_t, requires = "operators")]
    weight: StackWeight,
    /// Steps whose operators are drawn: 10..50 (both included), 100.., ..99 [default: all that were captured]
    #[arg(long, value_name = "WINDOW", requires = "operators")]
    steps: Option<StepWindow>,
    /// Only this rank
    #[arg(long, value_name = "N")]
    rank: Option<i32>,
    /// Draw ranks beside each other instead of together
    #[arg(long)]
    by_rank: bool,
    /// Include other threads than the main one while they wait
    #[arg(long)]
    idle: bool,
    #[command(flatten)]
    connection: ConnectOptions,
}

/// What a flame graph is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum FlamegraphFormat {
    /// An image for browsers
    Svg,
    /// One line per stack with its count, for flamegraph.pl and others
    Folded,
    /// JSON for speedscope.app
    Speedscope,
}

impl FlamegraphFormat {
    fn of_file(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "svg" => Some(Self::Svg),
            "json" => Some(Self::Speedscope),
            "txt" | "folded" => Some(Self::Folded),
            _ => None,
        }
    }
}

pub(super) fn run(args: Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    let shape = args
        .format
        .or_else(|| args.output.as_deref().and_then(FlamegraphFormat::of_file))
        .unwrap_or(FlamegraphFormat::Svg);
    // Before anything is sampled in vain.
    let file = args.output.as_deref().map(UnfinishedFile::create).transpose()?;
    if args.operators {
        return operators(&args, endpoint, shape, file);
    }
    let call = StacksCall {
        rank: args.rank,
        method: StackMethod::Auto.into(),
        duration_s: args.duration.as_secs_f64(),
        rate: args.rate,
        ..StacksCall::default()
    };
    connect::interruptible_alone(INTERRUPTED, async {
        let mut target = StackTarget::find(endpoint, &args.connection).await?;
        report::note(format_args!(
            "sampling {} for {}, {} times a second",
            target.name(),
            humantime::format_duration(args.duration),
            args.rate
        ));
        let answer = target.stacks(call).await?;
        for process in answer.processes.iter().filter(|process| !process.problem.is_empty()) {
            report::note(format_args!("process {}: {}", process.pid, process.problem));
            if !process.hint.is_empty() {
                report::hint(&process.hint);
            }
        }
        if answer.processes.iter().all(|process| process.threads.is_empty()) {
            return status(&answer);
        }
        let drawn = draw(&answer, shape, StackChoice { by_rank: args.by_rank, idle: args.idle }, target.name())?;
        let samples: u64 = answer.processes.iter().map(|process| process.samples).sum();
        deliver(&args, file, &drawn, &format!("{samples} samples"))?;
        Ok(0)
    })
}

/// Writes what was drawn to the requested file or to standard output.
fn deliver(args: &Args, file: Option<UnfinishedFile>, drawn: &[u8], what: &str) -> Result<()> {
    match (&args.output, file) {
        (Some(path), Some(file)) => {
            file.file()?.write_all(drawn).map_err(|error| file.failed(error))?;
            file.finish()?;
            report::note(format_args!("{what}, written to {}", path.display()));
        }
        _ => drop(output::unless_closed(io::stdout().write_all(drawn))?),
    }
    Ok(())
}

/// Draws the operators of captures.
fn operators(
    args: &Args,
    endpoint: Option<&str>,
    shape: FlamegraphFormat,
    file: Option<UnfinishedFile>,
) -> Result<CommandStatus> {
    let selection = CaptureSelection { steps: args.steps, ranks: args.rank.map(|rank| vec![i64::from(rank)]) };
    connect::with_client(endpoint, &args.connection, async |mut client, target| {
        let name = target.pid.map_or_else(|| target.location.name(), |pid| format!("process {pid}"));
        let folded = profile::folded(&mut client, &name, &selection, args.weight, args.by_rank).await?;
        let sum: u64 = folded.values().sum();
        let mut drawn = Vec::new();
        match shape {
            FlamegraphFormat::Svg => flame::svg_of_stacks(&folded, &format!("{name}: operators"), "ns", &mut drawn)?,
            FlamegraphFormat::Folded => flame::fold(&folded).iter().try_for_each(|line| writeln!(drawn, "{line}"))?,
            FlamegraphFormat::Speedscope => {
                writeln!(drawn, "{}", flame::speedscope_of_stacks(&folded, &name, "nanoseconds"))?
            }
        }
        let on = if args.weight == StackWeight::Host { "the host" } else { "devices" };
        deliver(
            args,
            file,
            &drawn,
            &format!("{:.3} s on {on} in {} stacks of operators", sum as f64 / 1e9, folded.len()),
        )?;
        Ok(0)
    })
}

fn draw(answer: &StacksAnswer, shape: FlamegraphFormat, choice: StackChoice, name: &str) -> Result<Vec<u8>> {
    let mut drawn = Vec::new();
    match shape {
        FlamegraphFormat::Svg => flame::svg(answer, choice, name, &mut drawn)?,
        FlamegraphFormat::Folded => {
            for line in flame::folded(answer, choice) {
                writeln!(drawn, "{line}")?;
            }
        }
        FlamegraphFormat::Speedscope => writeln!(drawn, "{}", flame::speedscope(answer, choice, name))?,
    }
    Ok(drawn)
}
