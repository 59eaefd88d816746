//! The analysis: turns records of the rings into rows of the tables. The agent does so on its own thread, and the collector
//! for a process that is gone.
//!
//! [`Analyser::feed`] takes records one by one, each thread's in order and the threads merged by time. Each thread has a
//! stack of what is open on it ([`thread`]); the time between two records goes to the top of the stack, so that it is
//! counted once and own times add up. Records may be missing or make no sense; the analysis does not panic over that.
//!
//! The lowest modules have what is open ([`frame`], [`calls`], [`thread`]) and the other state between two drains
//! ([`analyser`]). Each module above them adds methods to [`Analyser`] for one kind of record, and [`feed`] on top of them
//! gives each record to its module.
//!
//! The crate knows records and the tables that they become rows of. It knows no Python, no torch, no collector, and no clock but
//! that of the records.

mod analyser;
mod backward;
mod batch_shapes;
mod call_memory;
mod calls;
mod checkpoints;
pub mod clock;
mod collective_row;
mod collectives;
pub mod custom;
mod data;
mod device;
mod device_step;
mod device_time;
mod drops;
mod feed;
mod forward;
mod frame;
mod kind;
mod memory;
mod memory_sample;
mod meter;
mod module_memory;
mod modules;
pub mod open;
mod operator_counts;
mod operators;
mod pauses;
pub mod payload;
mod pending_collectives;
pub mod persist;
mod processor;
pub mod record;
pub mod recover;
mod root_samples;
pub mod row_buffer;
mod section;
mod settling;
pub mod shared_layout;
mod spans;
pub mod split_batch;
mod state;
mod step_parts;
mod steps;
pub mod symbol_lookup;
pub mod symbol_table;
mod tensor_read;
#[cfg(test)]
mod tests;
mod thread;
mod validation;

pub use analyser::Analyser;
pub use batch_shapes::BatchShapes;
pub use device::DeviceTimestamp;
pub use drops::RING_FULL;
pub use kind::{
    CHECKPOINTS, COPIES, DATA_TRACE, MEMORY, METRICS, NCCL_TRACE, OPERATOR_COUNTS, PAUSES, RecordTable, SPANS, STEPS,
    SYNC_POINTS, TORCH_TRACE,
};
pub use meter::StepEvents;
pub use step_parts::RecordedPart;
pub use steps::StepEnd;
