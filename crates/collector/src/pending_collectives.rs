//! Rows of `python.nccl_trace` of what is under way: an agent says it with every report, and it is a stored row only when
//! it is done. What a process that was lost was in stays pending for ever.

use std::sync::Arc;

use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{Table, Time};
use probe_proto::tables::nccl_trace;
use probe_proto::v1::GroupState;
use probe_store::Identity;
use probe_store::{SystemRows, SystemTable};

use super::agent::Presence;
use super::registry::Registry;

/// The rows with status `pending`.
#[derive(Debug)]
pub(crate) struct PendingCollectivesTable {
    pub registry: Arc<Registry>,
}

impl SystemTable for PendingCollectivesTable {
    fn table(&self) -> &'static Table {
        &nccl_trace::TABLE
    }

    fn rows(&self) -> SystemRows {
        SystemRows { batch: BatchBuilder::new(&nccl_trace::TABLE).take(), strings: StringTable::default() }
    }

    fn beside(&self) -> Vec<(Arc<Identity>, SystemRows)> {
        let mut found = Vec::new();
        for agent in self.registry.all() {
            let state = agent.state();
            // One that said goodbye has made rows of what it had.
            let under_way = state.groups.iter().any(|group| !group.pending.is_empty());
            if state.presence != Presence::Ended && under_way {
                found.push((Arc::clone(&state.identity), rows(&state.groups)));
            }
        }
        found
    }
}

fn rows(groups: &[GroupState]) -> SystemRows {
    let mut builder = BatchBuilder::new(&nccl_trace::TABLE);
    let mut strings = StringTable::default();
    for group in groups {
        for operation in &group.pending {
            builder.push(nccl_trace::Row {
                step: operation.step,
                seq: operation.seq,
                operation_type: strings.id(&operation.operation_type),
                group_name: strings.id(&group.name),
                group_size: group.size,
                bytes: operation.bytes,
                dtype: operation.dtype.as_ref().map(|dtype| strings.id(dtype)),
                async_op: operation.async_op,
                backend: strings.id(&operation.backend),
                ts: Time(operation.unix_ns),
                duration_ms: None,
                status: strings.id("pending"),
                algbw_gbps: None,
                busbw_gbps: None,
            });
        }
    }
    SystemRows { batch: builder.take(), strings }
}
