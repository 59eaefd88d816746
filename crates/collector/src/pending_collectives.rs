//! Rows of `python.nccl_trace` for pending collectives: an agent reports them, and they are stored rows only when
//! they are done. The collectives of a process that was lost stay pending for ever.

use std::sync::Arc;

use arrow::array::RecordBatch;
use probe_common::error::Result;
use probe_proto::agent_connection::AgentConnection;
use probe_proto::encode::StringTable;
use probe_proto::table::{Table, Time};
use probe_proto::tables::nccl_trace;
use probe_proto::v1::GroupState;
use probe_store::{ProcessIdentity, RecordBatchBuilder, SystemTable};

use super::registry::AgentRegistry;

/// The rows with status `pending`.
#[derive(Debug)]
pub(crate) struct PendingCollectivesTable {
    pub registry: Arc<AgentRegistry>,
}

impl SystemTable for PendingCollectivesTable {
    fn table(&self) -> &'static Table {
        &nccl_trace::TABLE
    }

    fn rows(&self) -> Result<RecordBatch> {
        RecordBatchBuilder::new(&nccl_trace::TABLE).finish(&StringTable::default())
    }

    fn beside(&self) -> Result<Vec<(Arc<ProcessIdentity>, RecordBatch)>> {
        let mut found = Vec::new();
        for agent in self.registry.all() {
            let state = agent.state();
            // An agent that said Bye has made rows of its collectives.
            let under_way = state.groups.iter().any(|group| !group.pending.is_empty());
            if state.presence != AgentConnection::Ended && under_way {
                found.push((Arc::clone(&state.identity), rows(&state.groups)?));
            }
        }
        Ok(found)
    }
}

fn rows(groups: &[GroupState]) -> Result<RecordBatch> {
    let mut builder = RecordBatchBuilder::new(&nccl_trace::TABLE);
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
    builder.finish(&strings)
}
