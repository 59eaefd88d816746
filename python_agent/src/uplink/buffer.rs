//! Batches that the collector has not acknowledged: in order, bounded in bytes, and sent again on a new connection.

use std::collections::VecDeque;

use prost::Message;

use probe_proto::v1::Batch;

/// Unacknowledged bytes that are kept at most; later batches are dropped and counted.
pub const CAPACITY: usize = 16 << 20;

/// Batches in the order of their numbers. The first `sent` of them are on the current connection already.
#[derive(Debug)]
pub struct SendBuffer {
    batches: VecDeque<(Batch, usize)>,
    bytes: usize,
    capacity: usize,
    sent: usize,
    last_seq: u64,
    last_sent: u64,
}

impl SendBuffer {
    /// An empty buffer that holds `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, capacity, sent: 0, last_seq: 0, last_sent: 0 }
    }

    /// Gives `batch` the next number and keeps it; false where there is no room, and the number is not used.
    pub fn push(&mut self, mut batch: Batch) -> bool {
        batch.seq = self.last_seq + 1;
        let bytes = batch.encoded_len();
        if self.bytes + bytes > self.capacity {
            return false;
        }
        self.last_seq = batch.seq;
        self.bytes += bytes;
        self.batches.push_back((batch, bytes));
        true
    }

    /// The next batch for the current connection. Its payload is shared, not copied.
    pub fn next_unsent(&mut self) -> Option<Batch> {
        let (batch, _) = self.batches.get(self.sent)?;
        self.sent += 1;
        self.last_sent = self.last_sent.max(batch.seq);
        Some(batch.clone())
    }

    /// Whether there is a batch for [`SendBuffer::next_unsent`].
    pub fn has_unsent(&self) -> bool {
        self.sent < self.batches.len()
    }

    /// Drops all batches up to number `seq`, which the collector has stored.
    pub fn acknowledge(&mut self, seq: u64) {
        while self.batches.front().is_some_and(|(batch, _)| batch.seq <= seq) {
            if let Some((_, bytes)) = self.batches.pop_front() {
                self.bytes -= bytes;
                self.sent = self.sent.saturating_sub(1);
            }
        }
    }

    /// Begins a new connection, whose collector has stored all batches up to number `acked`: the others are sent again.
    pub fn restart(&mut self, acked: u64) {
        self.sent = 0;
        self.acknowledge(acked);
    }

    /// Whether everything has been acknowledged.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// All batches, oldest first.
    pub fn batches(&self) -> impl ExactSizeIterator<Item = &Batch> {
        self.batches.iter().map(|(batch, _)| batch)
    }

    /// Unacknowledged bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of the newest batch.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Number of the newest batch that was handed to a connection.
    pub fn last_sent(&self) -> u64 {
        self.last_sent
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use probe_proto::encode::BatchBuilder;
    use probe_proto::table::Time;
    use probe_proto::tables::steps;

    fn row(step: i64) -> steps::Row {
        steps::Row {
            ts: Time(step * 1_000_000),
            duration: step as f64,
            other_time: 0.0,
            samples: (step % 3 != 0).then_some(step),
            ..steps::Row::of_a_second(step)
        }
    }

    fn batch(rows: i64) -> Batch {
        let mut builder = BatchBuilder::new(&steps::TABLE);
        (0..rows).for_each(|step| builder.push(row(step)));
        let mut batch = builder.take();
        batch.recorded = 1_000_000 + rows as u64;
        batch
    }

    #[test]
    fn only_what_is_not_acknowledged_is_sent_again() {
        let mut buffer = SendBuffer::new(CAPACITY);
        (0..4).for_each(|_| assert!(buffer.push(batch(3))));
        assert_eq!((0..3).filter_map(|_| buffer.next_unsent()).map(|b| b.seq).collect::<Vec<_>>(), [1, 2, 3]);
        buffer.acknowledge(1);
        assert_eq!(buffer.next_unsent().map(|b| b.seq), Some(4));
        assert!(!buffer.has_unsent());
        buffer.restart(2);
        assert_eq!(std::iter::from_fn(|| buffer.next_unsent()).map(|b| b.seq).collect::<Vec<_>>(), [3, 4]);
        buffer.acknowledge(4);
        assert!(buffer.is_empty());
        assert_eq!(buffer.bytes(), 0);
        assert!(buffer.push(batch(3)));
        assert_eq!(buffer.next_unsent().map(|b| b.seq), Some(5));
    }

    #[test]
    fn past_its_capacity_it_takes_nothing_and_uses_no_number() {
        let one = batch(100).encoded_len() + 16;
        let mut buffer = SendBuffer::new(one * 2);
        assert!(buffer.push(batch(100)));
        assert!(buffer.push(batch(100)));
        assert!(!buffer.push(batch(100)));
        buffer.acknowledge(1);
        assert!(buffer.push(batch(100)));
        assert_eq!(buffer.last_seq(), 3);
    }
}
