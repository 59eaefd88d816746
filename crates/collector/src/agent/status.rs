//! Cuts an agent's report to what is kept in the state and in the journal's checkpoint: no more, and no longer texts, than is
//! shown.

use std::collections::HashMap;

use probe_proto::v1;
use probe_store::journal::MAX_ENTRIES;
use prost::Message;

use crate::truncate::{MAX_TEXT, truncate};

/// Most process groups of an agent whose state is kept, and most pending operations of each.
const MAX_GROUPS: usize = 1024;
const MAX_PENDING: usize = 64;

/// Most late plans of one report that are taken.
pub(super) const MAX_LATE: usize = 8;

/// Longest report that is kept (bytes). Of a longer one groups are left out, and then all but numbers.
const MAX_REPORT_BYTES: usize = 64 << 10;

/// The report as it is kept.
pub(crate) fn truncate_status(status: v1::Status) -> v1::Status {
    let drops = status.drops.into_iter().take(MAX_ENTRIES);
    let late = status.late.len().saturating_sub(MAX_LATE);
    let mut status = v1::Status {
        problem: truncate(status.problem, MAX_TEXT),
        layers: few(status.layers, short),
        config: few(status.config, short),
        recorded: few(status.recorded, |rows| rows),
        drops: drops.map(|drop| v1::Drop { table: short(drop.table), reason: short(drop.reason), ..drop }).collect(),
        late: status.late.into_iter().skip(late).collect(),
        groups: status.groups.into_iter().take(MAX_GROUPS).map(truncate_group).collect(),
        ..status
    };
    while status.encoded_len() > MAX_REPORT_BYTES && !status.groups.is_empty() {
        status.groups.truncate(status.groups.len() / 2);
    }
    if status.encoded_len() > MAX_REPORT_BYTES {
        status = v1::Status { layers: HashMap::new(), config: HashMap::new(), ..status };
    }
    while status.encoded_len() > MAX_REPORT_BYTES && !status.drops.is_empty() {
        status.drops.truncate(status.drops.len() / 2);
    }
    if status.encoded_len() > MAX_REPORT_BYTES {
        status.recorded.clear();
    }
    status
}

/// The state of a group, cut to its bounds.
fn truncate_group(mut group: v1::GroupState) -> v1::GroupState {
    group.name = short(group.name);
    group.pending.truncate(MAX_PENDING);
    for operation in &mut group.pending {
        operation.operation_type = short(std::mem::take(&mut operation.operation_type));
        operation.backend = short(std::mem::take(&mut operation.backend));
        operation.dtype = operation.dtype.take().map(short);
    }
    group
}

fn short(text: String) -> String {
    truncate(text, MAX_TEXT)
}

fn few<V, W>(map: HashMap<String, V>, value: impl Fn(V) -> W) -> HashMap<String, W> {
    map.into_iter().take(MAX_ENTRIES).map(|(key, of)| (short(key), value(of))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_bounded_however_long_it_is() {
        let long = || "x".repeat(1 << 16);
        let texts = || (0..1000).map(|n| (format!("{n} {}", long()), long())).collect();
        let rows = (0..1000).map(|n| (format!("{n} {}", long()), 1)).collect();
        let pending = vec![v1::PendingOperation { backend: long(), ..v1::PendingOperation::default() }; 100];
        let group = v1::GroupState { name: long(), pending, ..v1::GroupState::default() };
        let drop = v1::Drop { table: long(), reason: long(), rows: 1 };
        let status = v1::Status {
            step: 7,
            problem: long(),
            layers: texts(),
            config: texts(),
            recorded: rows,
            drops: vec![drop; 1000],
            groups: vec![group; 100],
            ..v1::Status::default()
        };
        let kept = truncate_status(status);
        assert!(kept.encoded_len() <= MAX_REPORT_BYTES && kept.step == 7 && kept.problem.len() == MAX_TEXT);
        let usual = v1::Status {
            groups: vec![v1::GroupState { name: "0".into(), size: 2, issued: 5, ..Default::default() }],
            layers: [("forward".to_owned(), "tp_call".to_owned())].into(),
            ..v1::Status::default()
        };
        assert_eq!(truncate_status(usual.clone()), usual);
    }
}
