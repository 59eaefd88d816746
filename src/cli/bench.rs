//! `probe [ENDPOINT] bench`.

mod answer;
mod figures;
mod page;

use std::io::{self, Write};
use std::time::Duration;

use futures::StreamExt;
use probe_client::Client;
use probe_common::error::{Error, Result};
use probe_proto::v1::{self, At, eval_event::Event};
use serde_json::json;

use self::answer::{BenchAnswer, Evaluation, SnippetOutput};
use super::connect::{ConnectOptions, with_client};
use super::eval::printer::SnippetPrinter;
use super::eval::{SnippetRank, before_deadline, call};
use super::status::CommandStatus;
use crate::output;
use crate::small_rows::rows;

/// Boundaries at which a module may not have been called yet.
const MAX_BOUNDARIES: u32 = 4;
/// What a process may print: its timings, and what the expressions print.
const MAX_OUTPUT: u64 = 16 << 20;

/// Time an expression in the training process
///
/// Evaluates a Python expression again and again between two steps, on one rank, with the names that the training code
/// uses, and reports the median and percentiles of one call. An expression whose value is a module (model.layers[3]) is
/// timed as calls of that module with inputs like those of its next call in training. Calls before the timing has settled
/// do not count, and the device is synchronized around each sample. Afterwards parameters, gradients, buffers, optimizers
/// and random numbers are as they were, so training goes on as if nothing had run. Training waits meanwhile.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] bench [OPTIONS] <EXPRESSION>",
    after_help = "Examples:
  probe gpt bench \"model.layers[3]\"
  probe gpt bench \"model(x)\" --seconds 10
  probe gpt bench \"optimizer.step()\" --rank 1
  probe gpt bench \"x @ w\" --against \"torch.einsum('ij,jk->ik', x, w)\""
)]
pub(super) struct Args {
    /// Python expression to time, or a module
    #[arg(value_name = "EXPRESSION")]
    expression: String,
    /// A second expression, timed in turn with the first
    #[arg(long, value_name = "EXPRESSION")]
    against: Option<String>,
    /// Time it on this rank [default: the lowest]
    #[arg(long, value_name = "N")]
    rank: Option<i32>,
    /// Seconds to spend on timing, warm-up included; at most 60. Three samples are taken however long they are
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "2")]
    seconds: f64,
    /// Give up after this long (30s, 2m)
    #[arg(long, value_name = "DURATION", value_parser = super::amounts::duration, default_value = "2m")]
    timeout: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectOptions,
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|seconds| (0.01..=60.0).contains(seconds)).ok_or_else(|| "0.01 to 60 seconds".to_owned())
}

pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    let expressions: Vec<&str> =
        std::iter::once(&args.expression).chain(&args.against).map(|text| text.trim()).collect();
    if expressions.contains(&"") {
        return Err(Error::usage("an expression is empty").hint("probe gpt bench \"model.layers[3]\""));
    }
    with_client(endpoint, &args.connection, async |mut client, _| {
        let rank = match args.rank {
            Some(rank) => Some(rank),
            None => lowest_rank(&mut client).await?,
        };
        for boundary in 1..=MAX_BOUNDARIES {
            let request = json!({
                "expressions": expressions, "seconds": args.seconds, "is_last": boundary == MAX_BOUNDARIES,
            });
            let code = format!(
                "__import__('probe_agent.benchmark.request', fromlist=['answer']).answer({:?}, globals())",
                request.to_string()
            );
            let call = call(code, At::Step, rank.map(SnippetRank::One), args.timeout, MAX_OUTPUT);
            let Some(found) = evaluate(&mut client, call).await? else { return Ok(1) };
            if let BenchAnswer::Timed(timed) = found.answer {
                let figures = figures::compute(&timed, &expressions);
                let text = if args.json {
                    format!("{}\n", page::json(&figures, &timed, found.rank, found.step, found.waited))
                } else {
                    page::text(&figures, &timed, found.rank, found.step, found.waited)
                };
                return output::unless_closed(io::stdout().write_all(text.as_bytes())).map(|_| 0);
            }
        }
        Err(Error::failed("the process did not report its measurement"))
    })
}

/// The lowest rank that is live; None where there are no ranks.
async fn lowest_rank(client: &mut Client) -> Result<Option<i32>> {
    let found = rows(client, "SELECT MIN(rank) FROM probe.agents WHERE state = 'live'").await?;
    Ok(found.first().and_then(|row| row.int(0)).and_then(|rank| i32::try_from(rank).ok()))
}

/// Runs the snippet. None where the expression raised an exception, which was shown.
async fn evaluate(client: &mut Client, call: v1::EvalCall) -> Result<Option<Evaluation>> {
    before_deadline(call.timeout_s, async {
        let mut events = client.eval(call).await?;
        let mut printed = SnippetOutput::default();
        let mut step = 0;
        let mut rank = None;
        while let Some(event) = events.next().await {
            match event?.event {
                Some(Event::Output(piece)) => printed.add_output(&piece.output.unwrap_or_default()),
                Some(Event::RankDone(rank_done)) => {
                    let done = rank_done.done.unwrap_or_default();
                    (rank, step) = (rank_done.rank, done.step);
                    printed.raised(&done);
                }
                Some(Event::Finished(finished)) => return printed.finish(&finished, rank, step),
                Some(Event::Notice(notice)) => SnippetPrinter::notice(&notice),
                Some(Event::Placement(_)) | None => {}
            }
        }
        Err(Error::failed("the collector disconnected before it reported the result of the timing"))
    })
    .await
}
