//! Recovers what a process that is gone had recorded and not sent, from the [`shared_layout`](crate::shared_layout) that it left.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use probe_proto::encode::StringTable;
use probe_proto::v1::{Batch, Drop, Status, TableSchema};
use prost::Message;

use super::analyser::Analyser;
use super::device::DeviceTimestamp;
use super::open::OpenFrame;
use super::persist::{Persist, PersistedBytes, persist};
use super::record::RingRecord;
use super::row_buffer::{RowBuffer, RowCounts};
use super::shared_layout::{CAPACITY, CheckpointReader, CheckpointSlot, MAX_RINGS};
use super::split_batch::split_batch;
use super::symbol_table::KnownNames;

#[cfg(test)]
mod tests;

/// The largest number of threads that a process may have had at a time.
const MAX_THREADS: usize = 1 << 14;

/// How far a ring had been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingPosition {
    /// Number of the ring in the mapping; None for one that is not shared.
    pub ring: Option<u64>,
    /// Number of records that were taken out of the ring so far.
    pub taken: u64,
    /// Operating-system id of the ring's thread.
    pub thread: i64,
}

persist!(RingPosition { ring, taken, thread });

/// The state of an agent besides analyser and sink.
#[derive(Debug)]
pub struct UplinkCheckpoint {
    /// The rings, in the order of the analyser's numbers of threads.
    pub rings: Vec<RingPosition>,
    /// The tables in Hello.
    pub tables: Vec<EncodedMessage>,
    /// Number of the newest batch.
    pub last_seq: u64,
    /// Batches that are not acknowledged, oldest first.
    pub batches: Vec<EncodedMessage>,
    /// The report that the agent would send now.
    pub status: EncodedMessage,
}

persist!(UplinkCheckpoint { rings, tables, last_seq, batches, status });

/// A message, encoded.
#[derive(Debug, Clone)]
pub struct EncodedMessage(Bytes);

impl EncodedMessage {
    /// Encodes a message.
    pub fn of(message: &impl Message) -> Self {
        Self(message.encode_to_vec().into())
    }
}

impl Persist for EncodedMessage {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.len().put(to);
        to.extend_from_slice(&self.0);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        let length = from.length()?;
        from.take(length).map(|bytes| Self(Bytes::copy_from_slice(bytes)))
    }
}

/// All that was recovered, ready to be stored as if the process itself had sent it.
#[derive(Debug)]
pub struct RecoveredRows {
    /// Tables of the batches.
    pub tables: Vec<TableSchema>,
    /// Strings of the batches.
    pub strings: StringTable,
    /// The batches with their numbers, oldest first. The first ones may have been stored already.
    pub batches: Vec<Batch>,
    /// The last report.
    pub status: Status,
    /// What was open on each thread.
    pub open: Vec<OpenFrame>,
    /// Number of records that had not become rows yet.
    pub records: u64,
    /// Number of records that could not be read.
    pub unread: u64,
}

/// Writes all that [`recover`] needs except the names.
pub fn write_state<N: super::symbol_lookup::SymbolLookup>(
    analyser: &Analyser<N>,
    sink: &RowBuffer,
    outgoing: &UplinkCheckpoint,
    to: &mut Vec<u8>,
) {
    analyser.put(to);
    sink.put(to);
    outgoing.put(to);
}

/// Recovers what a process left in `file`. That may take a second where there is much, and memory several times its size.
///
/// # Errors
/// Why nothing could be read, in words that end a sentence about the rings ("they were …").
pub fn recover(file: &File) -> Result<RecoveredRows, String> {
    // Randomly overwritten state may make the analysis panic, as no state of a process does.
    catch_unwind(AssertUnwindSafe(|| read(file))).unwrap_or_else(|_| Err("what they say makes no sense".to_owned()))
}

fn read(file: &File) -> Result<RecoveredRows, String> {
    let reader = CheckpointReader::open(file)?;
    let state = reader.part(CheckpointSlot::State).ok_or("nothing whole was put down beside them")?;
    let names = reader.part(CheckpointSlot::Names).and_then(|names| KnownNames::get(&mut PersistedBytes::new(&names)));
    let mut names = names.unwrap_or_default();
    for entry in reader.log() {
        // Entries that make no sense are ignored: their names are not known.
        let _ = names.learn(&entry);
    }
    let understood = |mut from: PersistedBytes<'_>| {
        let analyser = Analyser::restore(names, &mut from)?;
        Some((analyser, RowBuffer::restore(&mut from)?, UplinkCheckpoint::get(&mut from)?))
    };
    let (mut analyser, (mut sink, counted), outgoing) =
        understood(PersistedBytes::new(&state)).ok_or("what was put down beside them makes no sense")?;
    let senseless = "what was put down beside them makes no sense";
    if outgoing.rings.len() > MAX_THREADS {
        return Err(senseless.to_owned());
    }
    let status = Status::decode(outgoing.status.0).map_err(|_| senseless)?;
    let tables: Result<Vec<_>, _> = outgoing.tables.iter().map(|table| TableSchema::decode(table.0.clone())).collect();
    let batches: Result<Vec<_>, _> = outgoing.batches.iter().map(|batch| Batch::decode(batch.0.clone())).collect();
    let (tables, mut batches) = (tables.map_err(|_| senseless)?, batches.map_err(|_| senseless)?);

    let (waiting, unread) = waiting(&reader, &outgoing.rings);
    for (number, waiting) in waiting.iter().enumerate() {
        analyser.name_thread(number, waiting.thread);
    }
    let records = waiting.iter().map(|waiting| waiting.records.len() as u64).sum();
    feed(&mut analyser, &waiting, &mut sink);
    let open = analyser.open(&sink.strings);
    analyser.give_up(&mut sink);
    let mut seq = outgoing.last_seq;
    for mut batch in sink.take().into_iter().flat_map(split_batch) {
        seq += 1;
        batch.seq = seq;
        batches.push(batch);
    }
    let status = report(status, &analyser, &sink, counted, seq);
    Ok(RecoveredRows { tables, strings: sink.strings, batches, status, open, records, unread })
}

/// Records of a ring that had not been taken out.
struct WaitingRecords {
    thread: i64,
    records: Vec<RingRecord>,
}

/// The records of all rings, in the order of the analyser's numbers of threads, and the number of records that can't be read.
fn waiting(reader: &CheckpointReader<'_>, rings: &[RingPosition]) -> (Vec<WaitingRecords>, u64) {
    let mut unread = 0;
    let mut unread_of = |ring: usize, taken: u64, (head, thread): (u64, i64)| {
        let records = reader.records(ring, taken..head);
        let count = records.len() as u64;
        let readable: Vec<RingRecord> = records.into_iter().filter(|record| record.kind().is_some()).collect();
        // An impossible head does not show how many records there were; a full ring has the most.
        unread += head.checked_sub(taken).map_or(CAPACITY as u64, |waiting| waiting.min(CAPACITY as u64)).max(count);
        unread -= readable.len() as u64;
        WaitingRecords { thread, records: readable }
    };
    let mut all: Vec<WaitingRecords> = rings
        .iter()
        .map(|position| {
            let ring = position.ring.and_then(|ring| usize::try_from(ring).ok()).filter(|ring| *ring < MAX_RINGS);
            match ring.and_then(|ring| Some((ring, reader.ring(ring)?))) {
                Some((ring, page)) => unread_of(ring, position.taken, page),
                None => WaitingRecords { thread: position.thread, records: Vec::new() },
            }
        })
        .collect();
    // Rings of threads that began after the state was written.
    let is_known = |ring: usize| rings.iter().any(|position| position.ring == Some(ring as u64));
    for ring in (0..MAX_RINGS).filter(|ring| !is_known(*ring)) {
        if let Some(page) = reader.ring(ring) {
            all.push(unread_of(ring, 0, page));
        }
    }
    (all, unread)
}

/// Feeds all records, each ring's in order and the rings merged by time.
fn feed(analyser: &mut Analyser<KnownNames>, waiting: &[WaitingRecords], sink: &mut RowBuffer) {
    let mut next = vec![0; waiting.len()];
    let oldest = |next: &[usize]| {
        let at = |ring: usize| waiting[ring].records.get(next[ring]).map(|record| (record.ts, ring));
        (0..waiting.len()).filter_map(at).min()
    };
    while let Some((_, ring)) = oldest(&next) {
        let (mark, record) = waiting[ring].records[next[ring]].unmarked();
        next[ring] += 1;
        // When a device reached the record is not known: only the process could have asked the device.
        let device = if mark == 0 { DeviceTimestamp::None } else { DeviceTimestamp::Unknown };
        analyser.feed(ring, record, device, sink);
    }
}

/// The report that the process would have sent now.
fn report(
    mut status: Status,
    analyser: &Analyser<KnownNames>,
    sink: &RowBuffer,
    counted: RowCounts,
    seq: u64,
) -> Status {
    status.step = status.step.max(analyser.step());
    status.last_seq = seq;
    status.groups.clone_from(&sink.groups);
    status.last_record_ns = status.last_record_ns.max(sink.last_record_ns);
    let mut dropped: std::collections::BTreeMap<(String, String), u64> = counted.dropped.into_iter().collect();
    for ((table, reason), rows) in &sink.drops {
        *dropped.entry(((*table).to_owned(), (*reason).to_owned())).or_default() += rows;
    }
    status.drops = dropped.into_iter().map(|((table, reason), rows)| Drop { table, reason, rows }).collect();
    status.recorded = counted.recorded.into_iter().chain(sink.recorded()).collect();
    status
}
