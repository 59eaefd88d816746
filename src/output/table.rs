//! Aligned columns for people.
//!
//! What is not a terminal gets every cell whole, however wide. On a terminal a table that is too wide has its longest
//! texts cut (…), and one that is too wide even then is shown a record at a time.

use std::io::{self, IsTerminal, Write};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use comfy_table::{Cell, CellAlignment, Table as Grid, presets};

use super::{Sink, value};
use crate::error::Result;

/// A table shows no more rows than this, unless told to.
pub const MOST_ROWS: usize = 10_000;

/// A text is not cut below this many letters.
const LEAST_TEXT: usize = 16;

/// What the table is shown on.
#[derive(Debug, Clone, Copy)]
pub struct Screen {
    /// Columns; None where it is no terminal and may be as wide as it likes.
    pub width: Option<usize>,
}

impl Screen {
    /// Standard output.
    pub fn of_stdout() -> Self {
        let terminal = io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
        Self { width: terminal.map(|(width, _)| usize::from(width.0)) }
    }
}

/// An answer's rows as text, up to a bound.
pub struct Table {
    names: Vec<String>,
    right: Vec<bool>,
    rows: Vec<Vec<Option<String>>>,
    most: usize,
    cut: bool,
    screen: Screen,
}

impl Table {
    /// An empty one, for at most `most` rows.
    pub fn new(schema: &SchemaRef, most: usize, screen: Screen) -> Self {
        Self {
            names: schema.fields().iter().map(|field| field.name().clone()).collect(),
            right: schema.fields().iter().map(|field| value::is_number(field.data_type())).collect(),
            rows: Vec::new(),
            most,
            cut: false,
            screen,
        }
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.names.iter().map(|name| name.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.as_deref().map_or(0, |text| text.chars().count()));
            }
        }
        widths
    }

    /// Widths that fit the screen, texts cut where they must be; None where nothing helps.
    fn fitted(&self) -> Option<Vec<usize>> {
        let mut widths = self.widths();
        let Some(screen) = self.screen.width else { return Some(widths) };
        let room = screen.saturating_sub(3 * widths.len() + 1);
        while widths.iter().sum::<usize>() > room {
            let over = widths.iter().sum::<usize>() - room;
            let texts = widths.iter().enumerate().filter(|(place, _)| !self.right[*place]);
            let (place, widest) = texts.max_by_key(|(_, width)| **width).map(|(place, width)| (place, *width))?;
            let least = LEAST_TEXT.max(self.names[place].chars().count());
            if widest <= least {
                return None;
            }
            widths[place] = widest.saturating_sub(over).max(least);
        }
        Some(widths)
    }

    fn grid(&self, widths: &[usize]) -> Grid {
        let mut grid = Grid::new();
        grid.load_preset(if self.screen.width.is_some() { presets::UTF8_FULL_CONDENSED } else { presets::ASCII_FULL_CONDENSED });
        let align = |place: usize| if self.right[place] { CellAlignment::Right } else { CellAlignment::Left };
        let header = self.names.iter().enumerate().map(|(n, name)| Cell::new(name).set_alignment(align(n)));
        grid.set_header(header);
        for row in &self.rows {
            let cells = row.iter().enumerate();
            grid.add_row(cells.map(|(n, cell)| {
                Cell::new(cell.as_deref().map_or_else(String::new, |text| cut(text, widths[n]))).set_alignment(align(n))
            }));
        }
        grid
    }

    /// A record at a time, a column a line.
    fn records(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self.names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
        for (number, row) in self.rows.iter().enumerate() {
            writeln!(out, "─ {} {}", number + 1, "─".repeat(width.max(8)))?;
            for (name, cell) in self.names.iter().zip(row) {
                writeln!(out, "{name:width$}  {}", cell.as_deref().unwrap_or_default())?;
            }
        }
        Ok(())
    }
}

fn cut(text: &str, width: usize) -> String {
    // A line break within a cell would break the row.
    let text = text.replace('\n', "⏎");
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

impl Sink for Table {
    fn batch(&mut self, batch: &RecordBatch, _out: &mut dyn Write) -> Result<bool> {
        let wanted = batch.num_rows().min(self.most - self.rows.len());
        self.cut |= wanted < batch.num_rows();
        let columns = batch.slice(0, wanted);
        let mut columns =
            columns.columns().iter().map(|c| value::texts(c).map(Vec::into_iter)).collect::<Result<Vec<_>>>()?;
        for _ in 0..wanted {
            self.rows.push(columns.iter_mut().map(|column| column.next().flatten()).collect());
        }
        Ok(!self.cut)
    }

    fn finish(&mut self, out: &mut dyn Write) -> Result<()> {
        match self.fitted() {
            Some(widths) => writeln!(out, "{}", self.grid(&widths))?,
            None => self.records(out)?,
        }
        Ok(())
    }

    fn note(&self) -> Option<String> {
        let rows = self.rows.len();
        if self.cut {
            return Some(format!("the first {rows} rows; --limit-rows N shows more, --format csv all of them"));
        }
        let s = if rows == 1 { "" } else { "s" };
        self.screen.width.is_some().then(|| format!("({rows} row{s})"))
    }
}
