//! `probe [ENDPOINT] query SQL`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::ask::{Connection, ask, ask_until};
use super::watch::{self, Watch};
use super::{Status, input, report};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::output::{self, Format, Printed};

/// Ask in SQL
///
/// SQL is the argument, the file given with -f, or standard input. It is read-only, and sees one instant of the run.
/// `probe tables` says what can be asked.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] query [OPTIONS] [SQL]",
    after_help = "Examples:
  probe gpt query \"SELECT step, duration FROM python.steps ORDER BY step DESC LIMIT 5\"
  probe gpt query -f slow_modules.sql --format csv > slow.csv
  probe gpt query \"SELECT * FROM python.torch_trace\" -o trace.parquet
  probe gpt query --watch 5s \"SELECT rank, MAX(step) FROM python.steps GROUP BY rank\"
  echo 'SELECT COUNT(*) FROM python.torch_trace' | probe gpt@1 query --format json"
)]
pub(super) struct Args {
    /// What to ask; - reads it from standard input
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// File to read the SQL from
    #[arg(short, long, value_name = "FILE", conflicts_with = "sql")]
    file: Option<PathBuf>,
    /// How the answer looks [default: what FILE of -o ends in, else table]
    #[arg(long, value_enum, hide_default_value = true)]
    format: Option<Format>,
    /// Write the answer to a file, which appears when the answer is whole
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Ask again every INTERVAL (2s where none is given): redraws a terminal, and appends to anything else. Ctrl-C ends
    /// it
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = watch::INTERVAL, conflicts_with = "output")]
    watch: Option<String>,
    /// Stop after so many rows, and exit with 5 where there are more; 0 is all of them [default: 10000 in a table,
    /// otherwise all]
    #[arg(long, value_name = "N")]
    limit_rows: Option<usize>,
    /// Give up after so long (30s, 2m)
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn run(mut args: Args, endpoint: Option<&str>) -> Result<Status> {
    let interval = args.watch.take().map(|text| watch::interval(text, &mut args.sql, args.file.is_some()));
    let interval = interval.transpose()?;
    let example = "probe gpt query \"SELECT * FROM python.steps ORDER BY step DESC LIMIT 5\"";
    let sql = input::text(args.sql.as_deref(), args.file.as_deref(), "SQL", example)?;
    let by_name = || args.output.as_deref().and_then(Format::of_file);
    let format = args.format.or_else(by_name).unwrap_or_default();
    if args.output.is_none() {
        format.check_stdout()?;
    }
    let limit = match args.limit_rows {
        Some(0) => None,
        Some(rows) => Some(rows),
        None => format.default_rows(),
    };
    if let Some(interval) = interval {
        let watch = Watch::new(sql, format, limit, interval, args.timeout)?;
        return ask_until(0, endpoint, &args.connection, async |client, target| watch.run(client, target).await);
    }
    ask(endpoint, &args.connection, async |client, _| {
        let asked = answer(client, &sql, format, limit, &args);
        within(args.timeout, asked).await
    })
}

/// The same, but for the time it may take.
pub(super) async fn within<T>(timeout: Option<Duration>, asked: impl Future<Output = Result<T>>) -> Result<T> {
    let Some(timeout) = timeout else { return asked.await };
    tokio::time::timeout(timeout, asked).await.unwrap_or_else(|_| {
        Err(Error::limit(format!("no whole answer within {}", humantime::format_duration(timeout)))
            .hint("ask for fewer rows or steps, or give it longer with --timeout"))
    })
}

async fn answer(mut client: Client, sql: &str, format: Format, limit: Option<usize>, args: &Args) -> Result<Status> {
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
    } else if format == Format::Table && io::stdout().is_terminal() {
        report::note(format_args!("{rows} in {seconds:.3} s"));
    }
    Ok(0)
}

/// The end of an answer that a limit cut.
fn cut(printed: Printed, args: &Args) -> Error {
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
        "a larger --limit-rows N has more of them, and 0 all"
    } else {
        "--limit-rows N has more of them, and 0 all; the other formats have no limit of their own"
    };
    Error::limit(format!("the answer was cut by {which}: {first}")).hint(hint)
}

/// "1 row", "2 rows".
pub(super) fn count(rows: usize) -> String {
    if rows == 1 { "1 row".to_owned() } else { format!("{rows} rows") }
}
