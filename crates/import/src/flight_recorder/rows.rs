//! Rows of a dump.

use probe_common::error::Result;
use probe_proto::table::Time;
use probe_proto::tables::{flight_recorder, process_groups};
use serde::Serialize;

use super::dump::TensorShapes;
use super::groups::ProcessGroup;
use super::operation::{FlightOperation, MAX_TEXT, known_time};
use crate::lenient::{BoundedList, LenientNumber};
use crate::rows::ProcessRows;

pub(super) fn push_operation(operation: &FlightOperation, capture: &str, rows: &mut ProcessRows<'_>) -> Result<()> {
    let entry = &operation.entry;
    let line = operation.line.as_ref();
    let thread = entry.thread_name.as_ref().map(|name| name.0.as_str()).filter(|name| name.len() <= MAX_TEXT);
    rows.push(|id| flight_recorder::Row {
        capture: id(capture),
        record: entry.record_id.0,
        group_name: id(&operation.group),
        description: operation.description.as_deref().map(&mut *id),
        seq: operation.seq,
        p2p: operation.p2p,
        operation_type: id(&operation.operation_type),
        peer: operation.peer,
        backend: operation.backend.as_deref().map(&mut *id),
        state: id(&operation.state),
        retired: operation.retired,
        pending: operation.pending,
        ts: Time(operation.created),
        started: known_time(entry.time_discovered_started_ns).map(Time),
        completed: known_time(entry.time_discovered_completed_ns).map(Time),
        duration_ms: entry.duration_ms.filter(|duration| duration.is_finite()),
        timeout: entry.timeout_ms.0.map(|timeout| timeout as f64 / 1e3),
        input_sizes: shapes(entry.input_sizes.as_ref()).as_deref().map(&mut *id),
        input_types: entry.input_dtypes.as_ref().and_then(|types| json(types.whole()?)).as_deref().map(&mut *id),
        output_sizes: shapes(entry.output_sizes.as_ref()).as_deref().map(&mut *id),
        bytes: operation.bytes,
        function: line.map(|line| id(&line.name)),
        file: line.map(|line| id(&line.filename)),
        line: line.and_then(|line| i32::try_from(line.line.0?).ok()),
        thread: thread.map(&mut *id),
    })
}

pub(super) fn push_group(group: &ProcessGroup, capture: &str, rows: &mut ProcessRows<'_>) -> Result<()> {
    // torch counts from 1 on.
    let last = |LenientNumber(number): LenientNumber| number.filter(|number| *number >= 0);
    rows.push(|id| process_groups::Row {
        capture: id(capture),
        ts: group.newest.map(Time),
        group_name: id(&group.name),
        description: group.description.as_deref().map(&mut *id),
        number: group.number,
        group_size: group.ranks.as_ref().and_then(|ranks| i32::try_from(ranks.len()).ok()),
        ranks: group.ranks.as_ref().and_then(|ranks| serde_json::to_string(ranks).ok()).as_deref().map(&mut *id),
        last_seq: group.last_seq,
        last_enqueued: last(group.status.last_enqueued_collective),
        last_started: last(group.status.last_started_collective),
        last_completed: last(group.status.last_completed_collective),
        operations: group.operations,
        pending: group.pending,
    })
}

/// Shapes as JSON, where they are short enough for a cell.
fn shapes(shapes: Option<&TensorShapes>) -> Option<String> {
    let shapes: Vec<&[i64]> = shapes?.whole()?.iter().map(BoundedList::whole).collect::<Option<_>>()?;
    json(&shapes)
}

/// A list as JSON, where it is short enough for a cell.
fn json<T: Serialize>(list: &[T]) -> Option<String> {
    serde_json::to_string(list).ok().filter(|text| text.len() <= MAX_TEXT)
}
