//! A table too wide for the terminal, a value a line: each row under a rule with its number.

use std::io::{self, Write};

use unicode_width::UnicodeWidthStr;

use super::cell::NULL;
use super::column::{TextColumn, styles};
use super::terminal::Terminal;

/// Writes every row of `columns`.
pub(super) fn write(out: &mut dyn Write, columns: &[TextColumn], terminal: Terminal) -> io::Result<()> {
    let (header, faint) = styles(terminal);
    let names = columns.iter().map(|column| column.name.width()).max().unwrap_or_default();
    let rows = columns.first().map_or(0, |column| column.cells.len());
    for row in 0..rows {
        let title = format!("─ row {} ", row + 1);
        let rule = "─".repeat(terminal.width.unwrap_or(80).min(60).saturating_sub(title.width()));
        writeln!(out, "{faint}{title}{rule}{faint:#}")?;
        for column in columns {
            let fill = " ".repeat(names - column.name.width());
            match &column.cells[row] {
                Some(text) => writeln!(out, "{header}{}{header:#}{fill}  {}", column.name, text.trim_end())?,
                None => writeln!(out, "{header}{}{header:#}{fill}  {faint}{NULL}{faint:#}", column.name)?,
            }
        }
    }
    Ok(())
}
