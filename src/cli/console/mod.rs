//! `probe ENDPOINT`: SQL and Python at one prompt, or from standard input.
//!
//! What was typed is taken apart by `input` (statements), `python` (snippets) and `command` (what begins with a
//! backslash), done by `session` as `switches` say, and shown by `show` and `pager`. `editor` is the prompt, with `words` and
//! `attributes` for completion.

mod attributes;
mod command;
mod editor;
mod input;
mod pager;
mod python;
mod session;
mod show;
mod switches;
mod words;

use std::io::{self, BufRead, IsTerminal};

use self::input::Piece;
use self::session::{Session, Then};
use super::ask::Connection;
use super::{Status, report};
use crate::error::{Error, Result};

/// Ask and look at a prompt
///
/// SQL ends with a semicolon and may go on over lines; a line that begins with >>> is Python in the training process,
/// as with eval. Tab completes, \? lists the commands, Ctrl-C cancels, Ctrl-D leaves. `probe ENDPOINT` without a command
/// opens it too. Lines from a file or a pipe are done one after the other, and the first that fails ends it.
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
    connection: Connection,
}

pub(super) fn run(args: &Args, endpoint: Option<&str>) -> Result<Status> {
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let session = Session::open(endpoint, args.connection.token_file(), terminal)?;
    if terminal { editor::prompt(session) } else { script(session) }
}

/// Lines of standard input, each done as soon as it is whole; the first that fails ends it.
fn script(mut session: Session) -> Result<Status> {
    let status = lines(&mut session);
    session.end();
    status
}

fn lines(session: &mut Session) -> Result<Status> {
    let mut pending = String::new();
    let mut lines = io::stdin().lock();
    loop {
        let read = lines.read_line(&mut pending);
        let read = read.map_err(|error| Error::usage(format!("standard input: {error}")))?;
        while let Some((piece, end)) = input::next(&pending, session.mode, read == 0) {
            pending.drain(..end);
            match perform(session, piece) {
                Then::Next(0) => {}
                Then::Next(status) => return Ok(status),
                Then::Quit => return Ok(0),
            }
        }
        if read == 0 {
            return Ok(0);
        }
    }
}

/// Does one thing; what went wrong is said.
fn perform(session: &mut Session, piece: Piece) -> Then {
    session.perform(piece).unwrap_or_else(|error| Then::Next(report::error(&error)))
}
