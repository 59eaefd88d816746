//! `query --watch`: repeats a query. A terminal is redrawn; anything else gets one answer after another.

use std::io::{self, Write};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use jiff::Zoned;
use probe_client::endpoint::{FoundEndpoint, RunLocation};
use probe_client::{Client, QueryAnswer};
use probe_common::error::{Error, ErrorKind, Result};
use probe_common::paths::{SocketState, socket_state};
use tokio::time::MissedTickBehavior;
use unicode_width::UnicodeWidthStr;

use super::amounts::{count, duration};
use super::connect::within;
use super::report;
use super::status::CommandStatus;
use crate::output::{self, OutputFormat, PrintedRows, RowLayout, Terminal, feed};

/// The default interval.
pub(super) const INTERVAL: &str = "2s";

/// Lines of a terminal that are not the answer's: the header with a line below it, the note about rows that don't fit, and
/// the line of the cursor.
const FRAME: usize = 4;

/// Parses what follows `--watch`. It need not be an interval: `--watch "SELECT …"` is SQL with none given.
pub(super) fn interval(text: String, sql: &mut Option<String>, has_file: bool) -> Result<Duration> {
    match duration(&text) {
        Ok(interval) => Ok(interval),
        Err(_) if sql.is_none() && !has_file && text.contains(char::is_whitespace) => {
            *sql = Some(text);
            duration(INTERVAL).map_err(Error::usage)
        }
        Err(error) => Err(Error::usage(format!("--watch '{text}' is not an interval")).because(error)),
    }
}

/// A query, how often to repeat it, and how to show its answers.
pub(super) struct RepeatedQuery {
    sql: String,
    format: OutputFormat,
    limit: Option<usize>,
    interval: Duration,
    timeout: Option<Duration>,
    shape: RowLayout,
}

impl RepeatedQuery {
    pub(super) fn new(
        sql: String,
        format: OutputFormat,
        limit: Option<usize>,
        interval: Duration,
        timeout: Option<Duration>,
    ) -> Result<Self> {
        if format.is_binary() {
            return Err(Error::usage(
                "--watch writes one answer after another, and a file of this format is one answer",
            )
            .hint("choose --format ndjson or csv, which have rows one after another"));
        }
        Ok(Self { sql, format, limit, interval, timeout, shape: RowLayout::Fit })
    }

    /// This watch, with rows laid out as `shape` on a terminal.
    pub(super) fn shaped(self, shape: RowLayout) -> Self {
        Self { shape, ..self }
    }

    /// Repeats the query until it is interrupted, an error ends it, or the output is closed.
    pub(super) async fn run(&self, client: &mut Client, target: &FoundEndpoint) -> Result<CommandStatus> {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut screen = RedrawnScreen::default();
        let mut shown = WatchOutput::default();
        loop {
            ticks.tick().await;
            let terminal = Terminal { shape: self.shape, ..Terminal::of_stdout() };
            let once = async {
                let answer = client.query(&self.sql).await?;
                if terminal.is_terminal() {
                    self.draw(answer, terminal, target, &mut screen).await
                } else {
                    self.append(answer, &mut shown).await
                }
            };
            let read = within(self.timeout, once).await.map_err(|error| explain(error, target))?;
            if !read {
                return Ok(0);
            }
        }
    }

    /// Shows an answer instead of the previous one.
    async fn draw(
        &self,
        answer: QueryAnswer,
        terminal: Terminal,
        target: &FoundEndpoint,
        screen: &mut RedrawnScreen,
    ) -> Result<bool> {
        let room = terminal.height.saturating_sub(FRAME).max(1);
        // No more rows than there are lines: what can't be seen need not be fetched.
        let limit = self.limit.map_or(room, |limit| limit.min(room));
        let mut text = Vec::new();
        let mut printed = PrintedRows::default();
        let mut writer = self.format.writer(answer.schema.clone(), terminal, Box::new(&mut text));
        let written = match &mut writer {
            Ok(writer) => feed(answer, Some(limit), writer.as_mut(), &mut printed).await?,
            Err(error) => Err(io::Error::other(error.to_string())),
        };
        drop(writer);
        written.map_err(Error::caused)?;
        let text = String::from_utf8_lossy(&text);
        let cut = text.lines().count() > room;
        let more = match (printed.more, self.limit) {
            (true, Some(limit)) if limit < room => format!("these are the first {}; there are more", count(limit)),
            _ if printed.more || cut => "there is more than this terminal has lines for".to_owned(),
            _ => String::new(),
        };
        let header = header(&self.sql, self.interval, &target.location.name(), terminal.width.unwrap_or(80));
        let lines = std::iter::once(header.as_str()).chain([""]).chain(text.lines().take(room)).chain([more.as_str()]);
        output::unless_closed(screen.draw(lines, terminal))
    }

    /// Writes an answer after the previous one.
    async fn append(&self, answer: QueryAnswer, shown: &mut WatchOutput) -> Result<bool> {
        let out = Box::new(io::BufWriter::new(io::stdout()));
        let again = shown.columns.as_ref() == Some(&answer.schema);
        if shown.columns.is_some()
            && self.format == OutputFormat::Table
            && !output::unless_closed(writeln!(io::stdout()))?
        {
            return Ok(false);
        }
        shown.columns = Some(answer.schema.clone());
        let writer = if again {
            self.format.next_writer(answer.schema.clone(), Terminal::default(), out)
        } else {
            self.format.writer(answer.schema.clone(), Terminal::default(), out)
        };
        let mut printed = PrintedRows::default();
        let written = match writer {
            Ok(mut writer) => feed(answer, self.limit, writer.as_mut(), &mut printed).await?,
            Err(error) => Err(error),
        };
        if printed.more && !std::mem::replace(&mut shown.has_noted_cut, true) {
            report::note(format_args!("answers have more than {}, and are cut there", count(printed.rows)));
            report::hint("use a larger --limit-rows N, or 0 for all rows");
        }
        output::unless_closed(written)
    }
}

/// What was appended so far.
#[derive(Default)]
struct WatchOutput {
    /// Columns of the last answer.
    columns: Option<SchemaRef>,
    has_noted_cut: bool,
}

/// A terminal that is redrawn.
#[derive(Default)]
pub(super) struct RedrawnScreen {
    /// The terminal as it was drawn last; None before the first time.
    last: Option<Terminal>,
}

impl RedrawnScreen {
    /// Draws all lines in one write, each over the old one, so that nothing flickers.
    pub(super) fn draw<'a>(&mut self, lines: impl Iterator<Item = &'a str>, terminal: Terminal) -> io::Result<()> {
        // The screen is cleared only where old and new lines would not line up. Lines that are too long are not wrapped.
        let mut frame =
            String::from(if self.last == Some(terminal) { "\x1b[H\x1b[?7l" } else { "\x1b[2J\x1b[H\x1b[?7l" });
        self.last = Some(terminal);
        for line in lines {
            frame.push_str(line);
            frame.push_str("\x1b[K\n");
        }
        frame.push_str("\x1b[J\x1b[?7h");
        let mut stdout = io::stdout().lock();
        stdout.write_all(frame.as_bytes())?;
        stdout.flush()
    }
}

/// The header: "Every 2s: SELECT …", with the name of the target and the time at the right.
fn header(sql: &str, interval: Duration, name: &str, width: usize) -> String {
    let right = format!("{name}  {}", Zoned::now().strftime("%Y-%m-%d %H:%M:%S"));
    let mut left = format!("Every {}: ", humantime::format_duration(interval));
    let room = width.saturating_sub(right.width() + 2);
    let mut words = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    words.retain(|c| !c.is_control());
    left.push_str(&words);
    if left.width() > room {
        while left.width() >= room.max(1) {
            left.pop();
        }
        left.push('…');
    }
    let fill = width.saturating_sub(left.width() + right.width());
    format!("{left}{}{right}", " ".repeat(fill))
}

/// The error for people: one of a collector that has gone says so.
fn explain(error: Error, target: &FoundEndpoint) -> Error {
    let gone = match &target.location {
        RunLocation::Socket(path) => error.kind() == ErrorKind::Unreachable || socket_state(path) != SocketState::Live,
        RunLocation::Tcp(_) => error.kind() == ErrorKind::Unreachable,
        RunLocation::Directory(_) => false,
    };
    if !gone {
        return error;
    }
    let name = target.location.name();
    Error::unreachable(format!("{name} does not answer any more: its run has ended, or its collector was killed"))
        .hint(format!("probe {name} query … reads what was recorded, once it is written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_watch_is_an_interval_or_the_question() {
        let mut sql = None;
        assert_eq!(interval("500ms".into(), &mut sql, false).unwrap(), Duration::from_millis(500));
        assert_eq!(interval("SELECT 1".into(), &mut sql, false).unwrap(), Duration::from_secs(2));
        assert_eq!(sql.as_deref(), Some("SELECT 1"));
        assert_eq!(interval("2x".into(), &mut None, false).unwrap_err().kind(), ErrorKind::Usage);
        assert_eq!(interval("SELECT 2".into(), &mut sql, false).unwrap_err().kind(), ErrorKind::Usage);
        assert_eq!(interval("0".into(), &mut None, false).unwrap_err().kind(), ErrorKind::Usage);
    }

    #[test]
    fn a_header_fits_and_keeps_its_right_end() {
        let long = "SELECT rank,\n  step FROM python.steps ORDER BY step DESC LIMIT 5".repeat(3);
        for width in [40, 80, 120] {
            let header = header(&long, Duration::from_secs(2), "gpt@1", width);
            assert!(header.width() <= width, "{header}");
            assert!(header.contains("gpt@1  20"), "{header}");
        }
        let short = header("SELECT 1", Duration::from_secs(2), "gpt@1", 80);
        assert!(short.starts_with("Every 2s: SELECT 1  ") && short.width() == 80, "{short}");
    }
}
