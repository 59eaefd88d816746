//! `probe [ENDPOINT] hang`.

use std::io::{self, Write};

use probe_common::error::Result;
use probe_proto::v1::{HangAnswer, RankState};

mod page;

use super::connect::{Connection, with_client};
use super::status::Status;
use crate::output::{self, Format, rows};
use page::page;

/// Explain why steps have stopped
///
/// Shows which collective the ranks wait for, which ranks have entered it, which have not, and where these are. When
/// steps stop, the collector checks this by itself (PROBE_HANG_AFTER) and records the result in probe.events.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] hang [OPTIONS]",
    after_help = "Examples:
  probe gpt hang
  probe gpt hang --format json
  probe gpt query \"SELECT ts, message FROM probe.events WHERE kind = 'hang'\""
)]
pub(super) struct Args {
    /// Output format: a page to read, or one row per rank
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<Status> {
    args.format.check_stdout()?;
    with_client(endpoint, &args.connection, async |mut client, target| {
        let answer = client.hang().await?;
        match args.format {
            Format::Table => {
                let name = target.place.name();
                output::unless_closed(write!(io::stdout(), "{}", page(&answer, &name)))?;
            }
            format => show(&answer, format)?,
        }
        Ok(0)
    })
}

fn show(answer: &HangAnswer, format: Format) -> Result<()> {
    let each = || answer.ranks.iter();
    let collective = answer.collective.as_ref();
    let entered = |rank: &RankState| {
        let (collective, rank) = (collective?, rank.rank?);
        let of = |ranks: &[i32]| ranks.contains(&rank);
        match (of(&collective.entered), of(&collective.missing)) {
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
            ("step_ago", rows::floats(each().map(|rank| Some(rank.step_ago_s)))),
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
