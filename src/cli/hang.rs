//! `probe [ENDPOINT] hang`.

use std::io::{self, Write};

use probe_common::error::{Error, Result};
use probe_proto::v1::{HangAnswer, RankState};

mod page;

use super::connect::{ConnectOptions, with_client};
use super::report;
use super::status::CommandStatus;
use crate::hang::{self, HangVerdict, RecordedStall, StallReason};
use crate::output::{self, OutputFormat, rows};
use crate::shared_steps::SharedSteps;
use page::page;

/// Explain why steps have stopped
///
/// Shows which collective the ranks wait for, which ranks have entered it, which have not, and where these are. When
/// steps stop, the collector checks this by itself (PROBE_HANG_AFTER) and records the result in probe.events. For a run
/// that has ended, shows the same from recorded collectives, from Flight Recorder dumps that were imported into it, or from
/// what the collector noticed before it ended.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] hang [OPTIONS]",
    after_help = "Examples:
  probe gpt hang
  probe gpt hang --format json
  probe import --name stuck dumps/ && probe stuck hang
  probe gpt query \"SELECT ts, message FROM probe.events WHERE kind = 'hang'\""
)]
pub(super) struct Args {
    /// Output format: a page to read, or one row per rank (of a run that has ended: per rank of each group that waits)
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    connection: ConnectOptions,
}

pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    args.format.check_stdout()?;
    with_client(endpoint, &args.connection, async |mut client, target| {
        let name = target.location.name();
        let answer = if client.is_live() {
            client.hang().await?
        } else {
            let noticed = hang::noticed(&mut client).await?;
            let facts = hang::ask(&mut client).await?;
            let verdict = (!facts.is_empty()).then(|| hang::judge(&facts));
            // Where no collective waits, the ranks stood elsewhere, which the collector noticed.
            let knows_ranks = noticed.as_ref().is_some_and(|noticed| !noticed.ranks.is_empty());
            match (verdict.filter(|verdict| !knows_ranks || !verdict.stalls.is_empty()), noticed) {
                (Some(verdict), _) => {
                    match args.format {
                        OutputFormat::Table => {
                            output::unless_closed(write!(io::stdout(), "{}", hang::page(&verdict, &name)))?;
                        }
                        format => show_dumps(&verdict, format)?,
                    }
                    return Ok(0);
                }
                (None, Some(noticed)) => noticed,
                (None, None) => {
                    let hint = format!("probe {name} crash says how it ended");
                    return Err(Error::unreachable("this run has ended, and no hang was noticed before").hint(hint));
                }
            }
        };
        // A single process has its own count of steps.
        let shared = match answer.ranks.len() {
            0 | 1 => SharedSteps::default(),
            // The verdict stands without it.
            _ => SharedSteps::read(&mut client).await.unwrap_or_else(|error| {
                report::note(format_args!("whether ranks count the same steps is not known: {error}"));
                SharedSteps::not_known()
            }),
        };
        match args.format {
            OutputFormat::Table => {
                let page = page(&answer, &shared, &name, client.is_live());
                output::unless_closed(write!(io::stdout(), "{page}"))?;
            }
            format => show(&answer, &shared, format)?,
        }
        Ok(0)
    })
}

fn show(answer: &HangAnswer, shared: &SharedSteps, format: OutputFormat) -> Result<()> {
    let each = || answer.ranks.iter();
    let collective = answer.collective.as_ref();
    let entered = |rank: &RankState| {
        let (collective, rank) = (collective?, rank.rank?);
        let contains = |ranks: &[i32]| ranks.contains(&rank);
        match (contains(&collective.entered), contains(&collective.missing)) {
            (true, _) => Some("entered"),
            (_, true) => Some("missing"),
            _ => None,
        }
    };
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let frame = |rank: &'_ RankState| rank.frame.clone();
    rows::show(
        vec![
            ("verdict", rows::text(each().map(|_| Some(&answer.verdict)))),
            ("why", rows::text(each().map(|_| Some(&answer.why)))),
            ("host", rows::text(each().map(|rank| Some(&rank.host)))),
            ("pid", rows::integers(each().map(|rank| Some(i64::from(rank.pid))))),
            ("rank", rows::integers(each().map(|rank| rank.rank.map(i64::from)))),
            ("step", rows::integers(each().map(|rank| Some(rank.step)))),
            ("shared_step", rows::integers(each().map(|rank| shared.count(rank)))),
            ("step_ago", rows::floats(each().map(|rank| rank.step_ago_s))),
            ("step_usual", rows::floats(each().map(|rank| rank.step_s))),
            ("record_ago", rows::floats(each().map(|rank| rank.record_ago_s))),
            ("group_name", rows::text(each().map(|_| collective.map(|collective| &collective.group)))),
            ("seq", rows::integers(each().map(|_| collective.map(|collective| collective.seq)))),
            ("operation_type", rows::text(each().map(|_| collective.and_then(|one| some(&one.operation_type))))),
            ("bytes", rows::integers(each().map(|_| collective.map(|collective| collective.bytes)))),
            ("entered", rows::text(each().map(entered))),
            ("operation", rows::text(each().map(|rank| some(&rank.operation)))),
            ("function", rows::text(each().map(|rank| frame(rank).map(|frame| frame.function)))),
            ("file", rows::text(each().map(|rank| frame(rank).map(|frame| frame.file)))),
            ("line", rows::integers(each().map(|rank| frame(rank).and_then(|frame| frame.line).map(i64::from)))),
            ("waits_for", rows::text(each().map(|rank| some(&rank.waits_for)))),
            ("gil", rows::flags(each().map(|rank| rank.gil))),
            ("running", rows::flags(each().map(|rank| rank.running))),
            ("problem", rows::text(each().map(|rank| some(&rank.problem)))),
        ],
        format,
    )
}

/// Prints a verdict by dumps: a row for each rank of each group that waits, the group of the verdict first.
fn show_dumps(verdict: &HangVerdict<'_>, format: OutputFormat) -> Result<()> {
    let ranks = |stall: &RecordedStall<'_>| {
        let with_state =
            |ranks: &[i32], how: &'static str| ranks.iter().map(move |rank| (*rank, how)).collect::<Vec<_>>();
        let mut all = [
            with_state(&stall.entered, "entered"),
            with_state(&stall.missing, "missing"),
            with_state(&stall.unknown, "no dump"),
            with_state(&stall.perhaps, "part of a dump"),
        ]
        .concat();
        all.sort_unstable();
        all
    };
    let rows: Vec<_> = verdict
        .stalls
        .iter()
        .flat_map(|stall| ranks(stall).into_iter().map(move |(rank, how)| (stall, rank, how)))
        .collect();
    let each = || rows.iter();
    let why = |stall: &RecordedStall<'_>| match stall.why {
        StallReason::Different => "different",
        StallReason::NotEntered => "not entered",
        StallReason::NotFinished => "not finished",
    };
    rows::show(
        vec![
            ("verdict", rows::text(each().map(|_| Some(&verdict.sentence)))),
            ("why", rows::text(each().map(|(stall, ..)| Some(why(stall))))),
            ("group_name", rows::text(each().map(|(stall, ..)| Some(stall.group)))),
            ("description", rows::text(each().map(|(stall, ..)| stall.description))),
            ("seq", rows::integers(each().map(|(stall, ..)| Some(stall.operation.seq)))),
            ("operation_type", rows::text(each().map(|(stall, ..)| Some(&stall.operation.operation_type)))),
            ("bytes", rows::integers(each().map(|(stall, ..)| stall.operation.bytes))),
            ("issued", rows::times(each().map(|(stall, ..)| Some(stall.operation.issued)))),
            ("rank", rows::integers(each().map(|(_, rank, _)| Some(i64::from(*rank))))),
            ("entered", rows::text(each().map(|(.., how)| Some(how)))),
        ],
        format,
    )
}
