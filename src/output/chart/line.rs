//! Lines of Braille dots, two by four in a character.

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use probe_common::error::Result;
use unicode_width::UnicodeWidthStr;

use super::series::{Series, bounds, left_out, values};
use crate::output::terminal::Terminal;
use crate::output::writer::io_error;
use crate::output::{cell, number};

/// Lines of a picture, unless the terminal is lower.
const HEIGHT: usize = 12;

/// The horizontal axis of lines.
pub(super) struct Axis {
    name: String,
    positions: Vec<Option<f64>>,
    /// Every position as text.
    labels: Vec<Option<String>>,
}

impl Axis {
    /// An axis by a column of numbers or times.
    pub(super) fn of(name: &str, column: &ArrayRef) -> Result<Self> {
        let coarse = match column.data_type() {
            // To the second: a picture shows no microseconds.
            DataType::Timestamp(_, zone) => {
                let kind = DataType::Timestamp(arrow::datatypes::TimeUnit::Second, zone.clone());
                Some(arrow::compute::cast(column, &kind).map_err(io_error)?)
            }
            _ => None,
        };
        let labels = cell::texts(coarse.as_ref().unwrap_or(column) as &dyn Array, false)?;
        Ok(Self { name: name.to_owned(), positions: values(column)?, labels })
    }

    /// An axis by the numbers of rows.
    pub(super) fn rows(count: usize) -> Self {
        let label = |row: usize| Some(row.to_string());
        let positions = (1..=count).map(|row| Some(row as f64)).collect();
        Self { name: "row".to_owned(), positions, labels: (1..=count).map(label).collect() }
    }

    /// The text of the position `at`.
    fn label(&self, at: f64) -> &str {
        let row = self.positions.iter().position(|position| *position == Some(at));
        row.and_then(|row| self.labels[row].as_deref()).unwrap_or_default()
    }
}

/// Draws one series over an axis.
pub(super) fn draw(out: &mut String, axis: &Axis, series: &Series, terminal: Terminal) {
    let points: Vec<Option<(f64, f64)>> = axis.positions.iter().zip(&series.values).map(|(x, y)| x.zip(*y)).collect();
    let missing = points.iter().filter(|point| point.is_none()).count();
    out.push_str(&format!("{}{}\n", series.name, left_out(missing)));
    let drawn = || points.iter().flatten();
    let (Some((left, right)), Some((low, high))) =
        (bounds(drawn().map(|point| point.0)), bounds(drawn().map(|point| point.1)))
    else {
        out.push_str("nothing to draw\n");
        return;
    };
    let (top, bottom) = (number::float(high, true), number::float(low, true));
    let margin = top.width().max(bottom.width());
    let width = terminal.width.unwrap_or(80).saturating_sub(margin + 3).clamp(8, 400);
    let height = if terminal.is_terminal() { HEIGHT.min(terminal.height / 2).max(3) } else { HEIGHT };
    let mut canvas = Canvas::new(width, height);
    let across = scale(left, right, canvas.dots_across());
    let up = scale(low, high, canvas.dots_down());
    let bottom_dot = canvas.dots_down() - 1;
    let mut before = None;
    for point in &points {
        let dot = point.map(|(x, y)| (across(x), bottom_dot - up(y)));
        if let Some(to) = dot {
            canvas.line(before.unwrap_or(to), to);
        }
        before = dot;
    }
    for (at, line) in canvas.lines().enumerate() {
        let label = match at {
            0 => &top,
            at if at + 1 == height => &bottom,
            _ => "",
        };
        out.push_str(&format!("{}{label} ┤{}\n", " ".repeat(margin - label.width()), line.trim_end_matches('⠀')));
    }
    let (first, last) = (axis.label(left), axis.label(right));
    let indent = " ".repeat(margin + 2);
    out.push_str(&format!("{} └{}\n", " ".repeat(margin), "─".repeat(width)));
    let fill = width.saturating_sub(first.width() + last.width() + axis.name.width());
    let (half, rest) = (fill / 2, fill - fill / 2);
    out.push_str(&format!(
        "{indent}{first}{}{}{}{last}\n",
        " ".repeat(half.max(1)),
        axis.name,
        " ".repeat(rest.max(1))
    ));
}

/// The dot of a value among `dots`; the middle one where all values are the same.
fn scale(least: f64, most: f64, dots: usize) -> impl Fn(f64) -> usize {
    move |value| {
        // Halves, so that the span of the greatest values is not infinite.
        let share = if most > least { (value / 2.0 - least / 2.0) / (most / 2.0 - least / 2.0) } else { 0.5 };
        ((share * (dots - 1) as f64).round() as usize).min(dots - 1)
    }
}

/// Characters of two by four dots.
struct Canvas {
    width: usize,
    /// The dots of each character, as the last byte of its code point.
    cells: Vec<u8>,
}

impl Canvas {
    fn new(width: usize, height: usize) -> Self {
        Self { width, cells: vec![0; width * height] }
    }

    fn dots_across(&self) -> usize {
        self.width * 2
    }

    fn dots_down(&self) -> usize {
        self.cells.len() / self.width * 4
    }

    fn dot(&mut self, (x, y): (usize, usize)) {
        /// Unicode's order: the left column, the right one, and below both the row that was added later.
        const BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
        self.cells[y / 4 * self.width + x / 2] |= BITS[y % 4][x % 2];
    }

    /// Dots from one to the other, one for each step of the longer way.
    fn line(&mut self, from: (usize, usize), to: (usize, usize)) {
        let steps = from.0.abs_diff(to.0).max(from.1.abs_diff(to.1));
        let between = |a: usize, b: usize, step: usize| {
            let share = if steps == 0 { 0.0 } else { step as f64 / steps as f64 };
            (a as f64 + (b as f64 - a as f64) * share).round() as usize
        };
        for step in 0..=steps {
            self.dot((between(from.0, to.0, step), between(from.1, to.1, step)));
        }
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        let braille = |dots: &u8| char::from_u32(0x2800 + u32::from(*dots)).unwrap_or(' ');
        self.cells.chunks(self.width).map(move |cells| cells.iter().map(braille).collect())
    }
}
