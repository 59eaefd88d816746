//! `probe [ENDPOINT] query SQL`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use datafusion::common::ScalarValue;
use probe_client::endpoint::FoundEndpoint;
use probe_client::{AnswerBounds, Client, Parameters};
use probe_common::error::{Error, Result};

use super::amounts::count;
use super::connect::{self, ConnectOptions, within};
use super::status::{CommandStatus, INTERRUPTED};
use super::watch::{self, RepeatedQuery};
use super::{input, parameter, report};
use crate::output::{self, OutputFormat, PrintedRows};

/// Query a run in SQL
///
/// SQL comes from the argument, from the file given with -f, or from standard input. Queries are read-only and see one
/// snapshot of the run. `probe tables` lists the tables.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] query [OPTIONS] [SQL]",
    after_help = "Examples:
  probe gpt query \"SELECT step, duration FROM python.steps ORDER BY step DESC LIMIT 5\"
  probe gpt query -f slow_modules.sql --format csv > slow.csv
  probe gpt query \"SELECT * FROM python.torch_trace\" -o trace.parquet
  probe gpt@2 query --with before=gpt@1 \"SELECT a.step, a.duration - b.duration AS slower_by
      FROM python.steps a JOIN before.python.steps b USING (step, rank) ORDER BY 1\"
  probe gpt query --param last=100 --param module=layers.0.attn \\
      \"SELECT step, duration FROM python.torch_trace WHERE step > $last AND module = $module\"
  probe gpt query --watch 5s \"SELECT rank, MAX(step) FROM python.steps GROUP BY rank\"
  echo 'SELECT COUNT(*) FROM python.torch_trace' | probe gpt@1 query --format json"
)]
pub(super) struct Args {
    /// SQL to run; - reads it from standard input
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// File to read the SQL from
    #[arg(short, long, value_name = "FILE", conflicts_with = "sql")]
    file: Option<PathBuf>,
    /// Output format [default: by the extension of -o FILE, else table]
    #[arg(long, value_enum, hide_default_value = true)]
    format: Option<OutputFormat>,
    /// Write the result to a file, which appears when the result is complete
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Repeat the query every INTERVAL (2s if not given), until Ctrl-C. Redraws a terminal and appends to anything
    /// else
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = watch::INTERVAL, conflicts_with = "output")]
    watch: Option<String>,
    /// Stop after N rows, and exit with status 5 if there are more; 0 means all rows [default: 10000 in a table,
    /// otherwise all]
    #[arg(long, value_name = "N")]
    limit_rows: Option<usize>,
    /// Add another run to the query: with --with b=gpt@1 its tables are b.python.steps and so on. Can be given several
    /// times
    #[arg(long, value_name = "NAME=ENDPOINT", value_parser = other_run)]
    with: Vec<(String, String)>,
    /// A value for $NAME in the SQL: an integer, a float, true, false or NULL if it looks like one, otherwise text.
    /// NAME:TYPE=VALUE says which: int, float, bool, text or timestamp. Can be given several times
    #[arg(long, value_name = "NAME[:TYPE]=VALUE", value_parser = parameter::parameter)]
    param: Vec<(String, ScalarValue)>,
    /// Cancel the query after this long (30s, 2m) [default and maximum: the collector's PROBE_QUERY_TIMEOUT]
    #[arg(long, value_name = "DURATION", value_parser = super::amounts::duration)]
    timeout: Option<Duration>,
    /// Fail with exit status 5 if the result has more rows [default and maximum: the collector's PROBE_QUERY_ROWS]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_rows: Option<u64>,
    /// Fail with exit status 5 if the result is larger (512M, 2G) [default and maximum: the collector's
    /// PROBE_QUERY_BYTES]
    #[arg(long, value_name = "SIZE", value_parser = super::amounts::bytes)]
    max_bytes: Option<u64>,
    #[command(flatten)]
    connection: ConnectOptions,
}

pub(super) fn run(mut args: Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    let interval = args.watch.take().map(|text| watch::interval(text, &mut args.sql, args.file.is_some()));
    let interval = interval.transpose()?;
    let example = "probe gpt query \"SELECT * FROM python.steps ORDER BY step DESC LIMIT 5\"";
    let sql = input::text(args.sql.as_deref(), args.file.as_deref(), "SQL", example)?;
    let format = match (args.format, &args.output) {
        (Some(format), _) => format,
        (None, Some(path)) => OutputFormat::of_file(path)?,
        (None, None) => OutputFormat::default(),
    };
    if args.output.is_none() {
        format.check_stdout()?;
    }
    let limit = match args.limit_rows {
        Some(0) => None,
        Some(rows) => Some(rows),
        None => format.default_rows(),
    };
    if let Some(name) =
        args.with.iter().enumerate().find_map(|(index, (name, _))| {
            args.with[..index].iter().any(|(earlier, _)| earlier == name).then_some(name)
        })
    {
        return Err(Error::usage(format!("--with names two runs '{name}'")));
    }
    let watch =
        interval.map(|interval| RepeatedQuery::new(sql.clone(), format, limit, interval, args.timeout)).transpose()?;
    let parameters = Parameters::new(std::mem::take(&mut args.param))?;
    let work = async |mut client: Client, target: &FoundEndpoint| {
        client.set_parameters(parameters.clone());
        client.set_bounds(AnswerBounds { timeout: args.timeout, rows: args.max_rows, bytes: args.max_bytes });
        let asked = async {
            match &watch {
                Some(watch) => watch.run(&mut client, target).await,
                None => within(args.timeout, answer(&mut client, &sql, format, limit, &args)).await,
            }
        };
        tokio::select! {
            status = asked => status,
            // Once the reader of the output is gone, a query need not go on until it has something to write, nor be repeated.
            () = connect::reader_gone() => Ok(0),
        }
    };
    // Watching has no end of its own: an interrupt is its normal end.
    let interrupted = if watch.is_some() { 0 } else { INTERRUPTED };
    if args.with.is_empty() {
        return connect::until(interrupted, endpoint, &args.connection, work);
    }
    connect::interruptible(interrupted, async {
        let (client, target) = connect::open_with(endpoint, &args.with, &args.connection).await?;
        work(client, &target).await
    })
}

/// NAME=ENDPOINT, whose name has to be one that SQL takes without quotes, and that means nothing else.
fn other_run(text: &str) -> Result<(String, String), String> {
    let (name, endpoint) = text
        .split_once('=')
        .filter(|(_, endpoint)| !endpoint.is_empty())
        .ok_or("write it like before=gpt@1: a name for the query, and an ENDPOINT")?;
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !plain {
        return Err(format!("'{name}' is not a name for a query: use a-z, 0-9 and _, and no digit first"));
    }
    if probe_query::is_taken(name) {
        return Err(format!("'{name}' means something else in queries: choose another name"));
    }
    Ok((name.to_owned(), endpoint.to_owned()))
}

async fn answer(
    client: &mut Client,
    sql: &str,
    format: OutputFormat,
    limit: Option<usize>,
    args: &Args,
) -> Result<CommandStatus> {
    let began = Instant::now();
    let answer = client.query(sql).await?;
    let printed = match &args.output {
        Some(path) => output::save(answer, format, limit, path).await?,
        None => output::print(answer, format, limit).await?,
    };
    if printed.more {
        return Err(cut(printed, args));
    }
    let rows = count(printed.rows);
    let seconds = began.elapsed().as_secs_f64();
    if !io::stderr().is_terminal() {
        // A program reads what was asked for, and nothing beside it.
    } else if let Some(path) = &args.output {
        report::note(format_args!("{rows} in {seconds:.3} s, written to {}", path.display()));
    } else if format == OutputFormat::Table && io::stdout().is_terminal() {
        report::note(format_args!("{rows} in {seconds:.3} s"));
    }
    Ok(0)
}

/// The end of an answer that a limit cut.
fn cut(printed: PrintedRows, args: &Args) -> Error {
    let rows = count(printed.rows);
    let first = match &args.output {
        Some(path) => format!("{} has only the first {rows}", path.display()),
        None => format!("this is only the first {rows}"),
    };
    let which = match args.limit_rows {
        Some(limit) => format!("--limit-rows {limit}"),
        None => "the limit of a table".to_owned(),
    };
    let hint = if args.limit_rows.is_some() {
        "use a larger --limit-rows N, or 0 for all rows"
    } else {
        "--limit-rows N has more of them, and 0 all; the other formats have no limit of their own"
    };
    Error::limit(format!("the answer was cut by {which}: {first}")).hint(hint)
}
