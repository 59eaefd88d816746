//! `probe [ENDPOINT] eval CODE`.

pub(super) mod printer;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use futures::StreamExt;
use probe_client::Client;
use probe_common::error::{Error, Result};
use probe_proto::v1::{self, At, eval_event::Event};

use self::printer::SnippetPrinter;
use super::connect::{ConnectOptions, with_client};
use super::input;
use super::status::CommandStatus;

/// Run Python in the training process
///
/// The snippet can use the names that the training code uses. A snippet that only reads runs at once, beside training.
/// A snippet that calls live objects runs between two steps, on all ranks at the same step.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] eval [OPTIONS] [CODE]",
    after_help = "Examples:
  probe gpt eval \"print(train_loader.num_workers)\"
  probe gpt eval --rank all \"print(loss.item())\"
  probe gpt eval --at step -f snippet.py
  probe gpt eval --session mine \"before = loss.item()\"
  probe gpt eval --frames
  probe gpt eval --frame 2 \"print(sorted(vars()))\""
)]
pub(super) struct Args {
    /// Python code to run; - reads it from standard input
    #[arg(value_name = "CODE")]
    code: Option<String>,
    /// File to read the snippet from
    #[arg(short, long, value_name = "FILE", conflicts_with = "code")]
    file: Option<PathBuf>,
    /// Run on this rank only, or show the output of every rank (all)
    #[arg(long, value_name = "N|all", value_parser = rank)]
    rank: Option<SnippetRank>,
    /// Keep the variables that the snippet assigns, for the next snippet of this session
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// Delete the session's variables after the snippet
    #[arg(long, requires = "session")]
    end_session: bool,
    /// Use the names of one frame of the training thread, by its number in --frames
    #[arg(long, value_name = "N")]
    frame: Option<u32>,
    /// List the frames of the training thread, outermost first, without running anything
    #[arg(long, conflicts_with_all = ["code", "file", "frame", "session", "end_session"])]
    frames: bool,
    /// Where to run the snippet
    #[arg(long, value_parser = at_parser(), default_value = At::Auto.as_str())]
    at: At,
    /// Cancel the snippet after this long (30s, 2m)
    #[arg(long, value_name = "DURATION", value_parser = super::amounts::duration, default_value = "30s")]
    timeout: Duration,
    /// End the snippet when it has printed this much (64K, 16M; at most 64M)
    #[arg(long, value_name = "BYTES", value_parser = super::amounts::bytes, default_value = "16M")]
    max_output: u64,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: EvalFormat,
    #[command(flatten)]
    connection: ConnectOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum EvalFormat {
    /// What the snippet prints, as it prints it
    #[default]
    Text,
    /// One object per line for each thing that happens: placed (where it runs), output, done (on one rank), finished
    Ndjson,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SnippetRank {
    One(i32),
    All,
}

/// Reads the protocol's words, and shows them in help with what they mean.
fn at_parser() -> impl TypedValueParser<Value = At> {
    let words = At::ALL.map(|at| PossibleValue::new(at.as_str()).help(at.meaning()));
    PossibleValuesParser::new(words).map(|word| At::parse(&word).unwrap_or_default())
}

/// The snippet that lists frames: the process knows which are the training code's.
pub(super) const FRAMES: &str = "__import__('probe_agent.eval.frames', fromlist=['show']).show()";

/// How long after a snippet's deadline its end is waited for.
const EXTRA_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) fn rank(text: &str) -> Result<SnippetRank, String> {
    match text {
        "all" => Ok(SnippetRank::All),
        number => number
            .parse()
            .ok()
            .filter(|rank| *rank >= 0)
            .map(SnippetRank::One)
            .ok_or_else(|| "a rank's number, or all".into()),
    }
}

pub(super) fn run(args: Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    let (code, file) = (args.code.as_deref(), args.file.as_deref());
    let code = match (code.unwrap_or_default(), file) {
        _ if args.frames => FRAMES.to_owned(),
        ("", None) if args.end_session => String::new(),
        _ => input::text(code, file, "snippet", "probe gpt eval \"print(model)\"")?,
    };
    let mut call = call(code, args.at, args.rank, args.timeout, args.max_output);
    call.session = args.session.unwrap_or_default();
    call.end_session = args.end_session;
    call.frame = args.frame;
    if args.frames && args.at == At::Auto {
        call.at = At::Now as i32;
    }
    let printer = SnippetPrinter::with(call.all_ranks, args.format == EvalFormat::Ndjson);
    with_client(endpoint, &args.connection, async |mut client, _| show_by(&mut client, call, printer).await)
}

/// A request to a collector, in no session.
pub(super) fn call(
    code: String,
    at: At,
    rank: Option<SnippetRank>,
    timeout: Duration,
    max_output: u64,
) -> v1::EvalCall {
    v1::EvalCall {
        code,
        at: at as i32,
        timeout_s: timeout.as_secs_f64(),
        max_output,
        pid: None,
        rank: match rank {
            Some(SnippetRank::One(rank)) => Some(rank),
            _ => None,
        },
        all_ranks: rank == Some(SnippetRank::All),
        ..v1::EvalCall::default()
    }
}

/// Runs a snippet, and shows what it prints and how it ended.
pub(super) async fn show(client: &mut Client, call: v1::EvalCall) -> Result<CommandStatus> {
    let printer = SnippetPrinter::new(call.all_ranks);
    show_by(client, call, printer).await
}

async fn show_by(client: &mut Client, call: v1::EvalCall, printer: SnippetPrinter) -> Result<CommandStatus> {
    before_deadline(call.timeout_s, evaluate(client, call, printer)).await
}

/// Waits for the end of a snippet that may take `timeout_s` seconds.
pub(super) async fn before_deadline<T>(timeout_s: f64, evaluated: impl Future<Output = Result<T>>) -> Result<T> {
    let deadline = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX).saturating_add(EXTRA_TIMEOUT);
    tokio::time::timeout(deadline, evaluated).await.unwrap_or_else(|_| {
        Err(Error::limit("the collector has not reported the result of the snippet, long after its deadline"))
    })
}

async fn evaluate(client: &mut Client, call: v1::EvalCall, mut printer: SnippetPrinter) -> Result<CommandStatus> {
    let mut events = client.eval(call).await?;
    while let Some(event) = events.next().await {
        match event?.event {
            Some(Event::Placement(placement)) => printer.placed(placement)?,
            Some(Event::Output(output)) => printer.output(output.rank, output.output.unwrap_or_default())?,
            Some(Event::RankDone(done)) => printer.rank_done(done.rank, done.done.unwrap_or_default())?,
            Some(Event::Finished(finished)) => return printer.finished(finished),
            Some(Event::Notice(notice)) => SnippetPrinter::notice(&notice),
            // An event of a newer collector.
            None => {}
        }
    }
    Err(Error::failed("the collector disconnected before it reported the result of the snippet"))
}
