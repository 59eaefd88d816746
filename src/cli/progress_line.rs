//! How far a command is, on a line of a terminal that is written over.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Shortest time between two texts that [`ProgressLine::show`] writes.
const PAUSE: Duration = Duration::from_millis(200);

/// The line. It writes nothing where standard error is no terminal.
pub(super) struct ProgressLine {
    is_terminal: bool,
    shown: Option<Instant>,
}

impl ProgressLine {
    pub(super) fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), shown: None }
    }

    /// Shows the text, unless the last one was shown a moment ago.
    pub(super) fn show<T: Display>(&mut self, text: impl FnOnce() -> T) {
        if self.is_terminal && self.shown.is_none_or(|shown| shown.elapsed() > PAUSE) {
            self.show_now(text());
        }
    }

    /// Shows the text.
    pub(super) fn show_now(&mut self, text: impl Display) {
        if self.is_terminal {
            self.shown = Some(Instant::now());
            let _ = write!(anstream::stderr(), "\r\x1b[K{text}");
        }
    }

    /// Clears the line.
    pub(super) fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(anstream::stderr(), "\r\x1b[K");
        }
    }
}
