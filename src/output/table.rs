//! `--format table`: columns for people. All rows are held until the end, since the widest cell sets a column's width;
//! the caller bounds their number.

use std::io::{self, Write};

use anstyle::Style;
use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, SchemaRef};
use unicode_width::UnicodeWidthStr;

use super::cell::{self, Alignment, NULL};
use super::column::{TextColumn, styles};
use super::layout::{self, ColumnMeasure, LayoutPlan};
use super::records;
use super::terminal::{RowLayout, Terminal};
use super::writer::{AnswerWriter, BoxedOutput};

/// Writes a table, or records where the table does not fit the terminal.
pub(super) struct TableWriter<'a> {
    columns: Vec<TextColumn>,
    terminal: Terminal,
    out: BoxedOutput<'a>,
}

impl<'a> TableWriter<'a> {
    pub(super) fn new(schema: SchemaRef, terminal: Terminal, out: BoxedOutput<'a>) -> Self {
        let columns = schema.fields().iter().map(|field| TextColumn::new(field, terminal));
        Self { columns: columns.collect(), terminal, out }
    }
}

/// Whether columns fit beside each other.
pub(super) fn fits(columns: &[(&str, ArrayRef)], terminal: Terminal) -> io::Result<bool> {
    let made = columns.iter().map(|(name, values)| {
        let mut column = TextColumn::new(&Field::new(*name, values.data_type().clone(), true), terminal);
        column.cells = cell::texts(values, column.group)?;
        if column.align == Alignment::Point {
            align_points(&mut column.cells);
        }
        Ok(column)
    });
    let made = made.collect::<io::Result<Vec<TextColumn>>>()?;
    let measures: Vec<ColumnMeasure<'_>> = made.iter().map(measure).collect();
    Ok(layout::plan(&measures, terminal.width) != LayoutPlan::Records)
}

impl AnswerWriter for TableWriter<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> io::Result<()> {
        for (column, array) in self.columns.iter_mut().zip(batch.columns()) {
            column.cells.extend(cell::texts(array, column.group)?);
        }
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        for column in self.columns.iter_mut().filter(|column| column.align == Alignment::Point) {
            align_points(&mut column.cells);
        }
        let measures: Vec<ColumnMeasure<'_>> = self.columns.iter().map(measure).collect();
        let plan = match (self.terminal.shape, layout::plan(&measures, self.terminal.width)) {
            (RowLayout::Records, _) => LayoutPlan::Records,
            (RowLayout::Wide, LayoutPlan::Records) => layout::plan(&measures, None),
            (_, plan) => plan,
        };
        match plan {
            LayoutPlan::Table(widths) => self.write_table(&widths)?,
            LayoutPlan::Records => records::write(&mut self.out, &self.columns, self.terminal)?,
        }
        self.out.flush()
    }
}

impl TableWriter<'_> {
    fn write_table(&mut self, widths: &[usize]) -> io::Result<()> {
        let (header, faint) = styles(self.terminal);
        let wrapped: Vec<Vec<String>> =
            self.columns.iter().zip(widths).map(|(c, w)| layout::wrap(&c.name, *w)).collect();
        let height = wrapped.iter().map(Vec::len).max().unwrap_or_default();
        for line in 0..height {
            let mut row = TableLine::default();
            for ((column, width), lines) in self.columns.iter().zip(widths).zip(&wrapped) {
                // Wrapped headers stand on the rule.
                let text = (line + lines.len()).checked_sub(height).map_or("", |index| lines[index].as_str());
                row.cell(text, *width, column.align != Alignment::Left, header);
            }
            writeln!(self.out, "{}", row.end())?;
        }
        let mut rule = TableLine::default();
        for width in widths {
            rule.cell(&"─".repeat(*width), *width, false, faint);
        }
        writeln!(self.out, "{}", rule.end())?;
        let rows = self.columns.first().map_or(0, |column| column.cells.len());
        for row in 0..rows {
            let mut line = TableLine::default();
            for (column, width) in self.columns.iter().zip(widths) {
                match &column.cells[row] {
                    Some(text) => line.cell(
                        &layout::truncate(text, *width),
                        *width,
                        column.align != Alignment::Left,
                        Style::new(),
                    ),
                    None => line.cell(NULL, *width, column.align != Alignment::Left, faint),
                }
            }
            writeln!(self.out, "{}", line.end())?;
        }
        Ok(())
    }
}

fn measure(column: &TextColumn) -> ColumnMeasure<'_> {
    let widths = column.cells.iter().map(|cell| cell.as_deref().unwrap_or(NULL).width());
    ColumnMeasure { header: &column.name, cells: widths.max().unwrap_or_default(), may_cut: column.may_cut }
}

/// Pads floats at their right, so that their points align.
fn align_points(cells: &mut [Option<String>]) {
    let after_point = |text: &str| text.find('.').map_or(0, |point| text.len() - point);
    let most = cells.iter().flatten().map(|text| after_point(text)).max().unwrap_or_default();
    for text in cells.iter_mut().flatten() {
        let missing = most - after_point(text);
        text.extend(std::iter::repeat_n(' ', missing));
    }
}

/// A line under construction; spaces before a cell are written when it comes, so that none are left at the end.
#[derive(Default)]
struct TableLine {
    text: String,
    spaces: usize,
}

impl TableLine {
    fn cell(&mut self, text: &str, width: usize, right: bool, style: Style) {
        let shown = text.trim_end();
        let fill = width.saturating_sub(text.width());
        let (before, after) = if right { (fill, 0) } else { (0, fill) };
        self.spaces += before;
        if !shown.is_empty() {
            self.text.extend(std::iter::repeat_n(' ', std::mem::take(&mut self.spaces)));
            self.text.push_str(&format!("{style}{shown}{style:#}"));
        }
        self.spaces += text.width() - shown.width() + after + layout::GAP;
    }

    fn end(self) -> String {
        self.text
    }
}
