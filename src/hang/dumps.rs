//! The facts of Flight Recorder dumps that were imported into a run.

use std::fmt::Write;

use probe_client::Client;
use probe_common::error::Result;

use super::facts::{CollectiveCompletion, HangFacts, IssuedCollective};
use crate::small_rows::{AnswerRow, rows};

/// Asks for the facts of all dumps.
///
/// # Errors
/// The queries'.
pub(crate) async fn ask(client: &mut Client) -> Result<HangFacts> {
    let mut facts = HangFacts::default();
    let rank = |row: &AnswerRow, column: usize| row.int(column).and_then(|rank| i32::try_from(rank).ok());
    let sql = "SELECT rank, problem IS NOT NULL FROM python.captures WHERE tool = 'flight-recorder'";
    for row in rows(client, sql).await? {
        match rank(&row, 0) {
            Some(rank) => {
                *facts.ranks.entry(rank).or_default() += 1;
                if row.flag(1) {
                    facts.partial.insert(rank);
                }
            }
            None => facts.without_rank += 1,
        }
    }
    if facts.is_empty() {
        return Ok(facts);
    }
    let sql = "SELECT rank, group_name, description, ranks, COALESCE(last_seq, last_enqueued) \
               FROM python.process_groups WHERE rank IS NOT NULL \
               AND capture IN (SELECT capture FROM python.captures WHERE tool = 'flight-recorder')";
    for row in rows(client, sql).await? {
        let (Some(rank), Some(name)) = (rank(&row, 0), row.text(1)) else { continue };
        let group = facts.groups.entry(name).or_default();
        group.description = group.description.take().or_else(|| row.text(2));
        let listed: Vec<i32> = row.text(3).and_then(|ranks| serde_json::from_str(&ranks).ok()).unwrap_or_default();
        group.listed |= !listed.is_empty();
        group.ranks.extend(listed);
        group.ranks.insert(rank);
        if let Some(last) = row.int(4) {
            let known = group.last.entry(rank).or_insert(last);
            *known = last.max(*known);
        }
    }
    let sql = "SELECT rank, group_name, seq, operation_type, input_sizes, input_types, bytes, ts, function, file, line \
               FROM python.flight_recorder WHERE pending AND NOT p2p AND rank IS NOT NULL ORDER BY ts";
    for row in rows(client, sql).await? {
        let (Some(rank), Some(name)) = (rank(&row, 0), row.text(1)) else { continue };
        let pending = IssuedCollective {
            rank,
            seq: row.int(2).unwrap_or_default(),
            operation_type: row.text(3).unwrap_or_default(),
            tensors: tensors(row.text(4).as_deref(), row.text(5).as_deref()),
            bytes: row.int(6),
            issued: row.int(7).unwrap_or_default(),
            line: row.text(9).map(|file| {
                let (function, line) = (row.text(8).unwrap_or_default(), row.int(10).unwrap_or_default());
                format!("{function} {file}:{line}")
            }),
            element_type: None,
            completion: CollectiveCompletion::Unfinished,
        };
        facts.groups.entry(name).or_default().collectives.push(pending);
    }
    let sql = "SELECT COUNT(*), COUNT(*) FILTER (WHERE pending AND p2p) FROM python.flight_recorder";
    if let Some(row) = rows(client, sql).await?.first() {
        facts.operations = row.int(0).unwrap_or_default();
        facts.point_to_point = row.int(1).unwrap_or_default();
    }
    Ok(facts)
}

/// Types and shapes of the first three tensors: "BFloat16 [2048, 5120], Long [1]".
fn tensors(sizes: Option<&str>, types: Option<&str>) -> String {
    let sizes: Vec<Vec<i64>> = sizes.and_then(|sizes| serde_json::from_str(sizes).ok()).unwrap_or_default();
    let types: Vec<String> = types.and_then(|types| serde_json::from_str(types).ok()).unwrap_or_default();
    let mut text = String::new();
    for (number, (size, kind)) in sizes.iter().zip(&types).take(3).enumerate() {
        let _ = write!(text, "{}{kind} {size:?}", if number == 0 { "" } else { ", " });
    }
    if sizes.len() > 3 {
        let _ = write!(text, " and {} more", sizes.len() - 3);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::tensors;

    #[test]
    fn tensors_have_types_and_shapes() {
        assert_eq!(
            tensors(Some("[[2048, 5120], [1]]"), Some(r#"["BFloat16", "Long"]"#)),
            "BFloat16 [2048, 5120], Long [1]"
        );
        assert_eq!(tensors(Some("[[1],[1],[1],[1]]"), Some(r#"["A","A","A","A"]"#)), "A [1], A [1], A [1] and 1 more");
        assert_eq!(tensors(None, None), "");
    }
}
