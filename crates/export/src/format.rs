//! The interface of a file format.

use std::io::Result;

use super::model::{Counter, CounterId, InstantEvent, ProcessId, Slice, TraceProcess, Track, TrackId};

/// A file in one format. Slices come properly nested on each track: [`TraceFormat::end`] ends the one that began last.
pub trait TraceFormat {
    /// Adds a process.
    ///
    /// # Errors
    /// Those of the output; likewise for the other methods.
    fn process(&mut self, id: ProcessId, process: &TraceProcess) -> Result<()>;
    /// Adds a track; `lane` counts the lanes of a track that has several, from 0.
    fn track(&mut self, id: TrackId, track: &Track, lane: usize) -> Result<()>;
    /// Adds a counter.
    fn counter(&mut self, id: CounterId, counter: &Counter) -> Result<()>;
    /// Begins a slice of a track.
    fn begin(&mut self, slice: &Slice<'_>, process: ProcessId) -> Result<()>;
    /// Ends the innermost open slice of a track.
    fn end(&mut self, track: TrackId, ts: i64) -> Result<()>;
    /// Writes an instant.
    fn instant(&mut self, instant: &InstantEvent<'_>, process: ProcessId) -> Result<()>;
    /// Writes the value of a counter from `ts` on.
    fn count(&mut self, id: CounterId, counter: &Counter, ts: i64, value: f64) -> Result<()>;
    /// Ends the file.
    fn finish(&mut self) -> Result<()>;
}
