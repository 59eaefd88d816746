//! `probe [ENDPOINT] query SQL`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::ask::{Connection, ask};
use super::{Status, input, report};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::output::{self, Format};

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
  echo 'SELECT COUNT(*) FROM python.torch_trace' | probe gpt@1 query --format json"
)]
pub(super) struct Args {
    /// What to ask; - reads it from standard input
    #[arg(value_name = "SQL")]
    sql: Option<String>,
    /// File to read the SQL from
    #[arg(short, long, value_name = "FILE", conflicts_with = "sql")]
    file: Option<PathBuf>,
    /// How the answer looks
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Show at most so many rows; 0 is all of them [default: 10000 in a table, otherwise all]
    #[arg(long, value_name = "N")]
    limit_rows: Option<usize>,
    /// Give up after so long (30s, 2m)
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn run(args: Args, endpoint: Option<&str>) -> Result<Status> {
    let example = "probe gpt query \"SELECT * FROM python.steps ORDER BY step DESC LIMIT 5\"";
    let sql = input::text(args.sql.as_deref(), args.file.as_deref(), "SQL", example)?;
    let limit = match args.limit_rows {
        Some(0) => None,
        Some(rows) => Some(rows),
        None => args.format.default_rows(),
    };
    let answer = async |mut client: Client, _: &_| {
        client.give_up_after(args.timeout);
        let asked = answer(client, &sql, args.format, limit);
        match args.timeout {
            None => asked.await,
            Some(timeout) => tokio::time::timeout(timeout, asked).await.unwrap_or_else(|_| {
                Err(Error::limit(format!("no whole answer within {}", humantime::format_duration(timeout)))
                    .hint("ask for fewer rows or steps, or give it longer with --timeout"))
            }),
        }
    };
    ask(endpoint, &args.connection, answer)
}

async fn answer(mut client: Client, sql: &str, format: Format, limit: Option<usize>) -> Result<Status> {
    let began = Instant::now();
    let answer = client.query(sql).await?;
    let printed = output::print(answer, format, limit).await?;
    if printed.more {
        report::note(format_args!(
            "these are the first {} rows; there are more (--limit-rows N, or another --format)",
            printed.rows
        ));
    } else if format == Format::Table && io::stdout().is_terminal() && io::stderr().is_terminal() {
        let rows = if printed.rows == 1 { "row" } else { "rows" };
        report::note(format_args!("{} {rows} in {:.3} s", printed.rows, began.elapsed().as_secs_f64()));
    }
    Ok(0)
}
