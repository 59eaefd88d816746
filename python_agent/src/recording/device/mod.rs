//! When a GPU reached a point: CUDA events that training's threads record on the current stream beside their own
//! records, and that the background thread reads when they have occurred. No thread ever waits for a device.
//!
//! A record names its event in the upper 16 bits of its second word ([`RingRecord::marked`](super::record::RingRecord::marked)).
//! No event is recorded on a stream that is being captured into a graph, and none at all on ROCm, which has no libcuda. Nothing
//! here makes a process use CUDA: until the program has initialised it, everything is off.

mod cost;
mod driver;
mod harvest;
mod marks;
mod pool;

pub(super) use harvest::{NewestEvents, ResolvedEvent};
pub(super) use marks::{begin_anew, cost, is_event, mark, mark_if, prepare, register, relaxed, take_back};
