//! The source of rows: recording, or in tests something smaller.

use probe_proto::v1::Status;

use super::buffer::SendBuffer;
use crate::recording::{self, analyser_checkpoint};
use probe_trace::recover::{EncodedMessage, UplinkCheckpoint};
use probe_trace::row_buffer::RowBuffer;

/// Something that can be drained.
pub trait RecordSource: Send + 'static {
    /// Puts everything that was recorded since the last call into `sink`.
    fn drain(&mut self, sink: &mut RowBuffer);
    /// Notes that nothing more will be recorded: the next drain takes what is complete of the last step.
    fn finish(&mut self);
    /// Whether it is time to drain.
    fn is_due(&self) -> bool {
        true
    }
    /// Sets whether a collector could read what [`RecordSource::write_checkpoint`] writes. Returns whether it will write.
    fn set_holding(&mut self, on: bool) -> bool {
        let _ = on;
        false
    }
    /// Writes all that has been drained and not stored yet, for the collector to read should this process die. `status` is the
    /// report as it would be now.
    fn write_checkpoint(&mut self, sink: &RowBuffer, buffer: &SendBuffer, status: Status) {
        let _ = (sink, buffer, status);
    }
}

/// The rings of this process.
#[derive(Debug, Default)]
pub struct RingSource {
    /// The tables of Hello, as they were last written.
    tables: Vec<EncodedMessage>,
}

impl RecordSource for RingSource {
    fn drain(&mut self, sink: &mut RowBuffer) {
        recording::drain(sink);
    }
    fn finish(&mut self) {
        recording::flush_open();
    }
    fn is_due(&self) -> bool {
        analyser_checkpoint::is_due()
    }
    fn set_holding(&mut self, on: bool) -> bool {
        analyser_checkpoint::set_holding(on)
    }
    fn write_checkpoint(&mut self, sink: &RowBuffer, buffer: &SendBuffer, status: Status) {
        if self.tables.len() != sink.tables().count() {
            self.tables = sink.tables().map(|table| EncodedMessage::of(&table.wire_schema())).collect();
        }
        analyser_checkpoint::write(sink, |rings| UplinkCheckpoint {
            rings,
            tables: self.tables.clone(),
            last_seq: buffer.last_seq(),
            batches: buffer.batches().map(EncodedMessage::of).collect(),
            status: EncodedMessage::of(&status),
        });
    }
}
