//! A bar a row, to an eighth of a character.

use unicode_width::UnicodeWidthStr;

use super::series::{Series, bounds, left_out};
use crate::output::cell::NULL;
use crate::output::terminal::Terminal;
use crate::output::{layout, number};

/// Width at which labels are cut.
const MAX_LABEL: usize = 40;

/// Draws a series as bars from zero, to the right and, where values are below it, to the left.
pub(super) fn draw(out: &mut String, labels: &[Option<String>], series: &Series, terminal: Terminal) {
    let missing = series.values.iter().filter(|value| value.is_none()).count();
    out.push_str(&format!("{}{}\n", series.name, left_out(missing)));
    let name = |label: &Option<String>| layout::truncate(label.as_deref().unwrap_or(NULL), MAX_LABEL);
    let names: Vec<String> = labels.iter().map(name).collect();
    let texts: Vec<String> = series
        .values
        .iter()
        .map(|value| value.map_or_else(|| "–".to_owned(), |value| number::float(value, true)))
        .collect();
    let widest = |texts: &[String]| texts.iter().map(|text| text.width()).max().unwrap_or_default();
    let (names_width, texts_width) = (widest(&names), widest(&texts));
    let room = terminal.width.unwrap_or(80).saturating_sub(names_width + texts_width + 4).clamp(8, 200);
    let Some((least, most)) = bounds(series.values.iter().copied().flatten()) else {
        out.push_str("nothing to draw\n");
        return;
    };
    let (below, above) = (least.min(0.0).abs(), most.max(0.0));
    let span = below / 2.0 + above / 2.0;
    let eighths = |value: f64| {
        let share = if span > 0.0 { value.abs() / 2.0 / span } else { 0.0 };
        // A value that is not zero is visible.
        ((share * (room * 8) as f64).round() as usize).max(usize::from(value != 0.0)).min(room * 8)
    };
    let left = if below > 0.0 { eighths(below).div_ceil(8) } else { 0 };
    for ((name, text), value) in names.iter().zip(&texts).zip(&series.values) {
        let bar = match *value {
            None => String::new(),
            Some(value) if value < 0.0 => {
                let length = eighths(value).div_ceil(8).min(left);
                format!("{}{}", " ".repeat(left - length), "█".repeat(length))
            }
            Some(value) => format!("{}{}", " ".repeat(left), solid(eighths(value).min((room - left.min(room)) * 8))),
        };
        let name_fill = " ".repeat(names_width - name.width());
        let text_fill = " ".repeat(texts_width - text.width());
        out.push_str(format!("{name}{name_fill}  {text_fill}{text}  {bar}").trim_end());
        out.push('\n');
    }
}

/// A bar of `eighths` eighths of a character.
fn solid(eighths: usize) -> String {
    const PART: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    format!("{}{}", "█".repeat(eighths / 8), PART[eighths % 8])
}
