//! Standard output: a terminal of some width, or something that gets no wrapping, colour or progress.

use std::io::IsTerminal;

use anstream::{AutoStream, ColorChoice};

/// How rows are laid out on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowLayout {
    /// As a table where the columns fit, else a line a value.
    #[default]
    Fit,
    /// As a table, wider than the terminal where the columns do not fit: for a pager that scrolls sideways.
    Wide,
    /// A line a value.
    Records,
}

/// What the table format may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terminal {
    /// Columns to fit into; None where output goes to a file or program, which gets every column whole.
    pub width: Option<usize>,
    /// Lines that the terminal shows at once, where there is a width.
    pub height: usize,
    /// Whether colours are used.
    pub colour: bool,
    /// How rows are laid out.
    pub shape: RowLayout,
}

impl Terminal {
    /// The terminal of standard output. NO_COLOR, CLICOLOR and TERM=dumb are honoured.
    pub fn of_stdout() -> Self {
        let stdout = std::io::stdout();
        if !stdout.is_terminal() {
            return Self::default();
        }
        let size = terminal_size::terminal_size_of(&stdout);
        let (size, height) = (size.map(|(w, _)| usize::from(w.0)), size.map(|(_, h)| usize::from(h.0)));
        // A terminal that does not know its width (some consoles in browsers) leaves it to the environment.
        let from_environment = || std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let width = size.filter(|width| *width > 0).or_else(from_environment).unwrap_or(80);
        let height = height.filter(|height| *height > 0).unwrap_or(24);
        Self {
            width: Some(width),
            height,
            colour: AutoStream::choice(&stdout) != ColorChoice::Never,
            shape: RowLayout::Fit,
        }
    }

    /// Whether standard output is a terminal.
    pub fn is_terminal(self) -> bool {
        self.width.is_some()
    }
}
