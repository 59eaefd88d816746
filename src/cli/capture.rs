//! `probe [ENDPOINT] capture`.

mod files;
mod page;
mod progress;

use std::path::PathBuf;
use std::time::Duration;

use futures::{Stream, StreamExt};
use probe_client::Client;
use probe_common::error::{Error, Result};
use probe_proto::v1::{CaptureCall, CaptureEvent, Captured, capture_event::Event};

use self::files::ReceivedTraces;
use self::progress::ShownProgress;
use super::connect::{ConnectOptions, with_client};
use super::status::CommandStatus;

/// Record what some steps do, operator by operator
///
/// Switches torch.profiler on in the training processes at one step boundary, on all chosen ranks at the same step, and off
/// again some steps later. Its events become rows of python.operators, gpu.kernels, gpu.launches and python.frames, with
/// the step, rank and module of each. Then shows what the steps did and what the capture cost. Ctrl-C ends a running
/// capture and discards it. If the program's own profiler is running, the capture is refused.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] capture [OPTIONS]",
    after_help = "Examples:
  probe gpt capture
  probe gpt capture --steps 3 --rank 0 --with shapes,modules
  probe gpt capture -o traces/                # and keep the traces, as torch wrote them
  probe gpt capture --memory                  # what holds the memory of each GPU now
  probe gpt capture --memory-history 3        # and what was allocated and freed in the next 3 steps
  probe gpt query \"SELECT name, calls, own FROM python.operator_profile WHERE capture = 'capture-1/rank0' ORDER BY own DESC\""
)]
pub(super) struct Args {
    /// Whole steps to record
    #[arg(long, value_name = "N", default_value_t = 5)]
    steps: u32,
    /// Ranks to record: all, or numbers (0,3)
    #[arg(long, value_name = "N,…|all", default_value = "all", value_parser = ranks)]
    rank: CaptureRanks,
    /// What to record in addition to operators and kernels. Stacks make steps much slower
    #[arg(long, value_enum, value_name = "WHAT,…", value_delimiter = ',', default_value = "modules")]
    with: Vec<CaptureDetail>,
    /// Take a snapshot of CUDA's memory allocator instead: rows of gpu.memory_blocks
    ///
    /// A process without CUDA has no such allocator. There the profiler's memory events of --steps steps are recorded instead.
    #[arg(long)]
    memory: bool,
    /// Record what the allocator does in N steps first: rows of python.memory_events. Implies --memory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    memory_history: Option<u32>,
    /// Also write the traces to this directory, one file a rank, as torch wrote them (Chrome JSON)
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Give up after this long (30s, 2m)
    #[arg(long, value_name = "DURATION", value_parser = super::amounts::duration, default_value = "2m")]
    timeout: Duration,
    /// Import at most this much of a rank's trace (64M, 1G); later events are only counted
    #[arg(long, value_name = "BYTES", value_parser = super::amounts::bytes, default_value = "512M")]
    max_bytes: u64,
    #[command(flatten)]
    connection: ConnectOptions,
}

/// Ranks that are asked for; none means all.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CaptureRanks(Vec<i32>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CaptureDetail {
    /// Shapes and types of operators' inputs
    Shapes,
    /// Python calls, as rows of python.frames
    Stacks,
    /// Allocations and frees, as rows of python.memory_events
    Memory,
    /// Floating-point operations of matrix products and convolutions
    Flops,
    /// The module of each operator, by its qualified name
    Modules,
    /// None of these
    None,
}

fn ranks(text: &str) -> Result<CaptureRanks, String> {
    if text == "all" {
        return Ok(CaptureRanks(Vec::new()));
    }
    let rank = |rank: &str| rank.trim().parse().ok().filter(|rank| *rank >= 0);
    let ranks: Option<Vec<i32>> = text.split(',').map(rank).collect();
    ranks.map(CaptureRanks).ok_or_else(|| "write it like 0, 0,3 or all".to_owned())
}

pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    let mut files = args.output.as_deref().map(ReceivedTraces::new).transpose()?;
    let has = |with: CaptureDetail| args.with.contains(&with);
    let call = CaptureCall {
        steps: args.steps,
        ranks: args.rank.0.clone(),
        pid: None,
        shapes: has(CaptureDetail::Shapes),
        stacks: has(CaptureDetail::Stacks),
        memory: has(CaptureDetail::Memory),
        flops: has(CaptureDetail::Flops),
        modules: has(CaptureDetail::Modules),
        timeout_s: args.timeout.as_secs_f64(),
        max_bytes: args.max_bytes,
        files: files.is_some(),
        snapshot: args.memory || args.memory_history.is_some(),
        history: args.memory_history.unwrap_or(0),
    };
    with_client(endpoint, &args.connection, async |mut client, _| {
        let mut events = client.capture(call).await?;
        let mut progress = ShownProgress::new(args.memory_history.unwrap_or(args.steps));
        let captured = receive(&mut events, &mut progress, &mut files).await;
        progress.clear();
        let captured = captured?;
        if let Some(files) = files {
            files.finish(&captured.capture)?;
        }
        show(&mut client, &captured).await
    })
}

async fn receive<E: Into<Error>>(
    events: &mut (impl Stream<Item = Result<CaptureEvent, E>> + Unpin),
    progress: &mut ShownProgress,
    files: &mut Option<ReceivedTraces>,
) -> Result<Captured> {
    while let Some(event) = events.next().await {
        match event.map_err(Into::into)?.event {
            Some(Event::Began(began)) => progress.begin(&began),
            Some(Event::Progress(done)) => progress.show(&done),
            Some(Event::Piece(piece)) => {
                if let Some(files) = files {
                    files.write_piece(&piece)?;
                }
            }
            Some(Event::Captured(captured)) => return Ok(captured),
            // An event of a newer collector.
            None => {}
        }
    }
    Err(Error::failed("the collector disconnected before it reported the result of the capture"))
}

async fn show(client: &mut Client, captured: &Captured) -> Result<CommandStatus> {
    page::show(client, captured).await?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_read_as_people_write_them() {
        assert_eq!(ranks("all"), Ok(CaptureRanks(vec![])));
        assert_eq!(ranks("0,3"), Ok(CaptureRanks(vec![0, 3])));
        assert!(["", "a", "0,", "-1", "0-3"].iter().all(|text| ranks(text).is_err()));
    }
}
