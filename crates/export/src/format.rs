//! What a file format has to be able to write.

use std::io::Result;

use super::model::{Counter, CounterId, Instant, Process, ProcessId, Slice, Track, TrackId};

/// A file in one format. Slices come properly nested on each track: [`TraceFormat::end`] ends the one that began last.
pub trait TraceFormat {
    /// A process.
    ///
    /// # Errors
    /// Of what is written to; likewise below.
    fn process(&mut self, id: ProcessId, process: &Process) -> Result<()>;
    /// A track; `lane` counts the lanes of one that has several, from 0.
    fn track(&mut self, id: TrackId, track: &Track, lane: usize) -> Result<()>;
    /// A counter.
    fn counter(&mut self, id: CounterId, counter: &Counter) -> Result<()>;
    /// A slice of a track.
    fn begin(&mut self, slice: &Slice<'_>, process: ProcessId) -> Result<()>;
    /// Where the innermost open slice of a track ends.
    fn end(&mut self, track: TrackId, ts: i64) -> Result<()>;
    /// Something that happened.
    fn instant(&mut self, instant: &Instant<'_>, process: ProcessId) -> Result<()>;
    /// What a counter is from `ts` on.
    fn count(&mut self, id: CounterId, counter: &Counter, ts: i64, value: f64) -> Result<()>;
    /// The end of the file.
    fn finish(&mut self) -> Result<()>;
}
