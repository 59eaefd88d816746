//! Records of events with only the fields that every event has.

use crate::records::{DeviceEvent, HostEvent, UNKNOWN};
use crate::text_table::NONE;

/// Fields that all activities of devices have.
pub(crate) struct DeviceActivity {
    pub ts: i64,
    pub end: i64,
    pub device: i64,
    pub stream: i64,
    pub correlation: i64,
}

/// An event of a thread with all other fields unknown.
pub(crate) fn host_event(thread: u32, kind: u8, ts: i64, end: i64, number: i64) -> HostEvent {
    HostEvent {
        thread,
        kind,
        ts,
        end,
        name: NONE,
        number,
        external_id: UNKNOWN,
        id: UNKNOWN,
        shapes: NONE,
        types: NONE,
        call_stack: NONE,
        collective: NONE,
        flops: f64::NAN,
        record_function: UNKNOWN,
        step_group: UNKNOWN,
    }
}

/// An activity of a device with all other fields unknown.
pub(crate) fn device_event(activity: &DeviceActivity, kind: u8) -> DeviceEvent {
    DeviceEvent {
        correlation: activity.correlation,
        kind,
        communication: 0,
        ts: activity.ts,
        end: activity.end,
        name: NONE,
        device: activity.device,
        stream: activity.stream,
        external_id: UNKNOWN,
        grid: NONE,
        block: NONE,
        registers: UNKNOWN,
        shared_memory: UNKNOWN,
        blocks_per_sm: f64::NAN,
        warps_per_sm: f64::NAN,
        occupancy: f64::NAN,
        bytes: UNKNOWN,
        bandwidth: f64::NAN,
        collective: NONE,
        group_name: NONE,
        group_ranks: NONE,
        group_size: UNKNOWN,
        dtype: NONE,
        seq: UNKNOWN,
        elements: UNKNOWN,
        busbw: f64::NAN,
        operator: NONE,
        module: NONE,
        step_group: UNKNOWN,
        flops: f64::NAN,
        bytes_accessed: UNKNOWN,
        thread: NONE,
        launch: UNKNOWN,
        launch_ts: UNKNOWN,
        launch_end: UNKNOWN,
        launch_kernels: 0,
        graph: 0,
    }
}
