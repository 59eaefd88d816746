//! What the lines of one console share: the connection, the variables of snippets, and how answers look.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt;
use probe_client::endpoint::RunLocation;
use probe_client::{AnswerBounds, QueryAnswer};
use probe_common::error::{Error, ErrorKind, Result};
use probe_proto::v1::{At, EvalCall};
use tokio::task::JoinHandle;

use super::command::{self, ConsoleCommand};
use super::input::{ConsoleInput, InputLanguage};
use super::link::ConsoleConnection;
use super::switches::{ConsoleSwitches, SNIPPET};
use super::{pager, show};
use crate::cli::amounts::count;
use crate::cli::eval::{self, SnippetRank};
use crate::cli::status::{CommandStatus, INTERRUPTED};
use crate::cli::watch::RepeatedQuery;
use crate::cli::{report, tables};
use crate::output::{OutputFormat, chart};

/// How much a snippet may print.
const MAX_OUTPUT: u64 = 16 << 20;
/// Bytes of names that a completion may get.
const MAX_NAMES: u64 = 1 << 16;

/// How long the end of a console may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// What follows a piece of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterInput {
    /// The next line; the status is how this one ended.
    Next(CommandStatus),
    /// The end of the console.
    Quit,
}

/// Completions that a key press asked for, which may not be there yet.
pub(super) struct PendingCompletion {
    pub(super) chain: String,
    pub(super) at: Instant,
    pub(super) names: JoinHandle<Option<Vec<String>>>,
}

pub(super) struct ConsoleSession {
    pub(super) link: ConsoleConnection,
    /// Whether a person is at a terminal.
    pub(super) interactive: bool,
    pub(super) mode: InputLanguage,
    last: Option<String>,
    switches: ConsoleSwitches,
    /// The name under which the process keeps what snippets assign.
    variables: String,
    /// Whether a snippet was run, which may have assigned variables.
    has_variables: bool,
    /// Completions that had not come when a key press stopped waiting for them.
    pub(super) pending_completion: Option<PendingCompletion>,
}

impl ConsoleSession {
    pub(super) fn open(endpoint: Option<&str>, token_file: Option<&Path>, interactive: bool) -> Result<Self> {
        Ok(Self {
            link: ConsoleConnection::open(endpoint, token_file)?,
            interactive,
            mode: InputLanguage::default(),
            last: None,
            switches: ConsoleSwitches::new(interactive),
            variables: name_of_variables()?,
            has_variables: false,
            pending_completion: None,
        })
    }

    /// The name of the run or process, for the prompt.
    pub(super) fn name(&self) -> String {
        let name = self.link.target.location.name();
        self.link.target.pid.map_or_else(|| name.clone(), |pid| format!("{name}/{pid}"))
    }

    /// Performs one piece, and prints its error.
    pub(super) fn perform_and_report(&mut self, piece: ConsoleInput) -> AfterInput {
        self.perform(piece).unwrap_or_else(|error| AfterInput::Next(report::error(&error)))
    }

    /// Performs one piece, and prints how it ended unless that is an error.
    fn perform(&mut self, piece: ConsoleInput) -> Result<AfterInput> {
        let began = Instant::now();
        match piece {
            ConsoleInput::Sql(sql) if sql.is_empty() => Ok(AfterInput::Next(0)),
            ConsoleInput::Sql(sql) => self.query(sql).map(AfterInput::Next),
            ConsoleInput::Python(code) if code.trim().is_empty() => Ok(AfterInput::Next(0)),
            ConsoleInput::Python(code) => {
                let ended = self.eval(code);
                if self.switches.timing {
                    report::note(format_args!("{:.4} s", began.elapsed().as_secs_f64()));
                }
                ended.map(AfterInput::Next)
            }
            ConsoleInput::Command { line, sql } => {
                let command = command::parse(&line)?;
                let takes_sql = matches!(command, ConsoleCommand::Watch(_) | ConsoleCommand::Plot(_));
                if !sql.is_empty() && !takes_sql {
                    return Err(Error::usage(format!("SQL stands before '{line}', which takes none"))
                        .hint("end the SQL with ; and write the command on a line of its own"));
                }
                if takes_sql && !sql.is_empty() {
                    self.last = Some(sql);
                }
                self.command(command)
            }
        }
    }

    fn command(&mut self, command: ConsoleCommand) -> Result<AfterInput> {
        match command {
            ConsoleCommand::Quit => return Ok(AfterInput::Quit),
            ConsoleCommand::Help => show::text(command::HELP, self.switches.pager)?,
            ConsoleCommand::Describe(None) => return self.list().map(AfterInput::Next),
            ConsoleCommand::Describe(Some(name)) => {
                let Some(own) = self.link.until_interrupted(async |client| client.declared().await)? else {
                    return Ok(AfterInput::Next(cancelled("query")));
                };
                show::table_page(tables::find_by(&name, &own)?, self.switches.pager)?;
            }
            ConsoleCommand::Watch(interval) => return self.watch(interval).map(AfterInput::Next),
            ConsoleCommand::Plot(kind) => return self.plot(kind).map(AfterInput::Next),
            ConsoleCommand::Frames => return self.frames().map(AfterInput::Next),
            ConsoleCommand::Python(Some(code)) => return self.perform(ConsoleInput::Python(code)),
            ConsoleCommand::Python(None) => self.mode = InputLanguage::Python,
            ConsoleCommand::Sql => self.mode = InputLanguage::Sql,
            ConsoleCommand::Switch(switch) => {
                self.switches.turn(switch, self.interactive)?;
                self.bound();
            }
        }
        Ok(AfterInput::Next(0))
    }

    fn bounds(&self) -> AnswerBounds {
        AnswerBounds { timeout: self.switches.timeout, ..AnswerBounds::default() }
    }

    fn bound(&mut self) {
        let bounds = self.bounds();
        self.link.set_bounds(bounds);
    }

    fn query(&mut self, sql: String) -> Result<CommandStatus> {
        let began = Instant::now();
        self.last = Some(sql.clone());
        let Some(answer) = self.ask(&sql)? else { return Ok(cancelled("query")) };
        let (shape, pager, timing) = (self.switches.shape(), self.switches.pager, self.switches.timing);
        let written = {
            let sink = &mut self.switches.sink;
            self.link.wait(async { sink.write(answer, shape, pager).await })?
        };
        let Some(written) = written else { return Ok(cancelled("query")) };
        let seconds = began.elapsed().as_secs_f64();
        let shown = written.show(pager)?;
        if self.interactive || timing {
            let time = if timing { format!(" in {seconds:.4} s") } else { String::new() };
            let written_to = shown.file.map_or_else(String::new, |path| format!(", written to {}", path.display()));
            report::note(format_args!("{}{time}{written_to}", count(shown.rows)));
        }
        if shown.more {
            return Err(Error::limit(format!("the answer was cut: this is only the first {}", count(shown.rows)))
                .hint(r"\o FILE.csv (or .parquet, .ndjson …) writes all of them, and LIMIT asks for fewer"));
        }
        Ok(0)
    }

    /// Runs a query; None where Ctrl-C came first. If the run has ended since, the query is run again where the run is now:
    /// nothing was shown yet.
    fn ask(&mut self, sql: &str) -> Result<Option<QueryAnswer>> {
        match self.link.until_interrupted(async |client| client.query(sql).await) {
            Err(error) if error.kind() == ErrorKind::Unreachable && self.find_again() => {
                self.link.until_interrupted(async |client| client.query(sql).await)
            }
            answer => answer,
        }
    }

    fn find_again(&mut self) -> bool {
        let bounds = self.bounds();
        self.link.find_again(bounds)
    }

    fn eval(&mut self, code: String) -> Result<CommandStatus> {
        let call = EvalCall { frame: self.switches.frame, ..self.call(code, self.switches.at) };
        let call = self.in_session(call);
        self.run(call)
    }

    /// Lists the frames of the training thread.
    fn frames(&mut self) -> Result<CommandStatus> {
        let at = if self.switches.at == At::Auto { At::Now } else { self.switches.at };
        self.run(self.call(eval::FRAMES.to_owned(), at))
    }

    fn call(&self, code: String, at: At) -> EvalCall {
        eval::call(code, at, self.switches.rank, self.switches.timeout.unwrap_or(SNIPPET), MAX_OUTPUT)
    }

    fn run(&mut self, call: EvalCall) -> Result<CommandStatus> {
        let ended = self.link.until_interrupted(async |client| eval::show(client, call).await);
        match ended {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Ok(cancelled("snippet")),
            Err(error) => {
                // A snippet is never run twice, but the next line is asked where the run is now.
                if error.kind() == ErrorKind::Unreachable {
                    self.find_again();
                }
                Err(error)
            }
        }
    }

    /// `call`, with the variables of this console to read and to assign.
    fn in_session(&mut self, call: EvalCall) -> EvalCall {
        self.has_variables = true;
        EvalCall { session: self.variables.clone(), ..call }
    }

    /// The snippet that asks for the completions of a name, the variables of this console among them.
    pub(super) fn lookup(&self, chain: &str, patience: Duration) -> EvalCall {
        let rank = self.switches.rank.filter(|rank| *rank != SnippetRank::All);
        let call = eval::call(String::new(), At::Now, rank, patience, MAX_NAMES);
        let (complete, session, frame) = (chain.to_owned(), self.variables.clone(), self.switches.frame);
        EvalCall { complete, session, frame, ..call }
    }

    /// Makes the training process forget what the snippets of this console left there, without waiting for it long.
    pub(super) fn end(mut self) {
        if !self.has_variables || matches!(self.link.target.location, RunLocation::Directory(_)) {
            return;
        }
        let all = eval::call(String::new(), At::Now, Some(SnippetRank::All), GOODBYE, MAX_OUTPUT);
        let call = EvalCall { end_session: true, ..self.in_session(all) };
        self.link.within(GOODBYE, async |client| {
            let mut events = client.eval(call).await?;
            while let Some(event) = events.next().await {
                event?;
            }
            Ok(())
        });
    }

    fn list(&mut self) -> Result<CommandStatus> {
        let found = self.link.until_interrupted(async |client| {
            let own = client.declared().await?;
            let counts = tables::count(client, &own).await?;
            Ok(tables::listed(Some(counts), &own))
        })?;
        let Some(columns) = found else { return Ok(cancelled("query")) };
        show::columns(columns, self.switches.shape(), self.switches.pager).map(|()| 0)
    }

    fn last(&self) -> Result<String> {
        let none = || Error::usage("there is no query yet").hint(r"write it before the command: SELECT … \watch 2");
        self.last.clone().ok_or_else(none)
    }

    fn watch(&mut self, interval: Duration) -> Result<CommandStatus> {
        let watch = RepeatedQuery::new(
            self.last()?,
            OutputFormat::Table,
            OutputFormat::Table.default_rows(),
            interval,
            self.switches.timeout,
        )?;
        let (watch, target) = (watch.shaped(self.switches.shape()), self.link.target.clone());
        let ended = self.link.until_interrupted(async |client| watch.run(client, &target).await)?;
        // Watching has no end of its own: an interrupt is its normal end.
        Ok(ended.unwrap_or(0))
    }

    fn plot(&mut self, kind: Option<chart::ChartKind>) -> Result<CommandStatus> {
        let sql = self.last()?;
        let Some(answer) = self.ask(&sql)? else { return Ok(cancelled("query")) };
        let drawn = self.link.wait(show::picture(answer, kind))?;
        let Some(drawn) = drawn else { return Ok(cancelled("query")) };
        pager::show(drawn.as_bytes(), self.switches.pager).map(|()| 0)
    }
}

/// A name that no other console has.
fn name_of_variables() -> Result<String> {
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes).map_err(|error| Error::failed("no random numbers").because(error))?;
    Ok(format!("console-{:016x}", u64::from_ne_bytes(bytes)))
}

fn cancelled(what: &str) -> CommandStatus {
    report::note(format_args!("the {what} was cancelled"));
    INTERRUPTED
}
