//! The pager for answers that do not fit the screen: $PAGER, else less where it is installed.

use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use probe_common::error::Result;
use unicode_width::UnicodeWidthStr;

use crate::output::{self, Terminal};

/// Lines that the prompt and the note on an answer take.
const PROMPT: usize = 2;

/// The pager, as a shell runs it. less is told not to wrap lines (S), to keep colours (R), to leave the screen as it is
/// (X), and not to end by itself where all lines fit below each other (F): they may be too wide.
static PAGER: LazyLock<Option<String>> = LazyLock::new(|| {
    let named = std::env::var("PAGER").ok().filter(|pager| !pager.trim().is_empty());
    let pager = named.or_else(|| on_path("less").then(|| "less".to_owned()))?;
    Some(if is_less(&pager) { format!("{pager} -SRX -+F") } else { pager })
});

fn is_less(pager: &str) -> bool {
    pager.split_whitespace().next().is_some_and(|program| program == "less" || program.ends_with("/less"))
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Whether the pager can show lines that are wider than the screen.
pub(super) fn scrolls_sideways() -> bool {
    PAGER.as_deref().is_some_and(is_less)
}

/// Writes text to standard output, through the pager where `paged` and it does not fit.
pub(super) fn show(text: &[u8], paged: bool) -> Result<()> {
    let terminal = Terminal::of_stdout();
    if let (true, Some(pager)) = (paged && !fits(text, terminal), PAGER.as_deref())
        && page(text, pager).is_ok()
    {
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    output::unless_closed(stdout.write_all(text).and_then(|()| stdout.flush())).map(|_| ())
}

fn fits(text: &[u8], terminal: Terminal) -> bool {
    let text = anstream::adapter::strip_bytes(text).into_vec();
    let text = String::from_utf8_lossy(&text);
    let width = terminal.width.unwrap_or(usize::MAX);
    text.lines().count() + PROMPT <= terminal.height && text.lines().all(|line| line.width() <= width)
}

/// Fails where the pager could not be started; one that is left early is no failure.
fn page(text: &[u8], pager: &str) -> io::Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", pager]).stdin(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(text);
    }
    let status = child.wait()?;
    // The exit statuses of a shell that does not find a program or may not run it.
    if matches!(status.code(), Some(126 | 127)) { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
}
