//! What is fuzzed: everything that strangers' bytes reach before anybody has judged them. `tests/it/fuzz.rs` runs these on
//! stable Rust, `cargo fuzz` with coverage (`fuzz_targets/`). They panic where something is not as it should be.

mod endpoint;
mod flight_recorder;
mod frame;
mod memory_snapshot;
mod page;
mod planes;
mod sql;
mod trace;

pub use endpoint::endpoint;
pub use flight_recorder::flight_recorder;
pub use frame::frame;
pub use memory_snapshot::memory_snapshot;
pub use page::page;
pub use planes::planes;
pub use sql::sql;
pub use trace::trace;
