//! `probe [ENDPOINT] diagnose`.

use std::io::{self, Write};
use std::path::PathBuf;

use super::ask::{Connection, ask};
use super::status::Status;
use crate::diagnose::{self, Diagnosis, FEWEST, Severity, rule};
use crate::output;
use crate::step_window::Window;
use probe_common::error::{Error, Result};

/// A finding is at least as severe as --fail-on says.
const FOUND: Status = 6;
/// Too little was recorded to tell.
const TOO_LITTLE: Status = 7;

/// How the answer looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum Format {
    /// A page to read
    #[default]
    Table,
    /// One object with everything
    Json,
    /// One object per line, one for each finding
    Ndjson,
}

/// Say why steps take as long as they do
///
/// Lists what stands out, what it costs, what to do about it and what that would save. Then shows where the time of a step
/// goes, in parts that sum to it exactly. A large share is not a cause: each rule compares with a reference, and says
/// nothing if nothing exceeds it. The command only reads what is recorded, of a live run or of one that has ended.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] diagnose [OPTIONS]",
    after_help = "Examples:
  probe gpt diagnose
  probe gpt@1 diagnose --steps 100..400 --json
  probe gpt diagnose --sql 1                  # the query behind the first finding
  probe gpt diagnose --fail-on warn           # exit status 6 if there is one, 7 if too little is recorded"
)]
pub(super) struct Args {
    /// Steps to look at: 10..50 (both included), 100.., ..99 [default: the newest 1000]
    #[arg(long, value_name = "WINDOW")]
    steps: Option<Window>,
    /// Print the SQL behind finding N
    #[arg(long, value_name = "N")]
    sql: Option<usize>,
    /// Exit with status 6 if a finding is at least this severe, and with 7 if too little is recorded to tell
    #[arg(long, value_enum, value_name = "SEVERITY")]
    fail_on: Option<Severity>,
    /// Directory of your own rules, in addition to the built-in ones: files that end in .sql
    #[arg(long, value_name = "DIR")]
    rules: Option<PathBuf>,
    /// How the answer looks
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<Status> {
    let own = args.rules.as_deref().map(rule::of_directory).transpose()?.unwrap_or_default();
    ask(endpoint, &args.connection, async |mut client, target| {
        let name = target.pid.map_or_else(|| target.place.name(), |pid| format!("process {pid}"));
        let done = diagnose::diagnose(&mut client, &name, args.steps, own).await?;
        let text = match (args.sql, if args.json { Format::Json } else { args.format }) {
            (Some(number), _) => sql(&done, number)?,
            (None, Format::Table) => diagnose::page(&done, &name),
            (None, Format::Json) => format!("{:#}\n", diagnose::json(&done, &name)),
            (None, Format::Ndjson) => done.findings.iter().map(|finding| format!("{}\n", finding.json())).collect(),
        };
        output::unless_closed(write!(io::stdout(), "{text}"))?;
        Ok(status(&done, args.fail_on))
    })
}

fn sql(done: &Diagnosis, number: usize) -> Result<String> {
    let finding = number.checked_sub(1).and_then(|place| done.findings.get(place));
    finding.map(|finding| format!("{}\n", finding.sql)).ok_or_else(|| {
        let count = done.findings.len();
        Error::usage(format!("there is no finding {number}")).hint(match count {
            0 => "nothing stands out".to_owned(),
            count => format!("they are 1..{count}"),
        })
    })
}

/// What is only possible never fails a build.
fn status(done: &Diagnosis, fail_on: Option<Severity>) -> Status {
    let Some(least) = fail_on else { return 0 };
    if done.findings.iter().any(|of| of.severity >= least && of.confidence != "possible") {
        FOUND
    } else if done.steps.count() < FEWEST || !done.fits() {
        TOO_LITTLE
    } else {
        0
    }
}
