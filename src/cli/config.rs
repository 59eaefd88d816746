//! `probe [ENDPOINT] config [KEY[=VALUE]]…`.

use std::collections::HashMap;

use probe_common::error::{Error, Result};
use probe_proto::config::{self, KEYS};
use probe_proto::v1::AgentConfig;

use super::connect::{ConnectOptions, with_client};
use super::report;
use super::status::CommandStatus;
use crate::output::{OutputFormat, rows};

/// Show or change what agents record while they run
///
/// KEY=VALUE sets KEY on every process of the run. The command then shows the current settings of every process.
#[derive(Debug, clap::Args)]
#[command(override_usage = "probe [ENDPOINT] config [OPTIONS] [KEY[=VALUE]]...", after_help = help())]
pub(super) struct Args {
    /// Setting to show (KEY) or change (KEY=VALUE)
    #[arg(value_name = "KEY[=VALUE]")]
    settings: Vec<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    connection: ConnectOptions,
}

fn help() -> String {
    let keys = KEYS.iter().map(|key| format!("  {}={}\n      {}\n", key.name, key.values.join("|"), key.doc));
    format!("Keys:\n{}\nExamples:\n  probe gpt config\n  probe gpt config detail=off", keys.collect::<String>())
}

pub(super) fn run(args: Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    let mut shown: Vec<&str> = Vec::new();
    let mut values = HashMap::new();
    for setting in &args.settings {
        let (key, value) = setting.split_once('=').map_or((setting.as_str(), None), |(key, value)| (key, Some(value)));
        check(key, value)?;
        shown.push(key);
        values.extend(value.map(|value| (key.to_owned(), value.to_owned())));
    }
    with_client(endpoint, &args.connection, async |mut client, target| {
        if let Some(pid) = target.pid.filter(|_| !values.is_empty()) {
            return Err(Error::usage(format!("settings apply to the whole run, not to process {pid}"))
                .hint("give the run's name as ENDPOINT; probe list shows it"));
        }
        let answer = client.config(values).await?;
        let agents = answer.agents.into_iter().filter(|agent| target.pid.is_none_or(|pid| pid == agent.pid));
        show(&agents.collect::<Vec<_>>(), &shown, args.format).map(|()| 0)
    })
}

fn check(key: &str, value: Option<&str>) -> Result<()> {
    let known = KEYS.iter().find(|known| known.name == key);
    let any = known.and_then(|known| known.values.first()).copied().unwrap_or_default();
    config::check(key, value.unwrap_or(any)).map_err(|error| {
        let all = KEYS.iter().map(|key| format!("{}={}", key.name, key.values.join("|")));
        Error::usage(error).hint(format!("settings: {}", all.collect::<Vec<_>>().join(", ")))
    })
}

fn show(agents: &[AgentConfig], shown: &[&str], format: OutputFormat) -> Result<()> {
    let mut settings: Vec<(&AgentConfig, &str, &str)> = Vec::new();
    for agent in agents {
        let pairs = agent.values.iter().map(|(key, value)| (agent, key.as_str(), value.as_str()));
        settings.extend(pairs.filter(|(_, key, _)| shown.is_empty() || shown.contains(key)));
    }
    if settings.is_empty() && format == OutputFormat::Table {
        report::note("no live process has reported its settings");
        return Ok(());
    }
    settings.sort_by_key(|(agent, key, _)| (agent.rank, agent.pid, *key));
    let doc = |name: &str| KEYS.iter().find(|key| key.name == name).map(|key| key.doc);
    rows::show(
        vec![
            ("rank", rows::integers(settings.iter().map(|(agent, ..)| agent.rank.map(i64::from)))),
            ("pid", rows::integers(settings.iter().map(|(agent, ..)| Some(i64::from(agent.pid))))),
            ("key", rows::text(settings.iter().map(|(_, key, _)| Some(key)))),
            ("value", rows::text(settings.iter().map(|(.., value)| Some(value)))),
            ("what", rows::text(settings.iter().map(|(_, key, _)| doc(key)))),
        ],
        format,
    )
}
