//! Commands of the console: lines that begin with a backslash.

use std::path::PathBuf;
use std::time::Duration;

use probe_common::error::{Error, Result};
use probe_proto::v1::At;

use super::switches::SwitchChange;
use crate::cli::watch;
use crate::output::chart;

/// The text of `\?`.
pub(super) const HELP: &str = r"SQL ends with ; and can span lines. A line that begins with >>> is Python in the training process.
Tab completes, the arrow keys recall earlier lines, Ctrl-C cancels, Ctrl-D exits.

  \d              tables and views, with their rows
  \d TABLE        columns of one table, with units and descriptions
  \watch [2s]     repeat the last query, or the SQL before it on the line, until Ctrl-C
  \plot           draw the last query's answer, or that of the SQL before it: \plot line, \plot bar
  \x              one line per value: on, off, or toggle
  \o [FILE]       write answers to FILE (csv, ndjson, json, arrow, parquet, else tables); without FILE, to the screen
  \timing         show how long each answer took: on, off, or toggle
  \pager          use a pager for what does not fit the screen: on, off, or toggle

  \py [CODE]      treat lines as Python from now on; with CODE, only that code
  \sql            treat lines as SQL again
  \rank [N|all]   which rank runs Python: N, all, or as the snippet needs (auto)
  \at [step|now]  where Python runs: between two steps, beside training, or as the snippet needs (auto)
  \frames         list the frames of the training thread, outermost first
  \frame [N]      use the names of this frame only, or of all user frames (auto)
  \timeout [30s]  how long a query or snippet may take; off is the collector's own limit

  \?              this
  \q              leave
";

/// A parsed command.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ConsoleCommand {
    Describe(Option<String>),
    Watch(Duration),
    Plot(Option<chart::ChartKind>),
    Switch(SwitchChange),
    Frames,
    Python(Option<String>),
    Sql,
    Help,
    Quit,
}

/// Names of commands, for completion.
pub(super) const NAMES: &[&str] = &[
    r"\d",
    r"\watch",
    r"\plot",
    r"\x",
    r"\o",
    r"\timing",
    r"\pager",
    r"\py",
    r"\sql",
    r"\rank",
    r"\at",
    r"\frames",
    r"\frame",
    r"\timeout",
    r"\?",
    r"\q",
];

/// Parses a line that begins with a backslash.
pub(super) fn parse(line: &str) -> Result<ConsoleCommand> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let argument = (!rest.is_empty()).then(|| rest.to_owned());
    let wrong = |could: &str| Error::usage(format!("{name} does not take '{rest}'")).hint(format!("{name} {could}"));
    let flag = || match rest {
        "" => Ok(None),
        "on" => Ok(Some(true)),
        "off" => Ok(Some(false)),
        _ => Err(wrong("on, or off, or nothing for the other one")),
    };
    // SQL that is followed by a command is often followed by a semicolon too.
    let plain = rest.trim_end_matches(';').trim_end();
    Ok(match name.trim_end_matches(';') {
        r"\d" => ConsoleCommand::Describe((!plain.is_empty()).then(|| plain.to_owned())),
        r"\watch" => {
            let interval = if plain.is_empty() { watch::INTERVAL } else { plain };
            let parsed = crate::cli::amounts::duration(interval);
            ConsoleCommand::Watch(
                parsed.map_err(|error| Error::usage(format!("'{interval}' is not an interval")).because(error))?,
            )
        }
        r"\plot" => ConsoleCommand::Plot(match plain {
            "" => None,
            "line" => Some(chart::ChartKind::Line),
            "bar" => Some(chart::ChartKind::Bar),
            _ => return Err(wrong("line, or bar, or nothing to choose by the first column")),
        }),
        r"\x" => ConsoleCommand::Switch(SwitchChange::Expanded(flag()?)),
        r"\o" => ConsoleCommand::Switch(SwitchChange::Output(argument.map(PathBuf::from))),
        r"\timing" => ConsoleCommand::Switch(SwitchChange::Timing(flag()?)),
        r"\pager" => ConsoleCommand::Switch(SwitchChange::Pager(flag()?)),
        r"\py" => ConsoleCommand::Python(argument),
        r"\sql" => ConsoleCommand::Sql,
        r"\rank" => ConsoleCommand::Switch(SwitchChange::Rank(match rest {
            "" => None,
            "auto" => Some(None),
            text => Some(Some(crate::cli::eval::rank(text).map_err(|_| wrong("N, all or auto"))?)),
        })),
        r"\at" => ConsoleCommand::Switch(SwitchChange::At(match rest {
            "" => None,
            text => Some(At::parse(text).ok_or_else(|| wrong("auto, now or step"))?),
        })),
        r"\timeout" => ConsoleCommand::Switch(SwitchChange::Timeout(match rest {
            "" => None,
            "off" => Some(None),
            text => Some(Some(crate::cli::amounts::duration(text).map_err(|error| wrong("30s, or off").hint(error))?)),
        })),
        r"\frame" => ConsoleCommand::Switch(SwitchChange::Frame(match rest {
            "" => None,
            "auto" => Some(None),
            text => Some(Some(text.parse().map_err(|_| wrong(r"N, as \frames numbers them, or auto"))?)),
        })),
        r"\frames" => ConsoleCommand::Frames,
        r"\?" | r"\h" | r"\help" => ConsoleCommand::Help,
        r"\q" | r"\quit" => ConsoleCommand::Quit,
        _ => return Err(Error::usage(format!("there is no command {name}")).hint(r"\? lists them")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::eval::SnippetRank;

    #[test]
    fn commands_are_understood() {
        for (line, expected) in [
            (r"\d", ConsoleCommand::Describe(None)),
            (r"\d  python.steps;", ConsoleCommand::Describe(Some("python.steps".into()))),
            (r"\watch", ConsoleCommand::Watch(Duration::from_secs(2))),
            (r"\watch 0.5", ConsoleCommand::Watch(Duration::from_millis(500))),
            (r"\x on", ConsoleCommand::Switch(SwitchChange::Expanded(Some(true)))),
            (r"\timing", ConsoleCommand::Switch(SwitchChange::Timing(None))),
            (r"\o a b.csv", ConsoleCommand::Switch(SwitchChange::Output(Some("a b.csv".into())))),
            (r"\py x = 1", ConsoleCommand::Python(Some("x = 1".into()))),
            (r"\rank", ConsoleCommand::Switch(SwitchChange::Rank(None))),
            (r"\rank 3", ConsoleCommand::Switch(SwitchChange::Rank(Some(Some(SnippetRank::One(3)))))),
            (r"\rank auto", ConsoleCommand::Switch(SwitchChange::Rank(Some(None)))),
            (r"\plot bar", ConsoleCommand::Plot(Some(chart::ChartKind::Bar))),
            (r"\timeout off", ConsoleCommand::Switch(SwitchChange::Timeout(Some(None)))),
            (r"\frame 2", ConsoleCommand::Switch(SwitchChange::Frame(Some(Some(2))))),
            (r"\frame auto", ConsoleCommand::Switch(SwitchChange::Frame(Some(None)))),
            (r"\frames", ConsoleCommand::Frames),
            (r"\q", ConsoleCommand::Quit),
        ] {
            assert_eq!(parse(line).unwrap(), expected, "{line}");
        }
        for line in [r"\nothing", r"\watch soon", r"\x 1", r"\rank -1", r"\plot pie", r"\at once", r"\frame x", r"\"] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.kind(), probe_common::error::ErrorKind::Usage, "{line}");
        }
    }

    #[test]
    fn every_command_is_in_the_help() {
        for name in NAMES {
            assert!(HELP.contains(&format!("  {name} ")), "{name}");
        }
    }
}
