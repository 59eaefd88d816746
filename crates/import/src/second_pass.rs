//! Turns sorted records into rows: joins device activities with their launches, and walks each thread in order of time.

use std::collections::HashMap;
use std::path::Path;

use probe_common::error::Result;

use super::capture::{CaptureFacts, RowCounts};
use super::collect::Collected;
use super::join::join;
use super::records::MemoryEvent;
use super::row_writer::{Counts, Ranges, RowWriter};
use super::rows::ProcessRows;
use super::sorter::{Sorted, Sorter};
use super::walk::Walk;

/// Writes the rows of `collected`, with `base` added to all times, and returns the facts of the capture. A format adds what it
/// knows of the file.
///
/// # Errors
/// Records can't be read again, or rows can't be written.
pub(crate) fn write(
    collected: &mut Collected,
    capture: &str,
    (base, ranges): (i64, Ranges),
    scratch: &Path,
    rows: &mut ProcessRows<'_>,
) -> Result<CaptureFacts> {
    let host = std::mem::replace(&mut collected.host, Sorter::new(scratch)).finish()?;
    let launches = std::mem::replace(&mut collected.launches, Sorter::new(scratch)).finish()?;
    let devices = std::mem::replace(&mut collected.devices, Sorter::new(scratch)).finish()?;
    let memory = numbered(std::mem::replace(&mut collected.memory, Sorter::new(scratch)), scratch)?;
    let mut writer = RowWriter {
        rows,
        texts: &collected.texts,
        capture,
        base,
        ranges,
        has_devices: collected.has_devices,
        lines: &collected.device_lines,
        counts: Counts::default(),
        tensor_bytes: HashMap::new(),
    };
    let joined = join(&devices, &launches, scratch, |event| writer.kernel(&event, None, None, None))?;
    devices.check()?;
    launches.check()?;
    drop((devices, launches));
    let mut walk = Walk::new(&collected.texts, &collected.steps, &collected.device_lines);
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
fn numbered(memory: Sorter<MemoryEvent>, scratch: &Path) -> Result<Sorted<MemoryEvent>> {
    let memory = memory.finish()?;
    let mut by_thread = Sorter::new(scratch);
    for (number, event) in memory.group(0).enumerate() {
        by_thread.push(MemoryEvent { number: number as i64, sorted: 1, ..event })?;
    }
    memory.check()?;
    by_thread.finish()
}
