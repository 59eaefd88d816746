//! What a process that is gone had recorded and not sent: taken out of the [`mapping`](crate::mapping) that it left.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use probe_proto::encode::StringTable;
use probe_proto::v1::{Batch, Drop, Status, TableSchema};
use prost::Message;

use super::analyser::Analyser;
use super::cut::cut;
use super::device::Device;
use super::keep::{Keep, Kept, keep};
use super::known::KnownNames;
use super::mapping::{CAPACITY, MAX_RINGS, Part, Reader};
use super::open::Open;
use super::record::Record;
use super::sink::{Counted, Sink};

#[cfg(test)]
mod tests;

/// Threads that a process may have had at a time.
const MAX_THREADS: usize = 1 << 14;

/// How far a ring had been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its place in the mapping; None for one that is not shared.
    pub ring: Option<u64>,
    /// Records taken out of it so far.
    pub taken: u64,
    /// Operating-system id of its thread.
    pub thread: i64,
}

keep!(Place { ring, taken, thread });

/// What is beside analyser and sink.
#[derive(Debug)]
pub struct Outgoing {
    /// The rings, in the order of the analyser's numbers of threads.
    pub rings: Vec<Place>,
    /// What Hello says of tables.
    pub tables: Vec<Encoded>,
    /// Number of the newest batch.
    pub last_seq: u64,
    /// Batches that are not acknowledged, oldest first.
    pub batches: Vec<Encoded>,
    /// The report as it would be now.
    pub status: Encoded,
}

keep!(Outgoing { rings, tables, last_seq, batches, status });

/// A message, encoded.
#[derive(Debug, Clone)]
pub struct Encoded(Bytes);

impl Encoded {
    /// Of a message.
    pub fn of(message: &impl Message) -> Self {
        Self(message.encode_to_vec().into())
    }
}

impl Keep for Encoded {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.len().put(to);
        to.extend_from_slice(&self.0);
    }
    fn get(from: &mut Kept<'_>) -> Option<Self> {
        let length = from.length()?;
        from.take(length).map(|bytes| Self(Bytes::copy_from_slice(bytes)))
    }
}

/// All of it, ready to be stored as if the process itself had sent it.
#[derive(Debug)]
pub struct Recovered {
    /// Tables of the batches.
    pub tables: Vec<TableSchema>,
    /// Strings of the batches.
    pub strings: StringTable,
    /// Numbered, oldest first. The first ones may have been stored already.
    pub batches: Vec<Batch>,
    /// The last report.
    pub status: Status,
    /// Where it was.
    pub open: Vec<Open>,
    /// Records that had not been made rows of.
    pub records: u64,
    /// Records that could not be read.
    pub unread: u64,
}

/// Puts down all that [`recover`] needs but the names.
pub fn put<N: super::names::Names>(analyser: &Analyser<N>, sink: &Sink, outgoing: &Outgoing, to: &mut Vec<u8>) {
    analyser.put(to);
    sink.put(to);
    outgoing.put(to);
}

/// Takes out what is there. It may take a second where there is much, and memory several times its size.
///
/// # Errors
/// Why nothing could be read, in words that end a sentence about the rings ("they were …").
pub fn recover(file: &File) -> Result<Recovered, String> {
    // What was overwritten at random may bring the analysis to where no process brings it.
    catch_unwind(AssertUnwindSafe(|| read(file))).unwrap_or_else(|_| Err("what they say makes no sense".to_owned()))
}

fn read(file: &File) -> Result<Recovered, String> {
    let reader = Reader::open(file)?;
    let state = reader.part(Part::State).ok_or("nothing whole was put down beside them")?;
    let names = reader.part(Part::Names).and_then(|names| KnownNames::get(&mut Kept::new(&names)));
    let mut names = names.unwrap_or_default();
    for entry in reader.log() {
        // What can't be understood is not known.
        let _ = names.learn(&entry);
    }
    let understood = |mut kept: Kept<'_>| {
        let analyser = Analyser::restore(names, &mut kept)?;
        Some((analyser, Sink::restore(&mut kept)?, Outgoing::get(&mut kept)?))
    };
    let (mut analyser, (mut sink, counted), outgoing) =
        understood(Kept::new(&state)).ok_or("what was put down beside them makes no sense")?;
    let known = "what was put down beside them makes no sense";
    if outgoing.rings.len() > MAX_THREADS {
        return Err(known.to_owned());
    }
    let status = Status::decode(outgoing.status.0).map_err(|_| known)?;
    let tables: Result<Vec<_>, _> = outgoing.tables.iter().map(|table| TableSchema::decode(table.0.clone())).collect();
    let batches: Result<Vec<_>, _> = outgoing.batches.iter().map(|batch| Batch::decode(batch.0.clone())).collect();
    let (tables, mut batches) = (tables.map_err(|_| known)?, batches.map_err(|_| known)?);

    let (waiting, unread) = waiting(&reader, &outgoing.rings);
    for (number, waiting) in waiting.iter().enumerate() {
        analyser.name_thread(number, waiting.thread);
    }
    let records = waiting.iter().map(|waiting| waiting.records.len() as u64).sum();
    feed(&mut analyser, &waiting, &mut sink);
    let open = analyser.open(&sink.strings);
    analyser.give_up(&mut sink);
    let mut seq = outgoing.last_seq;
    for mut batch in sink.take().into_iter().flat_map(cut) {
        seq += 1;
        batch.seq = seq;
        batches.push(batch);
    }
    let status = report(status, &analyser, &sink, counted, seq);
    Ok(Recovered { tables, strings: sink.strings, batches, status, open, records, unread })
}

/// Records of a ring that were not read yet.
struct Waiting {
    thread: i64,
    records: Vec<Record>,
}

/// Those of all rings, in the order of the analyser's numbers; and how many can't be read.
fn waiting(reader: &Reader<'_>, rings: &[Place]) -> (Vec<Waiting>, u64) {
    let mut unread = 0;
    let mut of = |ring: usize, taken: u64, (head, thread): (u64, i64)| {
        let records = reader.records(ring, taken..head);
        let count = records.len() as u64;
        let readable: Vec<Record> = records.into_iter().filter(|record| record.kind().is_some()).collect();
        // A head that can't be says nothing of how many there were; a full ring is the most.
        unread += head.checked_sub(taken).map_or(CAPACITY as u64, |waiting| waiting.min(CAPACITY as u64)).max(count);
        unread -= readable.len() as u64;
        Waiting { thread, records: readable }
    };
    let mut found: Vec<Waiting> = rings
        .iter()
        .map(|place| {
            let ring = place.ring.and_then(|ring| usize::try_from(ring).ok()).filter(|ring| *ring < MAX_RINGS);
            match ring.and_then(|ring| Some((ring, reader.ring(ring)?))) {
                Some((ring, page)) => of(ring, place.taken, page),
                None => Waiting { thread: place.thread, records: Vec::new() },
            }
        })
        .collect();
    // Rings of threads that began after that was put down.
    let is_known = |ring: usize| rings.iter().any(|place| place.ring == Some(ring as u64));
    for ring in (0..MAX_RINGS).filter(|ring| !is_known(*ring)) {
        if let Some(page) = reader.ring(ring) {
            found.push(of(ring, 0, page));
        }
    }
    (found, unread)
}

/// All records, each ring's in order and the rings merged by time.
fn feed(analyser: &mut Analyser<KnownNames>, waiting: &[Waiting], sink: &mut Sink) {
    let mut next = vec![0; waiting.len()];
    let oldest = |next: &[usize]| {
        let at = |ring: usize| waiting[ring].records.get(next[ring]).map(|record| (record.ts, ring));
        (0..waiting.len()).filter_map(at).min()
    };
    while let Some((_, ring)) = oldest(&next) {
        let (mark, record) = waiting[ring].records[next[ring]].unmarked();
        next[ring] += 1;
        // When the device came to it, only the process could have asked.
        let device = if mark == 0 { Device::None } else { Device::Unknown };
        analyser.feed(ring, record, device, sink);
    }
}

/// The report that the process would have made now.
fn report(mut status: Status, analyser: &Analyser<KnownNames>, sink: &Sink, counted: Counted, seq: u64) -> Status {
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
