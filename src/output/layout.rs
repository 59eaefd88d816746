//! The widths of the columns of a table, and whether the table fits the terminal.

use unicode_width::UnicodeWidthStr;

/// Spaces between two columns.
pub(super) const GAP: usize = 2;

/// Width below which text columns are not cut.
const MIN_TEXT_WIDTH: usize = 12;

/// The measures of a column before layout.
#[derive(Debug, Clone)]
pub(super) struct ColumnMeasure<'a> {
    /// Name of the column.
    pub(super) header: &'a str,
    /// Width of the widest cell.
    pub(super) cells: usize,
    /// Whether cells may be cut: text may; a number or a time that is cut would be another one.
    pub(super) may_cut: bool,
}

/// How to show the rows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LayoutPlan {
    /// A line a row, with columns of these widths; headers that are wider than theirs are wrapped.
    Table(Vec<usize>),
    /// A line a value: the columns do not fit beside each other.
    Records,
}

/// Fits columns into `width` (None: no limit) by wrapping headers, then by cutting the widest text.
pub(super) fn plan(columns: &[ColumnMeasure<'_>], width: Option<usize>) -> LayoutPlan {
    let natural = columns.iter().map(|c| c.header.width().max(c.cells)).collect::<Vec<_>>();
    let Some(limit) = width else { return LayoutPlan::Table(natural) };
    let gaps = GAP * columns.len().saturating_sub(1);
    let fits = |widths: &[usize]| widths.iter().sum::<usize>() + gaps <= limit;
    if fits(&natural) {
        return LayoutPlan::Table(natural);
    }
    let longest_piece = |c: &ColumnMeasure<'_>| pieces(c.header).map(UnicodeWidthStr::width).max().unwrap_or_default();
    let mut widths: Vec<usize> = columns.iter().map(|c| c.cells.max(longest_piece(c))).collect();
    if fits(&widths) {
        widen(&mut widths, &natural, limit - gaps);
        return LayoutPlan::Table(widths);
    }
    let least: Vec<usize> = columns
        .iter()
        .zip(&widths)
        .map(|(c, &width)| if c.may_cut { width.min(MIN_TEXT_WIDTH.max(longest_piece(c))) } else { width })
        .collect();
    if !fits(&least) {
        return LayoutPlan::Records;
    }
    while !fits(&widths) {
        let cuttable = (0..widths.len()).filter(|&i| widths[i] > least[i]);
        let Some(widest) = cuttable.max_by_key(|&i| widths[i]) else { return LayoutPlan::Records };
        widths[widest] -= 1;
    }
    LayoutPlan::Table(widths)
}

/// Gives remaining room to headers that would otherwise be wrapped, first come first served.
fn widen(widths: &mut [usize], natural: &[usize], limit: usize) {
    let mut room = limit - widths.iter().sum::<usize>();
    for (width, natural) in widths.iter_mut().zip(natural) {
        let more = natural - *width;
        if more <= room {
            *width += more;
            room -= more;
        }
    }
}

/// A header in the pieces between which it may be wrapped: `total_time_sec` is `total_`, `time_`, `sec`.
fn pieces(header: &str) -> impl Iterator<Item = &str> {
    header.split_inclusive(['_', '.', ' ', ',', '('])
}

/// A header in lines of at most `width`.
pub(super) fn wrap(header: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for piece in pieces(header) {
        let line = lines.len() - 1;
        if !lines[line].is_empty() && lines[line].width() + piece.width() > width {
            lines.push(piece.to_owned());
        } else {
            lines[line].push_str(piece);
        }
    }
    lines
}

/// Text cut to `width` with an ellipsis: at the end, or in the middle of a name without spaces, whose end says most
/// (`layers.0.…attn.qkv`).
pub(super) fn truncate(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let tail_room = if text.contains(' ') { 0 } else { room.div_ceil(2) };
    let head = take(text.chars(), room - tail_room);
    let tail: String = take(text.chars().rev(), tail_room).chars().rev().collect();
    format!("{head}…{tail}")
}

/// As many characters as fit into `width`.
fn take(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut out = String::new();
    let mut used = 0;
    for c in chars {
        used += c.to_string().width();
        if used > width {
            break;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(header: &str, cells: usize) -> ColumnMeasure<'_> {
        ColumnMeasure { header, cells, may_cut: true }
    }
    fn number(header: &str, cells: usize) -> ColumnMeasure<'_> {
        ColumnMeasure { header, cells, may_cut: false }
    }

    #[test]
    fn headers_are_wrapped_before_text_is_cut_and_numbers_never_are() {
        let columns = [text("module", 30), number("total_time_sec", 8)];
        assert_eq!(plan(&columns, None), LayoutPlan::Table(vec![30, 14]));
        assert_eq!(plan(&columns, Some(46)), LayoutPlan::Table(vec![30, 14]));
        assert_eq!(plan(&columns, Some(42)), LayoutPlan::Table(vec![30, 8]));
        assert_eq!(plan(&columns, Some(30)), LayoutPlan::Table(vec![20, 8]));
        assert_eq!(plan(&columns, Some(21)), LayoutPlan::Records);
        assert_eq!(wrap("total_time_sec", 8), ["total_", "time_sec"]);
    }

    #[test]
    fn names_are_cut_in_the_middle_and_sentences_at_the_end() {
        assert_eq!(truncate("layers.10.attn.qkv_projection", 13), "layers…ection");
        assert_eq!(truncate("loss went to infinity", 10), "loss went…");
        assert_eq!(truncate("short", 5), "short");
        assert_eq!(truncate("日本語日本語", 5), "日…語");
    }

    proptest! {
        #[test]
        fn a_planned_table_fits(
            columns in prop::collection::vec(("[a-z_]{0,20}", 0_usize..60, any::<bool>()), 0..12),
            limit in 1_usize..120,
        ) {
            let columns: Vec<_> = columns.iter()
                .map(|(header, cells, may_cut)| ColumnMeasure { header, cells: *cells, may_cut: *may_cut }).collect();
            if let LayoutPlan::Table(widths) = plan(&columns, Some(limit)) {
                prop_assert!(widths.iter().sum::<usize>() + GAP * columns.len().saturating_sub(1) <= limit);
                for (column, width) in columns.iter().zip(&widths) {
                    prop_assert!(column.may_cut || *width >= column.cells);
                    prop_assert!(wrap(column.header, *width).iter().all(|line| line.width() <= *width));
                }
            }
        }

        #[test]
        fn a_cut_text_fits(text in ".*", width in 1_usize..30) {
            prop_assert!(truncate(&text, width).width() <= width);
        }
    }
}
