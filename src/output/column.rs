//! A column of a table for people, with all its cells.

use anstyle::{Effects, Style};
use arrow::datatypes::Field;

use super::cell::{self, Alignment};
use super::terminal::Terminal;

const HEADER: Style = Style::new().effects(Effects::BOLD);
const FAINT: Style = Style::new().effects(Effects::DIMMED);

/// A column with all its cells.
pub(super) struct TextColumn {
    pub(super) name: String,
    pub(super) align: Alignment,
    /// Whether cells may be cut where the terminal is narrow.
    pub(super) may_cut: bool,
    /// Whether digits of integers are grouped by thousands.
    pub(super) group: bool,
    pub(super) cells: Vec<Option<String>>,
}

impl TextColumn {
    /// A column without cells yet.
    pub(super) fn new(field: &Field, terminal: Terminal) -> Self {
        Self {
            name: field.name().chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
            align: Alignment::of(field.data_type()),
            may_cut: cell::may_cut(field.data_type()),
            // Output that a program may read has plain digits.
            group: terminal.is_terminal() && cell::is_amount(field),
            cells: Vec::new(),
        }
    }
}

/// The styles of headers and of faint text.
pub(super) fn styles(terminal: Terminal) -> (Style, Style) {
    if terminal.colour { (HEADER, FAINT) } else { (Style::new(), Style::new()) }
}
