//! Rows of a snapshot.

use probe_common::error::Result;
use probe_proto::table::Time;
use probe_proto::tables::{memory_blocks, memory_events};

use super::form::{SnapshotBlock, SnapshotSegment, TextOrNone};
use super::history::StoredEntry;
use super::reckon::HeldBytes;
use crate::records::known;
use crate::rows::ProcessRows;
use crate::steps::{StepInterval, step_at};
use crate::text_table::TextTable;

/// Longest text that becomes a cell (bytes).
const MAX_TEXT: usize = 4096;

/// The events of a device.
pub(super) struct EventRows<'a> {
    pub capture: &'a str,
    /// The device's name: cuda:0.
    pub device: &'a str,
    pub texts: &'a TextTable,
    pub steps: &'a [StepInterval],
}

impl EventRows<'_> {
    pub(super) fn push(
        &self,
        number: i64,
        record: &StoredEntry,
        held: HeldBytes,
        rows: &mut ProcessRows<'_>,
    ) -> Result<()> {
        rows.push(|id| memory_events::Row {
            capture: id(self.capture),
            number,
            step: known(record.ts).and_then(|ts| step_at(self.steps, ts)),
            ts: known(record.ts).map(Time),
            action: id(record.action()),
            device: id(self.device),
            address: known(record.address),
            size: known(record.size),
            stream: known(record.stream),
            allocated: known(held.allocated),
            reserved: known(held.reserved),
            device_free: known(record.device_free),
            operator: None,
            module: None,
            stage: None,
            file: self.texts.get(record.file).map(|file| id(file)),
            line: Some(record.line).filter(|line| *line != i32::MIN),
            function: self.texts.get(record.function).map(|function| id(function)),
            thread: None,
            metadata: self.texts.get(record.metadata).map(|metadata| id(metadata)),
        })
    }
}

/// Writes the row of a segment's block; false where the block has too few fields for a row.
pub(super) fn push_block(
    (capture, ts): (&str, Option<i64>),
    segment: &SnapshotSegment<'_>,
    (block, address): (&SnapshotBlock<'_>, i64),
    rows: &mut ProcessRows<'_>,
) -> Result<bool> {
    let short_text = |TextOrNone(text): TextOrNone<'_>| text.filter(|text| text.len() <= MAX_TEXT).map(str::to_owned);
    let (Some(segment_address), Some(size), Some(state)) = (segment.address.0, block.size.0, short_text(block.state))
    else {
        return Ok(false);
    };
    let segment_size = segment.total_size.0.unwrap_or(size);
    let frame = block.frame();
    let device = device_name(segment.device.0.unwrap_or(0));
    let pool = segment.segment_pool_id.and_then(|(first, second)| Some(format!("[{},{}]", first.0?, second.0?)));
    rows.push(|id| memory_blocks::Row {
        capture: id(capture),
        ts: ts.map(Time),
        device: id(&device),
        stream: segment.stream.0,
        segment_address,
        segment_size,
        segment_type: short_text(segment.segment_type).as_deref().map(&mut *id),
        expandable: segment.is_expandable,
        pool: pool.as_deref().map(&mut *id),
        address,
        size,
        requested_size: block.requested(),
        state: id(&state),
        file: frame.and_then(|frame| short_text(frame.filename)).as_deref().map(&mut *id),
        line: frame.and_then(|frame| i32::try_from(frame.line.0?).ok()),
        function: frame.and_then(|frame| short_text(frame.name)).as_deref().map(&mut *id),
    })?;
    Ok(true)
}

/// Torch's name of the device with this number.
pub(super) fn device_name(number: i64) -> String {
    format!("cuda:{number}")
}
