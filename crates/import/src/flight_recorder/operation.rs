//! An operation of a dump, in the terms of the tables.

use std::borrow::Cow;
use std::collections::BTreeMap;

use probe_common::user_code::is_user_code;

use super::dump::{DumpedFrame, DumpedOperation, TensorShapes, TensorTypes};
use crate::kinds::dtype_bytes;
use crate::lenient::{BoundedList, LenientNumber};

/// Longest name, or list of shapes in JSON, that becomes a cell (bytes).
pub(super) const MAX_TEXT: usize = 4096;

/// An operation.
#[derive(Debug)]
pub(super) struct FlightOperation {
    pub entry: DumpedOperation,
    pub group: String,
    pub description: Option<String>,
    /// The number among collectives, or among sends and receives.
    pub seq: i64,
    /// The number of collectives, also for a send or receive.
    pub collective_seq: Option<i64>,
    pub p2p: bool,
    pub operation_type: String,
    pub peer: Option<i32>,
    pub backend: Option<String>,
    pub state: String,
    pub retired: bool,
    pub pending: bool,
    pub created: i64,
    pub bytes: Option<i64>,
    /// The innermost line of the program's own code.
    pub line: Option<DumpedFrame>,
}

/// The operations of a dump. Entries that are no valid operation are counted by reason.
pub(super) fn read_operations<const MAX: usize>(
    entries: BoundedList<DumpedOperation, MAX>,
    left_out: &mut BTreeMap<Cow<'static, str>, u64>,
) -> Vec<FlightOperation> {
    let mut operations = Vec::with_capacity(entries.items.len());
    for entry in entries.items {
        match of(entry) {
            Ok(operation) => operations.push(operation),
            Err(reason) => *left_out.entry(reason.into()).or_default() += 1,
        }
    }
    if entries.more > 0 {
        left_out.insert("past the number of operations".into(), entries.more);
    }
    operations
}

/// The times at which the first operation was issued and the last was seen (nanoseconds).
pub(super) fn window(operations: &[FlightOperation]) -> Option<(i64, i64)> {
    let first = operations.iter().map(|operation| operation.created).min()?;
    let ends = operations.iter().flat_map(|operation| {
        [Some(operation.created), known_time(operation.entry.time_discovered_completed_ns)].into_iter().flatten()
    });
    Some((first, ends.max().unwrap_or(first)))
}

/// A time; 0 stands for none.
pub(super) fn known_time(LenientNumber(time): LenientNumber) -> Option<i64> {
    time.filter(|time| *time > 0)
}

fn of(mut entry: DumpedOperation) -> Result<FlightOperation, &'static str> {
    let name = entry.profiling_name.take().ok_or("without a name")?.0;
    let (group, description) = entry.process_group.take().ok_or("without a process group")?;
    let created = known_time(entry.time_created_ns).ok_or("without a time")?;
    if name.len() > MAX_TEXT || group.0.len() > MAX_TEXT {
        return Err("with a name past the limit of text");
    }
    let (backend, what) = match name.split_once(':') {
        Some((backend, what)) => (Some(backend), what),
        None => (None, name.as_str()),
    };
    // "send 0->3", "recv 0<-3".
    let (operation_type, peers) = what.split_once(' ').unwrap_or((what, ""));
    let peer = peers.split_once("->").or_else(|| peers.split_once("<-")).and_then(|(_, peer)| peer.parse().ok());
    let p2p = entry.is_p2p.unwrap_or(peer.is_some());
    let seq = if p2p { entry.p2p_seq_id } else { entry.collective_seq_id };
    let state = entry.state.take().map(|state| state.0).filter(|state| state.len() <= MAX_TEXT);
    let state = state.unwrap_or_default();
    let retired = entry.retired.unwrap_or(false);
    let is_nccl = backend.is_some_and(|backend| backend.eq_ignore_ascii_case("nccl"));
    let sizes = |shapes: &Option<TensorShapes>, types: &Option<TensorTypes>| bytes(shapes.as_ref()?, types.as_ref()?);
    let bytes = match (sizes(&entry.input_sizes, &entry.input_dtypes), sizes(&entry.output_sizes, &entry.output_dtypes))
    {
        (Some(input), Some(output)) => Some(input.max(output)),
        _ => None,
    };
    let frames = entry.frames.take().map(|frames| frames.items);
    let line = frames.into_iter().flatten().find(|frame| is_user_code(&frame.filename));
    Ok(FlightOperation {
        seq: seq.0.ok_or("without a number")?,
        collective_seq: entry.collective_seq_id.0,
        p2p,
        operation_type: operation_type.to_owned(),
        peer,
        backend: backend.map(str::to_owned),
        pending: state != "completed" && (is_nccl || !retired),
        state,
        retired,
        created,
        bytes,
        line: line.filter(|line| line.filename.len() <= MAX_TEXT && line.name.len() <= MAX_TEXT),
        group: group.0,
        description: Some(description.0).filter(|text| !text.is_empty() && text.len() <= MAX_TEXT),
        entry,
    })
}

/// The size of tensors with these shapes and types (bytes); None where one is not known.
fn bytes(shapes: &TensorShapes, types: &TensorTypes) -> Option<i64> {
    let (shapes, types) = (shapes.whole()?, types.whole()?);
    let mut sum = 0_i64;
    for (shape, dtype) in shapes.iter().zip(types) {
        let elements = shape.whole()?.iter().try_fold(1_i64, |product, size| product.checked_mul(*size))?;
        sum = sum.checked_add(elements.checked_mul(dtype_bytes(dtype)?)?)?;
    }
    (shapes.len() == types.len()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_known_or_not_said() {
        let of = |shapes: &str, types: &str| {
            bytes(&serde_json::from_str(shapes).unwrap(), &serde_json::from_str(types).unwrap())
        };
        assert_eq!(of("[[4, 5], [2]]", r#"["Float", "BFloat16"]"#), Some(84));
        assert_eq!(of("[[]]", r#"["Long"]"#), Some(8));
        assert_eq!(of("[]", "[]"), Some(0));
        assert_eq!(of("[[1]]", r#"["Int3"]"#), None);
        assert_eq!(of("[[9223372036854775807, 2]]", r#"["Byte"]"#), None);
        assert_eq!(of("[[1]]", "[]"), None);
        let many = format!("[{}[1]]", "[1],".repeat(1024));
        assert_eq!(of(&many, "[]"), None);
    }
}
