//! The row of `python.nccl_trace` of an operation that has ended, or whose end was not seen.

use probe_proto::bus_factor::bus_factor;
use probe_proto::table::Time;
use probe_proto::tables::nccl_trace;

use super::analyser::Analyser;
use super::clock::seconds;
use super::pending_collectives::{IssuedOperation, OperationEnd};
use super::symbol_lookup::SymbolLookup;
use crate::row_buffer::RowBuffer;

impl<N: SymbolLookup> Analyser<N> {
    pub(super) fn push_operation(
        &self,
        issued: &IssuedOperation,
        end: OperationEnd,
        failed: bool,
        sink: &mut RowBuffer,
    ) {
        let (Some(clock), Some(operation)) = (&self.clock, self.operations.kinds.get(&issued.kind)) else { return };
        let seconds = match end {
            OperationEnd::At(end) if end > issued.at => Some(seconds(end - issued.at)),
            OperationEnd::After(took) if took > 0 => Some(seconds(took)),
            _ => None,
        };
        let speed = seconds.filter(|_| !failed && issued.bytes > 0).map(|seconds| issued.bytes as f64 / seconds / 1e9);
        let status = match end {
            OperationEnd::NotSeen => "issued",
            _ if failed => "failed",
            _ => "completed",
        };
        let row = nccl_trace::Row {
            step: issued.step,
            seq: issued.seq,
            operation_type: sink.strings.id(&operation.name),
            group_name: sink.strings.id(&operation.group_name),
            group_size: operation.group_size,
            bytes: i64::try_from(issued.bytes).unwrap_or(i64::MAX),
            dtype: operation.dtype.as_ref().map(|dtype| sink.strings.id(dtype)),
            async_op: operation.async_op,
            backend: sink.strings.id(&operation.backend),
            ts: Time(clock.unix_ns(issued.at)),
            duration_ms: seconds.map(|seconds| seconds * 1e3),
            status: sink.strings.id(status),
            algbw_gbps: speed,
            busbw_gbps: speed.map(|speed| speed * bus_factor(&operation.name, i64::from(operation.group_size))),
        };
        sink.push(row);
    }
}
