//! The row of `python.nccl_trace` of an operation that is over, or whose end is not seen.

use probe_proto::table::Time;
use probe_proto::tables::nccl_trace;

use super::Analyser;
use super::clock::seconds;
use super::collectives::Issued;
use super::names::Names;
use crate::sink::Sink;

/// When an operation was complete.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    At(u64),
    /// So long after the device came to its issue.
    After(u64),
    /// Some time before it was looked at.
    Unknown,
    /// Its completion was not watched.
    NotSeen,
}

/// Bytes that each link carries, over the operation's bytes, in a group of `ranks`. (As nccl-tests defines it.)
fn bus_factor(operation: &str, ranks: i32) -> f64 {
    let ranks = f64::from(ranks.max(1));
    let shared = (ranks - 1.0) / ranks;
    if operation.starts_with("all_reduce") {
        2.0 * shared
    } else if ["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"]
        .iter()
        .any(|family| operation.starts_with(family))
    {
        shared
    } else {
        1.0
    }
}

impl<N: Names> Analyser<N> {
    pub(super) fn push_operation(&self, issued: &Issued, end: End, failed: bool, sink: &mut Sink) {
        let (Some(clock), Some(operation)) = (&self.clock, self.operations.kinds.get(&issued.kind)) else { return };
        let seconds = match end {
            End::At(end) if end > issued.at => Some(seconds(end - issued.at)),
            End::After(took) if took > 0 => Some(seconds(took)),
            _ => None,
        };
        let speed = seconds.filter(|_| !failed && issued.bytes > 0).map(|seconds| issued.bytes as f64 / seconds / 1e9);
        let status = match end {
            End::NotSeen => "issued",
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
            busbw_gbps: speed.map(|speed| speed * bus_factor(&operation.name, operation.group_size)),
        };
        sink.push(row);
    }
}

#[cfg(test)]
mod tests {
    use super::bus_factor;

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        for (operation, ranks, factor) in [
            ("all_reduce", 2, 1.0),
            ("all_reduce_coalesced", 4, 1.5),
            ("all_gather_into_tensor", 4, 0.75),
            ("broadcast", 8, 1.0),
            ("barrier", 1, 1.0),
        ] {
            assert!((bus_factor(operation, ranks) - factor).abs() < 1e-12, "{operation}");
        }
    }
}
