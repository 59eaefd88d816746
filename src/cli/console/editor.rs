//! The prompt: line editing, history and completion, by rustyline.

use std::cell::RefCell;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;

use probe_client::endpoint::RunLocation;
use probe_common::error::{Error, Result};
use probe_common::paths;
use probe_proto::agent_connection::AgentConnection;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use super::input::{self, ConsoleInput, InputLanguage};
use super::session::{AfterInput, ConsoleSession};
use super::{attributes, python, sql_completion};
use crate::cli::report;
use crate::cli::status::CommandStatus;

/// Entries of the history.
const HISTORY: usize = 10_000;

/// Reads lines and performs them until Ctrl-D.
pub(super) fn prompt(mut session: ConsoleSession) -> Result<CommandStatus> {
    greet(&mut session);
    let session = Rc::new(RefCell::new(session));
    let status = lines(&session);
    if let Ok(session) = Rc::try_unwrap(session) {
        session.into_inner().end();
    }
    status
}

fn lines(session: &Rc<RefCell<ConsoleSession>>) -> Result<CommandStatus> {
    let failed = |error: ReadlineError| Error::failed("the terminal").because(error);
    let config = Config::builder().max_history_size(HISTORY).and_then(|config| config.history_ignore_dups(true));
    let config = config.map_err(failed)?.completion_type(CompletionType::List).history_ignore_space(true).build();
    let mut editor: Editor<PromptHelper, FileHistory> = Editor::with_config(config).map_err(failed)?;
    editor.set_helper(Some(PromptHelper { session: Rc::clone(session) }));
    let history = history_file().map_err(|error| report::note(format_args!("no history is kept: {error}"))).ok();
    if let Some(path) = history.as_ref().filter(|path| path.exists()) {
        let _ = editor.load_history(path);
    }
    loop {
        let (name, mode) = (session.borrow().name(), session.borrow().mode);
        let prompt = if mode == InputLanguage::Python { format!("{name} >>> ") } else { format!("{name}> ") };
        let styled = format!("\x1b[1m{prompt}\x1b[0m");
        session.borrow_mut().link.forget_interrupts();
        let line = match editor.readline(&(prompt, styled)) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(0),
            Err(error) => return Err(failed(error)),
        };
        let line = line.trim_end();
        if line.is_empty() {
            continue;
        }
        let _ = editor.add_history_entry(line);
        if let Some(path) = &history {
            let _ = editor.append_history(path);
        }
        if perform_line(&mut session.borrow_mut(), line) == AfterInput::Quit {
            return Ok(0);
        }
    }
}

/// Performs the pieces of a line, up to one that fails.
fn perform_line(session: &mut ConsoleSession, line: &str) -> AfterInput {
    // These words work without a backslash, as in Python, SQLite, DuckDB and MySQL.
    match line {
        "exit" | "quit" => return AfterInput::Quit,
        "help" => return session.perform_and_report(ConsoleInput::Command { line: r"\?".into(), sql: String::new() }),
        _ => {}
    }
    let mut rest = line;
    while let Some((piece, end)) = input::next(rest, session.mode, true) {
        rest = &rest[end..];
        match session.perform_and_report(piece) {
            AfterInput::Next(0) => {}
            then => return then,
        }
    }
    let _ = std::io::stdout().flush();
    AfterInput::Next(0)
}

/// Prints what the prompt asks: the name and the state of the run.
fn greet(session: &mut ConsoleSession) {
    let name = session.link.target.location.name();
    let ways = r"SQL ends with ;, >>> begins Python, \? says more, Ctrl-D leaves";
    if let RunLocation::Directory(_) = session.link.target.location {
        report::note(format_args!("{name} has ended. {ways}"));
        return;
    }
    let Ok(Some(description)) = session.link.until_interrupted(async |client| client.describe().await) else {
        report::note(ways);
        return;
    };
    let live = description.agents.iter().filter(|agent| agent.state == AgentConnection::Live.as_str());
    let (count, step) = live.fold((0, 0), |(count, step), agent| (count + 1, step.max(agent.step)));
    let processes = if count == 1 { "1 process".to_owned() } else { format!("{count} processes") };
    report::note(format_args!("{name}: {processes}, {step} steps. {ways}"));
}

/// The path of the history, in a file that is made for its owner alone.
fn history_file() -> Result<PathBuf> {
    let home = paths::home()?;
    std::fs::create_dir_all(&home).map_err(|error| paths::io_error_at(&home, error))?;
    Ok(home.join("console_history"))
}

/// The callbacks of rustyline while the user types.
struct PromptHelper {
    session: Rc<RefCell<ConsoleSession>>,
}

impl Helper for PromptHelper {}
impl Highlighter for PromptHelper {}

impl Hinter for PromptHelper {
    type Hint = String;
}

impl Validator for PromptHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let whole = input::is_whole(context.input(), self.session.borrow().mode);
        Ok(if whole { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for PromptHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, cursor: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let mut session = self.session.borrow_mut();
        let (before, after) = line.split_at(cursor);
        let (begin, what) = at_cursor(before, session.mode);
        let text = &before[begin..];
        let (start, found) = match what {
            PromptKind::Python if text[text.rfind('\n').map_or(0, |newline| newline + 1)..].trim().is_empty() => {
                (text.len(), vec![" ".repeat(4)])
            }
            PromptKind::Python => attributes::complete(&mut session, text),
            PromptKind::Command => (0, sql_completion::commands(text)),
            PromptKind::Sql => sql_completion::complete(text, after),
        };
        let pair = |word: String| Pair { display: word.clone(), replacement: word };
        Ok((begin + start, found.into_iter().map(pair).collect()))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum PromptKind {
    Sql,
    Python,
    Command,
}

/// What is being typed at the end of `text`, and the byte offset at which that begins.
fn at_cursor(text: &str, mut mode: InputLanguage) -> (usize, PromptKind) {
    let mut begin = 0;
    loop {
        let rest = &text[begin..];
        let first = rest.trim_start();
        let at = text.len() - first.len();
        if first.starts_with('\\') && !first.contains('\n') {
            let argument = first.contains(char::is_whitespace);
            return (at, if argument { PromptKind::Sql } else { PromptKind::Command });
        }
        if first.starts_with(python::PROMPT) {
            return (at + python::PROMPT.len(), PromptKind::Python);
        }
        if mode == InputLanguage::Python && !first.starts_with('\\') {
            return (begin, PromptKind::Python);
        }
        let Some((piece, end)) = input::next(rest, mode, false) else { return (begin, PromptKind::Sql) };
        begin += end;
        if let ConsoleInput::Command { line, .. } = piece {
            mode = if line == r"\py" { InputLanguage::Python } else { mode };
            if begin == text.len() {
                let line = text.len() - line.len();
                return (
                    line,
                    if text[line..].contains(char::is_whitespace) { PromptKind::Sql } else { PromptKind::Command },
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_known_at_the_cursor() {
        for (text, mode, begin, what) in [
            ("SELECT 1; SEL", InputLanguage::Sql, 9, PromptKind::Sql),
            ("", InputLanguage::Sql, 0, PromptKind::Sql),
            (">>> mod", InputLanguage::Sql, 3, PromptKind::Python),
            ("SELECT 1;\n>>> mod", InputLanguage::Sql, 13, PromptKind::Python),
            ("mod", InputLanguage::Python, 0, PromptKind::Python),
            ("\\ti", InputLanguage::Python, 0, PromptKind::Command),
            ("\\d pyth", InputLanguage::Sql, 0, PromptKind::Sql),
            ("SELECT 1 \\wa", InputLanguage::Sql, 9, PromptKind::Command),
            ("\\py\nmod", InputLanguage::Sql, 3, PromptKind::Python),
        ] {
            assert_eq!(at_cursor(text, mode), (begin, what), "{text}");
        }
    }
}
