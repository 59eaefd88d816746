//! Everything that is to be sent: rows, strings and drops, what the collector has not acknowledged, and the pace of steps.

use std::sync::atomic::Ordering;
use std::time::Instant;

use probe_proto::table::Text;
use probe_proto::{MAX_STRING_BYTES, MAX_STRINGS};

use crate::recording::exceptions;
use crate::renewable::Renewable;
use crate::shared;
use probe_trace::row_buffer::RowBuffer;
use probe_trace::split_batch::split_batch;

use super::buffer::SendBuffer;
use super::record_source::RecordSource;
use super::status::{StepRate, status_now};

/// Bytes of waiting batches up to which they are written to shared memory even without a collector.
const PUT_DOWN_ALONE: usize = 1 << 20;

/// Everything that is to be sent. It outlives a stop, so that a later start continues with the same numbers and strings.
pub struct Outbox {
    /// Analysed rows, strings and drops.
    pub sink: RowBuffer,
    /// Batches that the collector has not acknowledged.
    pub buffer: SendBuffer,
    /// Steps per second.
    pub pace: StepRate,
    /// Number of strings that accepted batches may use.
    pub strings_ready: usize,
    /// Exceptions that a thread may wait for: how many, and the batch that the last of them is in.
    pub awaited: Option<(u64, u64)>,
    /// Whether the report before Bye has been made.
    pub last_report_sent: bool,
    pub(super) source: Box<dyn RecordSource>,
    string_bytes: usize,
    strings_counted: usize,
    pub(super) drained: bool,
}

impl Outbox {
    /// An empty outbox.
    pub fn new(source: impl RecordSource, capacity: usize) -> Self {
        Self {
            sink: RowBuffer::default(),
            buffer: SendBuffer::new(capacity),
            pace: StepRate::default(),
            strings_ready: 0,
            awaited: None,
            last_report_sent: false,
            source: Box::new(source),
            string_bytes: 0,
            strings_counted: 0,
            drained: false,
        }
    }

    /// Whether the last drain has been made and all of it was acknowledged.
    pub fn is_done(&self) -> bool {
        self.drained && self.buffer.is_empty()
    }

    /// Whether the last drain was made and all batches were sent, so that only acknowledgements are missing.
    pub fn is_waiting(&self) -> bool {
        self.drained && !self.buffer.is_empty() && !self.buffer.has_unsent()
    }

    /// Whether all exceptions that a thread may wait for have been sent, so that only the collector's acknowledgement is missing.
    pub fn wants_word(&self) -> bool {
        self.awaited.is_some() && !self.buffer.has_unsent()
    }

    /// Notes that the collector has stored everything up to `seq`.
    pub fn acknowledge(&mut self, seq: u64) {
        self.buffer.acknowledge(seq);
        if let Some((count, _)) = self.awaited.take_if(|(_, last)| *last <= seq) {
            exceptions::note_stored(count);
        }
    }

    /// Drains recording into batches and puts them into the buffer; rows that do not fit are counted. Everything is written to
    /// shared memory before any of it is sent, so that the collector finds what it has not received should this process die.
    /// Where there has been no collector for a while, this would be much each time and of no use, and is left out.
    pub(super) fn collect(&mut self, connected: bool) {
        let holds = self.source.set_holding(connected || self.buffer.bytes() < PUT_DOWN_ALONE);
        crate::recording::set_buffer_bytes(self.buffer.bytes());
        self.source.drain(&mut self.sink);
        self.pace.add_sample(Instant::now(), shared::STEP.load(Ordering::Relaxed));
        while let Some(text) = self.sink.strings.get(Text(self.strings_counted as u32)) {
            self.string_bytes += text.len();
            self.strings_counted += 1;
        }
        // A connection accepts no more strings than this: rows that use new ones would end it.
        let too_many = self.strings_counted > MAX_STRINGS || self.string_bytes > MAX_STRING_BYTES;
        let names: Vec<&'static str> = self.sink.tables().map(table_name).collect();
        for batch in self.sink.take().into_iter().flat_map(split_batch) {
            let (table, rows) = (names[batch.table as usize], u64::from(batch.rows));
            if too_many {
                self.sink.count_unsent(table, "too many strings", rows);
            } else if self.buffer.push(batch) {
                self.strings_ready = self.strings_counted;
            } else {
                self.sink.count_unsent(table, "send buffer full", rows);
            }
        }
        if exceptions::are_awaited() && self.awaited.is_none() {
            self.awaited = Some((exceptions::drained_count(), self.buffer.last_seq()));
        }
        if holds {
            let status = status_now(&self.pace, self.buffer.last_sent(), &self.sink);
            self.source.write_checkpoint(&self.sink, &self.buffer, status);
        }
    }
}

/// The names that [`table_name`] has allocated.
static NAMES: Renewable<Vec<&'static str>> = Renewable::new(Vec::new);

/// Forgets in a forked child what a thread of the parent may have had half changed.
pub(super) fn begin_anew() {
    NAMES.renew();
}

/// `schema.name` of a table, allocated once for every table of the program.
fn table_name(table: &'static probe_proto::table::Table) -> &'static str {
    let full = table.full_name();
    let mut names = NAMES.lock();
    if let Some(known) = names.iter().find(|name| **name == full) {
        return known;
    }
    let name: &'static str = Box::leak(full.into_boxed_str());
    names.push(name);
    name
}
