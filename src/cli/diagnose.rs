//! `probe [ENDPOINT] diagnose`.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::connect::{self, ConnectOptions};
use super::report;
use super::status::{CommandStatus, INTERRUPTED};
use crate::diagnose::rule::Rule;
use crate::diagnose::rule_files;
use crate::diagnose::{self, Diagnosis, DiagnosisSettings, Finding, MIN_STEPS, Reference, Severity};
use crate::output;
use crate::step_window::StepWindow;
use probe_client::Client;
use probe_client::endpoint::FoundEndpoint;
use probe_common::error::{Error, ErrorKind, Result};

/// A finding is at least as severe as --fail-on says.
const FOUND: CommandStatus = 6;
/// Too little was recorded to tell.
const TOO_LITTLE: CommandStatus = 7;

/// Rows that --sql shows.
const ROWS_OF_SQL: usize = 10;

/// How long a run whose collector was lost is asked again, and how often. A collector that was killed takes connections until the
/// kernel has freed its memory, and a new one may take its place.
const RETRY_FOR: Duration = Duration::from_secs(10);
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// How the answer looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum DiagnosisFormat {
    /// A page to read
    #[default]
    Table,
    /// One object with everything
    Json,
    /// One object per line, one for each finding
    Ndjson,
}

/// Explain why steps take as long as they do
///
/// Lists what stands out, what it costs, what to do about it and what that would save. Then shows where the time of a step
/// goes, in parts that sum to it exactly. A large share is not a cause: each rule compares with a reference, and reports
/// nothing if nothing exceeds it. The command reads what is recorded, of a live run or of one that has ended; on a terminal it
/// may record more in a live run (--ask).
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] diagnose [OPTIONS]",
    after_help = "Examples:
  probe gpt diagnose
  probe gpt@1 diagnose --steps 100..400 --json
  probe gpt diagnose --sql 1                  # the query behind the first finding
  probe gpt diagnose --ask                    # record more if much of a step is unexplained
  probe gpt diagnose --suspect BatchNorm      # is it that? And why, or why not
  probe gpt@3 diagnose --against gpt@1        # what is slower than in a healthy run
  probe gpt@3 diagnose --verify gpt@2         # is it gone, and was the promise kept?
  probe gpt diagnose --fail-on warn           # exit status 6 if there is one, 7 if too little is recorded"
)]
pub(super) struct Args {
    /// Steps to look at: 10..50 (both included), 100.., ..99 [default: the newest 1000]
    #[arg(long, value_name = "WINDOW")]
    steps: Option<StepWindow>,
    /// Print the SQL behind finding N, and its first rows as comments
    #[arg(long, value_name = "N")]
    sql: Option<usize>,
    /// Show only the first N findings (not with --json)
    #[arg(long, value_name = "N", conflicts_with_all = ["sql", "suspect", "verify"])]
    top: Option<usize>,
    /// Show whether NAME is a cause: a rule, a part of a step, rank N, a module or its type, an operation (copy_,
    /// all_reduce), gpu, or recording
    #[arg(long, value_name = "NAME", conflicts_with_all = ["sql", "verify"])]
    suspect: Option<String>,
    /// Also show what is slower than in RUN (a healthy run, or a window of the same run: 10..50)
    #[arg(long, value_name = "RUN", conflicts_with = "verify")]
    against: Option<String>,
    /// Show which findings of BEFORE (a run, or a window of the same run) are gone, and whether steps became shorter by as
    /// much as was promised
    #[arg(long, value_name = "BEFORE", conflicts_with = "sql")]
    verify: Option<String>,
    /// If a part of a step of 10 % or more is unexplained, record more in a live run: sample its stacks from outside for
    /// 4 s, then record modules in 20 steps and tensor operators in 3. The default on a terminal
    #[arg(long, conflicts_with_all = ["no_ask", "steps", "verify", "sql"])]
    ask: bool,
    /// Only read what is recorded
    #[arg(long)]
    no_ask: bool,
    /// Check only these rules, separated by commas; loader-* selects all that start with loader-
    #[arg(long = "rule", value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Also list the causes that were ruled out, with how near each came, or not decided, and how to record the missing data
    #[arg(long, conflicts_with_all = ["sql", "suspect", "verify"])]
    all: bool,
    /// Exit with status 6 if a finding is at least this severe, and with 7 if too little is recorded to tell
    #[arg(long, value_enum, value_name = "SEVERITY")]
    fail_on: Option<Severity>,
    /// Directory of your own rules, in addition to the built-in ones: files that end in .sql
    #[arg(long, value_name = "DIR")]
    rules: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: DiagnosisFormat,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    #[command(flatten)]
    connection: ConnectOptions,
}

pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    let own = args.rules.as_deref().map(rule_files::of_directory).transpose()?.unwrap_or_default();
    connect::interruptible(INTERRUPTED, async {
        let (mut lost, mut was_live): (Option<Instant>, bool) = (None, false);
        loop {
            let answered = answer(args, endpoint, &own, &mut was_live).await;
            let is_unreachable = matches!(&answered, Err(error) if error.kind() == ErrorKind::Unreachable);
            if !is_unreachable || !was_live && lost.is_none() {
                return answered;
            }
            let since = *lost.get_or_insert_with(|| {
                report::note("the collector has ended meanwhile, so the run is read again");
                Instant::now()
            });
            if since.elapsed() >= RETRY_FOR {
                return answered;
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    })
}

/// Diagnoses the run and prints the answer. `was_live` becomes true where its collector was reached, and stays so.
async fn answer(args: &Args, endpoint: Option<&str>, own: &[Rule], was_live: &mut bool) -> Result<CommandStatus> {
    let (mut client, target) = connect::open(endpoint, &args.connection).await?;
    *was_live |= client.is_live();
    let name = name(&target);
    let mut asked =
        DiagnosisSettings { window: args.steps, own: own.to_vec(), only: args.only.clone(), reference: None };
    let mut before = None;
    if let Some(other) = args.against.as_ref().or(args.verify.as_ref()) {
        let mut other = ReferenceRun::open(args, other, &target).await?;
        // Steps after the window, unless others are asked for.
        asked.window = asked.window.or_else(|| other.after());
        let (client, name, window) = (other.client.as_mut().unwrap_or(&mut client), &other.name, other.window);
        asked.reference = Some(Reference::read(client, name, window).await?);
        if args.verify.is_some() {
            let asked = DiagnosisSettings { window, own: asked.own.clone(), only: asked.only.clone(), reference: None };
            before = Some(diagnose::diagnose(client, name, &asked).await?);
        }
    }
    let mut done = diagnose::diagnose(&mut client, &name, &asked).await?;
    if args.ask && !*was_live {
        return Err(Error::usage(format!("{name} has ended, and can't be asked for more"))
            .hint("leave out --ask: what was recorded is read"));
    }
    if client.is_live() && (args.ask || args.asks_by_itself()) {
        let again = async |client: &mut Client| diagnose::diagnose(client, &name, &asked).await;
        done = diagnose::ask(&mut client, done, args.ask, again, |text| report::note(text)).await?;
    }
    let text = match (&args.suspect, &before) {
        (Some(suspected), _) => {
            let found = diagnose::suspect(&mut client, &done, &asked.own, suspected).await?;
            args.shown(|| found.page(&name), || found.json(&name))
        }
        (None, Some(before)) => {
            let found = diagnose::verify(before, &done)
                .ok_or_else(|| Error::failed("the steps before were not compared with those after"))?;
            args.shown(|| found.page(&name), || found.json(&name))
        }
        (None, None) => page(args, &mut client, &done, &name).await?,
    };
    output::unless_closed(write!(io::stdout(), "{text}"))?;
    Ok(status(&done, args.fail_on))
}

impl Args {
    /// Whether a person waits for the page of all findings, so that the run may be asked for more.
    fn asks_by_itself(&self) -> bool {
        let plain = self.steps.is_none() && self.suspect.is_none() && self.against.is_none() && self.verify.is_none();
        let page = self.sql.is_none() && !self.json && self.format == DiagnosisFormat::Table;
        plain && page && self.only.is_empty() && !self.no_ask && io::stdout().is_terminal()
    }

    /// One answer in the requested format.
    fn shown(&self, page: impl FnOnce() -> String, json: impl FnOnce() -> serde_json::Value) -> String {
        match if self.json { DiagnosisFormat::Json } else { self.format } {
            DiagnosisFormat::Table => page(),
            DiagnosisFormat::Json => format!("{:#}\n", json()),
            DiagnosisFormat::Ndjson => format!("{}\n", json()),
        }
    }
}

async fn page(args: &Args, client: &mut Client, done: &Diagnosis, name: &str) -> Result<String> {
    let top = args.top.unwrap_or(usize::MAX);
    Ok(match (args.sql, if args.json { DiagnosisFormat::Json } else { args.format }) {
        (Some(number), _) => {
            let finding = numbered(done, number)?;
            let rows = first_rows(client, &finding.sql).await;
            statement(finding) + &rows.unwrap_or_else(|error| format!("-- no rows: {error}\n"))
        }
        // Where rules are named, the user wants to know of each.
        (None, DiagnosisFormat::Table) => diagnose::page(done, name, top, args.all || !args.only.is_empty()),
        (None, DiagnosisFormat::Json) if args.top.is_some() => {
            return Err(
                Error::usage("--top is for the page and for ndjson").hint("leave it out: the JSON has all findings")
            );
        }
        (None, DiagnosisFormat::Json) => format!("{:#}\n", diagnose::json(done, name)),
        (None, DiagnosisFormat::Ndjson) => {
            done.findings.iter().take(top).map(|finding| format!("{}\n", finding.json())).collect()
        }
    })
}

/// What steps are compared with: another run, or a window of the same one.
struct ReferenceRun {
    /// None for the same run.
    client: Option<Client>,
    name: String,
    window: Option<StepWindow>,
}

impl ReferenceRun {
    async fn open(args: &Args, other: &str, target: &FoundEndpoint) -> Result<Self> {
        if let Some(window) = other.contains("..").then(|| other.parse::<StepWindow>().ok()).flatten() {
            return Ok(Self { client: None, name: name(target), window: Some(window) });
        }
        let (client, target) = connect::open(Some(other), &args.connection).await?;
        Ok(Self { client: Some(client), name: name(&target), window: None })
    }

    /// The steps after a window of the same run; those before, where it has no end.
    fn after(&self) -> Option<StepWindow> {
        let window = self.window.filter(|_| self.client.is_none())?;
        Some(match (window.first, window.last) {
            (_, Some(last)) => StepWindow { first: Some(last + 1), last: None },
            (first, None) => StepWindow { first: None, last: first.map(|first| first - 1) },
        })
    }
}

fn name(target: &FoundEndpoint) -> String {
    target.pid.map_or_else(|| target.location.name(), |pid| format!("process {pid}"))
}

fn numbered(done: &Diagnosis, number: usize) -> Result<&Finding> {
    let finding = number.checked_sub(1).and_then(|index| done.findings.get(index));
    finding.ok_or_else(|| {
        let count = done.findings.len();
        Error::usage(format!("there is no finding {number}")).hint(match count {
            0 => "nothing stands out".to_owned(),
            count => format!("they are 1..{count}"),
        })
    })
}

/// The query of a finding. It does not begin with the comments of its rule, which a shell would hand on as options.
fn statement(finding: &Finding) -> String {
    let rest = finding.sql.lines().skip_while(|line| line.starts_with("--")).collect::<Vec<_>>().join("\n");
    format!("/* rule: {} */\n{rest}\n", finding.rule)
}

/// The first rows of a query as a table in comments, so that they can follow it.
async fn first_rows(client: &mut Client, sql: &str) -> Result<String> {
    let answer = client.query(sql).await?;
    let (mut table, mut printed) = (Vec::new(), output::PrintedRows::default());
    let mut writer =
        output::OutputFormat::Table.writer(answer.schema.clone(), output::Terminal::default(), Box::new(&mut table))?;
    output::feed(answer, Some(ROWS_OF_SQL), writer.as_mut(), &mut printed).await??;
    drop(writer);
    let mut lines: Vec<String> = String::from_utf8_lossy(&table).lines().map(|line| format!("-- {line}\n")).collect();
    if printed.more {
        lines.push("-- (more rows follow)\n".to_owned());
    }
    Ok(lines.concat())
}

/// Whether too little is recorded to tell: too few steps; of captures alone, not what each rule needs.
fn is_too_little(done: &Diagnosis) -> bool {
    match done.steps.captures {
        0 => done.steps.count() < MIN_STEPS,
        _ => done.findings.is_empty() && !done.not_decided.is_empty(),
    }
}

/// The exit status. A finding that is only possible never fails a build.
fn status(done: &Diagnosis, fail_on: Option<Severity>) -> CommandStatus {
    let Some(least) = fail_on else { return 0 };
    if done.findings.iter().any(|finding| finding.severity >= least && finding.confidence != "possible") {
        FOUND
    } else if is_too_little(done) || !done.fits() || done.findings.iter().any(|of| of.rule == "rows-lost") {
        TOO_LITTLE
    } else {
        0
    }
}
