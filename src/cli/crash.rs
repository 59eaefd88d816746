//! `probe [ENDPOINT] crash`.

use std::io::{self, Write};

use probe_common::error::Result;
use serde_json::json;

use super::connect::{ConnectOptions, with_client};
use super::status::CommandStatus;
use crate::crash::{self, CrashAccount, CrashedProcess};
use crate::output::{self, OutputFormat, Terminal, rows};

/// Show how processes crashed
///
/// Shows for each rank how and when it ended, its last step, module and collective, its memory, its last log, its
/// uncaught exception, and its stack if one was captured. Ranks that ended in the same way share one entry, and the
/// first rank that ended comes first. Where ranks waited for another one in a collective, the page names it. It
/// is made from the run's tables, so it works during the run and afterwards.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] crash [OPTIONS]",
    after_help = "Examples:
  probe gpt crash
  probe gpt@1 crash --format json
  probe gpt query \"SELECT rank, state, ended, exit_status, signal, cause FROM probe.agents ORDER BY ended\""
)]
pub(super) struct Args {
    /// Output format: a page to read, or one row per process
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    connection: ConnectOptions,
}

pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    args.format.check_stdout()?;
    with_client(endpoint, &args.connection, async |mut client, target| {
        let answer = crash::ask(&mut client).await?;
        match args.format {
            OutputFormat::Table => {
                let name = target.pid.map_or_else(|| target.location.name(), |pid| format!("process {pid}"));
                let page = crash::page(&answer, &name, Terminal::of_stdout().width);
                output::unless_closed(write!(io::stdout(), "{page}"))?;
            }
            format => show(&answer, format)?,
        }
        Ok(0)
    })
}

fn show(answer: &CrashAccount, format: OutputFormat) -> Result<()> {
    let each = || answer.accounts.iter();
    let module = |account: &CrashedProcess| account.module.clone();
    let collective = |account: &CrashedProcess| account.collective.clone();
    let exception = |account: &CrashedProcess| account.exception().cloned();
    // A list is JSON; an empty one is NULL.
    let several = |value: serde_json::Value| {
        let is_empty = value.as_array().is_none_or(Vec::is_empty);
        (!is_empty).then(|| value.to_string())
    };
    let memory = |account: &CrashedProcess| {
        several(account.memory.iter().map(|used| {
            json!({
                "device": used.device, "first": used.first, "minute_before": used.before, "last": used.last, "peak": used.peak,
            })
        }).collect())
    };
    let kept = |account: &CrashedProcess| {
        let listed = |modules: &[(String, f64)]| {
            modules.iter().map(|(name, size)| json!({ "module": name, "size": size })).collect::<Vec<_>>()
        };
        let kept = account.kept.as_ref()?;
        let (most, grew) = (listed(&kept.most), listed(&kept.grew));
        Some(json!({ "step": kept.step, "most": most, "since": kept.since, "grew": grew }).to_string())
    };
    let threads = |account: &CrashedProcess| {
        let listed = account.ended_threads().map(|raised| {
            json!({ "thread_name": raised.thread, "ts": raised.ts, "exception": raised.exception, "message": raised.message, "location": raised.location })
        });
        several(listed.collect())
    };
    let metrics = |account: &CrashedProcess| {
        several(
            account
                .metrics
                .iter()
                .map(|(name, value, step)| json!({ "name": name, "value": value, "step": step }))
                .collect(),
        )
    };
    let spans = |account: &CrashedProcess| {
        several(
            account
                .spans
                .iter()
                .map(|(name, took, step)| json!({ "name": name, "duration": took, "step": step }))
                .collect(),
        )
    };
    rows::show(
        vec![
            ("host", rows::text(each().map(|one| Some(&one.host)))),
            ("pid", rows::integers(each().map(|one| Some(one.pid)))),
            ("rank", rows::integers(each().map(|one| one.rank))),
            ("state", rows::text(each().map(|one| Some(&one.state)))),
            ("ended", rows::times(each().map(|one| one.ended))),
            ("exit_status", rows::integers(each().map(|one| one.exit_status))),
            ("signal", rows::text(each().map(|one| one.signal.as_ref()))),
            ("cause", rows::text(each().map(|one| one.cause.as_ref()))),
            ("steps", rows::integers(each().map(|one| Some(one.steps)))),
            ("last_step", rows::times(each().map(|one| one.last_step))),
            ("last_seen", rows::times(each().map(|one| Some(one.last_seen)))),
            ("module", rows::text(each().map(|one| module(one).map(|interval| interval.module)))),
            ("stage", rows::text(each().map(|one| module(one).map(|interval| interval.stage)))),
            ("inside", rows::text(each().map(|one| module(one).map(|interval| interval.inside.to_string())))),
            ("operation_type", rows::text(each().map(|one| collective(one).map(|issued| issued.operation_type)))),
            ("group_name", rows::text(each().map(|one| collective(one).map(|issued| issued.group)))),
            ("seq", rows::integers(each().map(|one| collective(one).map(|issued| issued.seq)))),
            ("status", rows::text(each().map(|one| collective(one).map(|issued| issued.status)))),
            ("memory", rows::text(each().map(memory))),
            ("kept", rows::text(each().map(kept))),
            ("metrics", rows::text(each().map(metrics))),
            ("spans", rows::text(each().map(spans))),
            ("exception", rows::text(each().map(|one| exception(one).map(|raised| raised.exception)))),
            ("message", rows::text(each().map(|one| exception(one).map(|raised| raised.message)))),
            ("uncaught", rows::text(each().map(|one| exception(one).map(|raised| raised.uncaught.to_string())))),
            ("ended_threads", rows::text(each().map(threads))),
            ("traceback", rows::text(each().map(|one| exception(one).map(|raised| raised.traceback)))),
            ("stack", rows::text(each().map(|one| several(json!(one.stack))))),
        ],
        format,
    )
}
