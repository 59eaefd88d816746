//! The first word: a command, or an ENDPOINT with a command after it. clap has no such grammar, so the ENDPOINT is
//! taken out before clap reads the rest.

use std::ffi::OsString;

use probe_client::discover;
use probe_client::endpoint::{self, Endpoint};
use probe_common::error::{Error, Result};

use super::connect::one_thread;

pub(super) const ENDPOINT_HELP: &str = "\
ENDPOINT is the run or process to ask: a run's name (gpt, gpt@1), a process id, HOST:PORT,
unix:PATH or a run's directory. Default: PROBE_ENDPOINT, or the only live run.

Start here:
  probe run --name gpt -- torchrun --nproc-per-node 2 train.py
  probe gpt query \"SELECT module, stage, SUM(duration) FROM python.torch_trace GROUP BY 1, 2\"
  probe gpt eval \"print(model)\"

--help also lists the forms of ENDPOINT and the exit statuses.";

pub(super) const ENDPOINT_LONG_HELP: &str = "\
ENDPOINT is the run or process to ask:
  gpt, gpt@1          a run: the live one of that name, else the newest; with a number, that run
  12345               the training process with that pid: only its rows
  unix:PATH, x.sock   a collector's socket
  HOST:PORT           a collector's TCP port (with --token-file)
  ./runs/gpt@1        a run's directory
Without an ENDPOINT, commands use PROBE_ENDPOINT, or the only live run.

Start here:
  probe run --name gpt -- torchrun --nproc-per-node 2 train.py
  probe gpt query \"SELECT module, stage, SUM(duration) FROM python.torch_trace GROUP BY 1, 2\"
  probe gpt eval \"print(model)\"

Exit status:
  0    done
  1    the query, snippet or command failed
  2    wrong usage
  3    nothing reachable at ENDPOINT
  4    denied
  5    a limit or deadline was reached
  6    probe diagnose --fail-on: there is such a finding
  7    probe diagnose --fail-on: too little is recorded to say
  130  interrupted by Ctrl-C
  probe run returns the exit status of its command.";

/// The command line with the ENDPOINT taken out.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SplitArguments {
    pub(super) endpoint: Option<String>,
    pub(super) arguments: Vec<OsString>,
}

/// Takes the ENDPOINT out, where there is one. `root` has the commands.
pub(super) fn split(mut words: Vec<OsString>, root: &clap::Command) -> Result<SplitArguments> {
    let commands = commands(root);
    let is_command = |word: &OsString| commands.iter().any(|command| **command == **word);
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let Some(first) = words.first() else { return Ok(SplitArguments { endpoint: None, arguments: words }) };
    if is_command(first) || is_option(first) {
        return Ok(SplitArguments { endpoint: None, arguments: words });
    }
    let Some(endpoint) = first.to_str().map(str::to_owned) else {
        return Err(Error::usage("the first word is neither a command nor an ENDPOINT: it is not UTF-8"));
    };
    match words.get(1) {
        Some(second) if is_command(second) || is_option(second) => {
            words.remove(0);
            Ok(SplitArguments { endpoint: Some(endpoint), arguments: words })
        }
        // `probe gpt` opens the console. A word that is nearly a command is mistyped, unless a run is called so.
        None if Endpoint::parse(&endpoint).is_ok()
            && (nearest(&endpoint, &commands).is_none() || is_there(&endpoint)) =>
        {
            Ok(SplitArguments { endpoint: Some(endpoint), arguments: vec![OsString::from("console")] })
        }
        second => Err(no_command(&endpoint, second.map(|word| word.to_string_lossy()).as_deref(), &commands)),
    }
}

/// Whether an ENDPOINT can be found.
fn is_there(endpoint: &str) -> bool {
    one_thread().is_ok_and(|runtime| runtime.block_on(discover::find(Some(endpoint))).is_ok())
}

fn commands(root: &clap::Command) -> Vec<String> {
    let named = root.get_subcommands().map(|command| command.get_name().to_owned());
    named.chain([String::from("help")]).collect()
}

/// The error where a command is missing: it was mistyped, or left out.
fn no_command(first: &str, second: Option<&str>, commands: &[String]) -> Error {
    let live = endpoint::live_hint;
    if let Some(second) = second {
        // `probe gpt qurey …`
        if let Some(nearest) = nearest(second, commands) {
            return Error::usage(format!("there is no command '{second}'"))
                .hint(format!("did you mean probe {first} {nearest} …?"));
        }
    }
    // `probe qurey …`
    if let Some(nearest) = nearest(first, commands) {
        return Error::usage(format!("'{first}' is neither a command nor followed by one"))
            .hint(format!("did you mean probe {nearest} …? ({})", live()));
    }
    match (Endpoint::parse(first), second) {
        (Err(error), _) => Error::usage(format!("'{first}' is neither a command nor an ENDPOINT ({error})"))
            .hint(format!("probe --help lists the commands; {}", live())),
        (Ok(_), Some(second)) => Error::usage(format!("there is no command '{second}'"))
            .hint(format!("probe --help lists the commands: probe {first} query …; {}", live())),
        (Ok(_), None) => Error::usage(format!("no command after ENDPOINT '{first}'"))
            .hint(format!("probe {first} console, or probe {first} query …; {}", live())),
    }
}

/// The command that a mistyped word is nearest to, where one is near enough.
fn nearest<'a>(word: &str, commands: &'a [String]) -> Option<&'a str> {
    let visible = commands.iter().map(String::as_str).filter(|command| *command != "generate-docs");
    let (distance, command) = visible
        .map(|command| (strsim::damerau_levenshtein(word, command), command))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= (command.len() / 3).max(1)).then_some(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_common::error::ErrorKind;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn root() -> clap::Command {
        clap::Command::new("probe").subcommands(["run", "eval", "list", "query", "console"].map(clap::Command::new))
    }

    #[test]
    fn an_endpoint_stands_before_a_command() {
        for (line, endpoint, rest) in [
            ("gpt query X", Some("gpt"), "query X"),
            ("12 eval", Some("12"), "eval"),
            ("query gpt", None, "query gpt"),
            ("--help", None, "--help"),
            ("gpt --help", Some("gpt"), "--help"),
            ("gpt", Some("gpt"), "console"),
            ("a/b", Some("a/b"), "console"),
            ("4711", Some("4711"), "console"),
            ("", None, ""),
            ("run x query", None, "run x query"),
        ] {
            let expected = SplitArguments { endpoint: endpoint.map(Into::into), arguments: words(rest) };
            assert_eq!(split(words(line), &root()).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn a_mistyped_command_is_told_from_an_endpoint_alone() {
        for (line, says) in [
            ("qurey X", "did you mean probe query"),
            ("lst", "did you mean probe list"),
            ("gpt qurey X", "did you mean probe gpt query"),
            ("gpt frobnicate", "probe --help"),
        ] {
            let error = split(words(line), &root()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{line}");
            assert!(error.hint_text().unwrap().contains(says), "{line}: {error:?}");
        }
    }
}
