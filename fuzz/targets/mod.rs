//! Targets of fuzzing: all code that untrusted bytes reach before they are checked. `tests/it/fuzz.rs` runs the targets on
//! stable Rust, `cargo fuzz` with coverage (`fuzz_targets/`). A target panics where a result is wrong.

mod endpoint;
mod execution_trace;
mod flight_recorder;
mod frame;
mod memory_snapshot;
mod nccl_inspector;
mod nsight_systems;
mod page;
mod planes;
mod sql;
mod trace;

pub use endpoint::endpoint;
pub use execution_trace::execution_trace;
pub use flight_recorder::flight_recorder;
pub use frame::frame;
pub use memory_snapshot::memory_snapshot;
pub use nccl_inspector::nccl_inspector;
pub use nsight_systems::nsight_systems;
pub use page::page;
pub use planes::planes;
pub use sql::sql;
pub use trace::trace;
