//! Writes a timeline for viewers: Chrome's JSON and Perfetto's protobuf.
//!
//! It knows processes, tracks, slices, flows, counters and instants, and the formats of files. It knows no run, no table, no
//! query and no command: what is drawn comes from above, in order of time, and what is written goes to any [`std::io::Write`].
//! Memory does not grow with the length of a timeline, but with the number of tracks and with how deep their slices nest.

mod chrome;
mod format;
mod lanes;
mod model;
mod perfetto;
#[cfg(test)]
mod tests;
mod timeline;

pub use self::chrome::ChromeWriter;
pub use self::format::TraceFormat;
pub use self::model::{
    Argument, ArgumentValue, Counter, CounterId, Flow, FlowKind, InstantEvent, ProcessId, Slice, TraceProcess, Track,
    TrackId, TrackPoint,
};
pub use self::perfetto::PerfettoWriter;
pub use self::timeline::{Timeline, WrittenCounts};
