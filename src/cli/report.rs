//! Messages of commands on standard error. Nothing here fails, even when standard error is closed.

use std::fmt::Display;
use std::io::Write;

use anstyle::{AnsiColor, Style};
use probe_common::error::Error;

use super::status::CommandStatus;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// Prints an error and its hint. Returns the exit status of the process.
pub(super) fn error(error: &Error) -> CommandStatus {
    line(&format!("{ERROR}error:{ERROR:#} {error}"));
    if let Some(text) = error.hint_text() {
        hint(text);
    }
    error.kind() as CommandStatus
}

/// Prints what to do about an error or a note.
pub(super) fn hint(text: impl Display) {
    line(&format!("{HINT}hint:{HINT:#} {text}"));
}

/// Prints something worth knowing beside the output.
pub(super) fn note(text: impl Display) {
    line(&format!("probe: {text}"));
}

/// Prints which columns a narrow terminal has no room for.
pub(super) fn left_out(columns: &[&str]) {
    if !columns.is_empty() {
        note(format_args!("no room here for {} (a wider terminal or another --format has it)", columns.join(", ")));
    }
}

/// Writes a line in one piece, because the command that is run writes to the same standard error.
fn line(text: &str) {
    let _ = anstream::stderr().lock().write_all(format!("{text}\n").as_bytes());
}
