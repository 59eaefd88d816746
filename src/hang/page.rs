//! The verdict as a page for people.

use std::fmt::Write;

use probe_inspect::stacks::fold::ranges;
use unicode_width::UnicodeWidthStr;

use super::facts::FactSource;
use super::stall::{RecordedStall, StallReason};
use super::verdict::HangVerdict;

/// Groups that are listed.
const MAX_GROUPS: usize = 20;

/// The whole page, for the run called `name`.
pub(crate) fn page(verdict: &HangVerdict<'_>, name: &str) -> String {
    let mut page = format!("{name}: {}\n", printable(&verdict.sentence));
    let (listed, waiting): (Vec<&RecordedStall<'_>>, Vec<&RecordedStall<'_>>) =
        verdict.stalls.iter().partition(|stall| stall.why != StallReason::NotFinished);
    if let Some(line) = verdict.stalls.first().and_then(|stall| stall.operation.line.as_ref()) {
        let _ = writeln!(page, "It was issued from {}", printable(line));
    }
    if !listed.is_empty() {
        let _ =
            writeln!(page, "\nGroups in which a rank is missing or does something else, the oldest operation first:\n");
        let head = ["group", "operation", "number", "entered", "not entered"].map(str::to_owned);
        let rows: Vec<_> =
            std::iter::once(head).chain(listed.iter().take(MAX_GROUPS).map(|stall| row(stall))).collect();
        table(&mut page, &rows);
    }
    let more = listed.len().saturating_sub(MAX_GROUPS);
    if more > 0 {
        let _ = writeln!(page, "… and {more} more");
    }
    if !waiting.is_empty() {
        let also = if listed.is_empty() { "" } else { " more" };
        let groups: Vec<&str> = waiting.iter().map(|stall| stall.group).take(MAX_GROUPS).collect();
        let rest = waiting.len() - groups.len();
        let recorded = match waiting.first().map(|stall| stall.source) {
            Some(FactSource::Rows) => "all recorded ranks",
            _ if waiting.iter().any(|stall| !stall.perhaps.is_empty()) => "all ranks with a whole dump",
            _ => "all ranks with a dump",
        };
        let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        let _ = writeln!(
            page,
            "\n{}{also} {} in an operation that {recorded} had entered: {}{rest}",
            waiting.len(),
            if waiting.len() == 1 { "group was" } else { "groups were" },
            printable(&groups.join(", ")),
        );
    }
    for remark in &verdict.remarks {
        let _ = writeln!(page, "\n{remark}");
    }
    page
}

fn row(stall: &RecordedStall<'_>) -> [String; 5] {
    let list = |ranks: &[i32]| if ranks.is_empty() { "-".to_owned() } else { ranges(ranks) };
    [
        printable(&stall.group()),
        printable(&stall.operation.operation_type),
        stall.operation.seq.to_string(),
        list(&stall.entered),
        list(&stall.missing),
    ]
}

fn table(page: &mut String, rows: &[[String; 5]]) {
    let mut widths = [0; 5];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell}{}  ", " ".repeat(width - cell.width()));
        }
        let _ = writeln!(page, "{}", line.trim_end());
    }
}

/// Text of a file, made safe for a line of a terminal: without control characters, and cut to 1024 characters.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(1024).collect()
}
