//! The source of rows: recording, or in tests something smaller.

use probe_proto::v1::Status;

use super::buffer::SendBuffer;
use crate::recording::{self, analyser_checkpoint};
use probe_trace::recover::{Encoded, Outgoing};
use probe_trace::row_buffer::RowBuffer;

/// Something that can be drained.
pub trait Source: Send + 'static {
    /// Puts everything that was recorded since the last call into `sink`.
    fn drain(&mut self, sink: &mut RowBuffer);
    /// Notes that nothing more will be recorded: the next drain takes what is complete of the last step.
    fn finish(&mut self);
    /// Whether it is time to drain.
    fn is_due(&self) -> bool {
        true
    }
    /// Sets whether a collector could read what [`Source::keep`] writes. Returns whether it will write.
    fn hold(&mut self, on: bool) -> bool {
        let _ = on;
        false
    }
    /// Writes all that has been drained and not stored yet, for the collector to read should this process die. `status` is the
    /// report as it would be now.
    fn keep(&mut self, sink: &RowBuffer, buffer: &SendBuffer, status: Status) {
        let _ = (sink, buffer, status);
    }
}

/// The rings of this process.
#[derive(Debug, Default)]
pub struct Recording {
    /// The tables of Hello, as they were last written.
    tables: Vec<Encoded>,
}

impl Source for Recording {
    fn drain(&mut self, sink: &mut RowBuffer) {
        recording::drain(sink);
    }
    fn finish(&mut self) {
        recording::flush_open();
    }
    fn is_due(&self) -> bool {
        analyser_checkpoint::is_due()
    }
    fn hold(&mut self, on: bool) -> bool {
        analyser_checkpoint::hold(on)
    }
    fn keep(&mut self, sink: &RowBuffer, buffer: &SendBuffer, status: Status) {
        if self.tables.len() != sink.tables().count() {
            self.tables = sink.tables().map(|table| Encoded::of(&table.wire_schema())).collect();
        }
        analyser_checkpoint::write(sink, |rings| Outgoing {
            rings,
            tables: self.tables.clone(),
            last_seq: buffer.last_seq(),
            batches: buffer.batches().map(Encoded::of).collect(),
            status: Encoded::of(&status),
        });
    }
}
