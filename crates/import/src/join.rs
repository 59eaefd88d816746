//! Joins device activities with their launches: both are sorted by the number that they share.

use std::path::Path;

use probe_common::error::Result;

use super::records::{DeviceEvent, Launch, UNKNOWN};
use super::sorter::{RecordSorter, SortedRecords};

/// The activities with a launch, sorted by it; each activity without one is given to `alone`.
///
/// # Errors
/// Records can't be written, or read again.
pub(crate) fn join(
    devices: &SortedRecords<DeviceEvent>,
    launches: &SortedRecords<Launch>,
    directory: &Path,
    mut alone: impl FnMut(DeviceEvent) -> Result<()>,
) -> Result<SortedRecords<DeviceEvent>> {
    let mut joined = RecordSorter::new(directory);
    let mut launches = launches.group(0).peekable();
    // A second iterator runs ahead, to count the activities that share a launch.
    let mut ahead = devices.group(0).peekable();
    let mut counted: Option<(i64, i32)> = None;
    for event in devices.group(0) {
        if event.correlation == UNKNOWN {
            alone(event)?;
            ahead.next();
            continue;
        }
        let sharing = match counted {
            Some((correlation, sharing)) if correlation == event.correlation => sharing,
            _ => {
                let mut sharing = 0_i32;
                while ahead.next_if(|next| next.correlation == event.correlation).is_some() {
                    sharing = sharing.saturating_add(1);
                }
                counted = Some((event.correlation, sharing));
                sharing
            }
        };
        while launches.next_if(|launch| launch.correlation < event.correlation).is_some() {}
        match launches.peek().filter(|launch| launch.correlation == event.correlation) {
            Some(launch) => joined.push(DeviceEvent {
                thread: launch.thread,
                launch: launch.number,
                launch_ts: launch.ts,
                launch_end: launch.end,
                launch_kernels: sharing,
                graph: event.graph | launch.graph,
                ..event
            })?,
            None => alone(event)?,
        }
    }
    joined.finish()
}
