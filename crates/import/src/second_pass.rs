//! Turns sorted records into rows: joins device activities with their launches, and walks each thread in order of time.

use std::collections::HashMap;
use std::path::Path;

use probe_common::error::Result;

use super::capture::{CaptureFacts, RowCounts};
use super::collect::CollectedEvents;
use super::join::join;
use super::records::MemoryEvent;
use super::row_writer::{RangeTable, RowWriter, WrittenRowCounts};
use super::rows::ProcessRows;
use super::sorter::{RecordSorter, SortedRecords};
use super::walk::ThreadWalk;

/// Writes the rows of `collected`, with `base` added to all times, and returns the facts of the capture. A format adds what it
/// knows of the file.
///
/// # Errors
/// Records can't be read again, or rows can't be written.
pub(crate) fn write(
    collected: &mut CollectedEvents,
    capture: &str,
    (base, ranges): (i64, RangeTable),
    scratch: &Path,
    rows: &mut ProcessRows<'_>,
) -> Result<CaptureFacts> {
    let host = std::mem::replace(&mut collected.host, RecordSorter::new(scratch)).finish()?;
    let launches = std::mem::replace(&mut collected.launches, RecordSorter::new(scratch)).finish()?;
    let devices = std::mem::replace(&mut collected.devices, RecordSorter::new(scratch)).finish()?;
    let memory = numbered(std::mem::replace(&mut collected.memory, RecordSorter::new(scratch)), scratch)?;
    let mut writer = RowWriter {
        rows,
        texts: &collected.texts,
        capture,
        base,
        ranges,
        has_devices: collected.has_devices,
        lines: &collected.device_lines,
        counts: WrittenRowCounts::default(),
        tensor_bytes: HashMap::new(),
    };
    let joined = join(&devices, &launches, scratch, |event| writer.kernel(&event, None, None, None))?;
    devices.check()?;
    launches.check()?;
    drop((devices, launches));
    let mut walk = ThreadWalk::new(&collected.texts, &collected.steps, &collected.device_lines);
    walk.run(&collected.threads, (&host, &joined, &memory), &mut writer)?;
    let (counts, too_deep) = (writer.counts, walk.too_deep);
    if too_deep > 0 {
        collected.leave_out("within more open calls than are followed", too_deep);
    }
    let (steps, first_step, last_step) = collected.steps_found();
    Ok(CaptureFacts {
        window: collected.window.map(|(first, last)| (first + base, last + base)),
        steps,
        first_step,
        last_step,
        events: collected.events,
        rows: RowCounts {
            operators: counts.operators,
            kernels: counts.kernels,
            launches: counts.launches,
            frames: counts.frames,
            spans: counts.spans,
            memory_events: counts.memory_events,
            ..RowCounts::default()
        },
        without_launch: counts.without_launch,
        left_out: std::mem::take(&mut collected.left_out),
        mended: collected.mended,
        problem: collected.problem.take(),
        ..CaptureFacts::default()
    })
}

/// Memory events by thread, with numbers by time.
fn numbered(memory: RecordSorter<MemoryEvent>, scratch: &Path) -> Result<SortedRecords<MemoryEvent>> {
    let memory = memory.finish()?;
    let mut by_thread = RecordSorter::new(scratch);
    for (number, event) in memory.group(0).enumerate() {
        by_thread.push(MemoryEvent { number: number as i64, sorted: 1, ..event })?;
    }
    memory.check()?;
    by_thread.finish()
}
