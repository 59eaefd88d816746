//! `probe ENDPOINT`: SQL and Python at one prompt, or from standard input.
//!
//! `input` (statements), `python` (snippets) and `command` (lines that begin with a backslash) split the input. `session`
//! performs it over its `link`, as `switches` say. `show` and `pager` show the answers. `editor` is the prompt, with
//! `sql_completion` and `attributes` for completion.

mod attributes;
mod command;
mod editor;
mod input;
mod link;
mod pager;
mod python;
mod session;
mod show;
mod sql_completion;
mod switches;

use std::io::{self, BufRead, IsTerminal};

use probe_common::error::{Error, Result};
use tokio::sync::mpsc::{Receiver, channel};

use self::session::{AfterInput, ConsoleSession};
use super::connect::ConnectOptions;
use super::status::{CommandStatus, INTERRUPTED};

/// Open a console: SQL and Python at a prompt
///
/// A SQL statement ends with a semicolon and can span lines. A line that begins with >>> is Python in the training
/// process, as with eval. Tab completes, \? lists the commands, Ctrl-C cancels, Ctrl-D exits. `probe ENDPOINT` without
/// a command opens the console too. Lines from a file or a pipe run in order, and the first one that fails ends the
/// console.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "probe [ENDPOINT] console [OPTIONS]",
    after_help = "Examples:
  probe gpt
  probe gpt@1 console < questions.sql
  printf '%s\\n' 'SELECT COUNT(*) FROM python.steps;' '>>> print(model)' | probe gpt"
)]
pub(super) struct Args {
    #[command(flatten)]
    connection: ConnectOptions,
}

pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<CommandStatus> {
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let session = ConsoleSession::open(endpoint, args.connection.token_file(), terminal)?;
    if terminal { editor::prompt(session) } else { script(session) }
}

/// Lines of standard input, each done as soon as it is whole; the first that fails ends it.
fn script(mut session: ConsoleSession) -> Result<CommandStatus> {
    let status = lines(&mut session);
    session.end();
    status
}

fn lines(session: &mut ConsoleSession) -> Result<CommandStatus> {
    let mut pending = String::new();
    let mut lines = read_lines();
    loop {
        let Some(line) = session.link.wait(async { lines.recv().await.transpose() })? else { return Ok(INTERRUPTED) };
        let over = line.is_none();
        pending.extend(line);
        while let Some((piece, end)) = input::next(&pending, session.mode, over) {
            pending.drain(..end);
            match session.perform_and_report(piece) {
                AfterInput::Next(0) => {}
                AfterInput::Next(status) => return Ok(status),
                AfterInput::Quit => return Ok(0),
            }
        }
        if over {
            return Ok(0);
        }
    }
}

/// Lines of standard input as they come, read by a thread of their own, because nothing else ends a read that waits.
fn read_lines() -> Receiver<Result<String>> {
    let (sender, receiver) = channel(1);
    std::thread::spawn(move || {
        let mut lines = io::stdin().lock();
        loop {
            let mut line = String::new();
            let read = lines.read_line(&mut line).map_err(|error| Error::usage("standard input").because(error));
            let (over, failed) = (matches!(read, Ok(0)), read.is_err());
            if over || sender.blocking_send(read.map(|_| line)).is_err() || failed {
                return;
            }
        }
    });
    receiver
}
