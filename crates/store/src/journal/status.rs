//! Reports of an agent in the journal: the first of a connection as a whole, later ones as what has changed. An agent reports
//! twice a second, and most of a report stays the same.

use probe_proto::v1::{self, agent_message::Content};

/// The reports of one connection, as they are written down.
#[derive(Debug, Default)]
pub struct StatusLog {
    /// The newest report that was written down.
    newest: Option<v1::Status>,
}

impl StatusLog {
    /// The content that turns the previous reports into `status`: a delta, or the whole report.
    pub fn content(&mut self, status: v1::Status) -> Content {
        let changes = self.newest.as_ref().and_then(|newest| changes(newest, &status));
        self.newest = Some(status.clone());
        changes.map_or(Content::Status(status), Content::StatusChange)
    }
}

/// What turns `known` into `next`; None where a change can't say that, because something is not in `next` any more.
fn changes(known: &v1::Status, next: &v1::Status) -> Option<v1::Status> {
    let mut changes = next.clone();
    changes.drops.retain(|drop| !known.drops.contains(drop));
    changes.layers.retain(|layer, mechanism| known.layers.get(layer) != Some(mechanism));
    changes.config.retain(|key, value| known.config.get(key) != Some(value));
    changes.recorded.retain(|table, rows| known.recorded.get(table) != Some(rows));
    if changes.problem == known.problem {
        changes.problem.clear();
    }
    let mut result = known.clone();
    apply(&mut result, &changes);
    (result == *next).then_some(changes)
}

/// Applies a change to the report before it.
pub(super) fn apply(known: &mut v1::Status, changes: &v1::Status) {
    let mut next = changes.clone();
    next.drops.clone_from(&known.drops);
    for drop in &changes.drops {
        match next.drops.iter_mut().find(|known| (&known.table, &known.reason) == (&drop.table, &drop.reason)) {
            Some(known) => known.rows = drop.rows,
            None => next.drops.push(drop.clone()),
        }
    }
    let v1::Status { mut layers, mut config, mut recorded, problem, .. } = std::mem::take(known);
    layers.extend(next.layers);
    config.extend(next.config);
    recorded.extend(next.recorded);
    let problem = if next.problem.is_empty() { problem } else { next.problem };
    *known = v1::Status { layers, config, recorded, problem, ..next };
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashMap;

    use probe_proto::v1;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn texts() -> impl Strategy<Value = HashMap<String, String>> {
        prop::collection::hash_map("[abc]", "[xy]?", 0..4)
    }

    fn status() -> impl Strategy<Value = v1::Status> {
        let drops = prop::collection::vec(("[ab]", "[cd]", 0..3_u64), 0..4);
        let drops = drops.prop_map(|drops| {
            drops.into_iter().map(|(table, reason, rows)| v1::Drop { table, reason, rows }).collect::<Vec<_>>()
        });
        let recorded = prop::collection::hash_map("[abc]", 0..3_u64, 0..4);
        let numbers = (0..3_i64, any::<bool>(), prop::option::of(0..2), prop::collection::vec(0..3_i64, 0..3));
        (drops, texts(), texts(), recorded, "[pq]?", numbers).prop_map(
            |(drops, layers, config, recorded, problem, (step, validates, cost, groups))| v1::Status {
                step,
                drops,
                layers,
                config,
                problem,
                recorded,
                cost: cost.map(|cost| v1::Cost { detail: f64::from(cost), ..v1::Cost::default() }),
                groups: groups.into_iter().map(|issued| v1::GroupState { issued, ..Default::default() }).collect(),
                validates,
                ..v1::Status::default()
            },
        )
    }

    proptest! {
        #[test]
        fn a_reader_has_every_report_as_it_was_sent(reports in prop::collection::vec(status(), 1..12)) {
            let mut log = StatusLog::default();
            let mut read = None;
            for report in reports {
                match log.content(report.clone()) {
                    Content::Status(whole) => read = Some(whole),
                    Content::StatusChange(changes) => apply(read.as_mut().unwrap(), &changes),
                    other => panic!("{other:?}"),
                }
                prop_assert_eq!(read.as_ref(), Some(&report));
            }
        }
    }

    #[test]
    fn what_stays_the_same_is_written_down_once() {
        let many = |value: &str| (0..40).map(|key| (format!("key {key}"), value.to_owned())).collect();
        let status = v1::Status {
            step: 7,
            layers: many("tp_call"),
            config: many("on"),
            recorded: (0..40).map(|table| (format!("python.table_{table}"), 1 << 40)).collect(),
            problem: "the disk is full".into(),
            unix_ns: 1 << 60,
            ..v1::Status::default()
        };
        let mut log = StatusLog::default();
        assert_eq!(log.content(status.clone()), Content::Status(status.clone()));
        let mut next = v1::Status { step: 8, unix_ns: (1 << 60) + 1, ..status.clone() };
        next.recorded.insert("python.table_3".into(), 1 << 41);
        let Content::StatusChange(changes) = log.content(next) else { panic!("it is a change") };
        assert!(status.encoded_len() > 2000);
        assert!(changes.encoded_len() < 50, "{changes:?}");
    }
}
