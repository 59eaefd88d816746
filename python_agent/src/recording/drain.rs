//! From the rings to the analysis: all threads' records, merged by time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::analyser::ANALYSER;
use super::clock::{self, ticks};
use super::device::{self, NewestEvents, ResolvedEvent};
use super::ring::{LOST, RingReader};
use super::symbolizer::Symbolizer;
use super::{exceptions, overhead, process_flag, shared_memory, slot, spans, tables};
use crate::renewable::Renewable;
use crate::sampling::ProcessSampler;
use probe_trace::row_buffer::RowBuffer;
use probe_trace::{Analyser, METRICS, RING_FULL, RecordTable, SPANS};

/// A record's time is read a little before the record is written. Records younger than this wait for the next drain, so that no
/// record of another thread comes too late.
const YOUNG_NS: u64 = 2_000_000;
/// How long records wait for the device to reach their events; a device that takes longer has stopped, or runs a very long
/// kernel.
const DEVICE_NS: u64 = 10_000_000_000;
/// The clocks are compared over at least this long before ticks are converted to times.
const COMPARED: Duration = Duration::from_millis(5);

/// Whether the clock is chosen and has been compared once.
static PREPARED: AtomicBool = AtomicBool::new(false);
/// Whether the next drain takes everything, because nothing more will be recorded.
static LAST: AtomicBool = AtomicBool::new(false);

static HARVEST: Renewable<NewestEvents> = Renewable::new(NewestEvents::default);
static SAMPLER: Renewable<ProcessSampler> = Renewable::new(ProcessSampler::default);

/// Values of the loss counters that sinks already have.
static COUNTED: Renewable<[u64; RecordTable::ALL.len() + COUNTERS.len()]> =
    Renewable::new(|| [0; RecordTable::ALL.len() + COUNTERS.len()]);

/// Counters of losses outside the rings, with the table that lacks the rows and the reason.
static COUNTERS: [(&AtomicU64, &str, &str); 4] = [
    (&spans::UNNAMED_SPANS, SPANS, "too many names"),
    (&spans::UNNAMED_METRICS, METRICS, "too many names"),
    (&spans::GIVEN_UP, SPANS, "too many open"),
    (&spans::CUT, SPANS, "open when a capture began or ended"),
];

/// Chooses the clock and compares it for the first time.
pub(super) fn prepare() {
    if !PREPARED.swap(true, Ordering::AcqRel) {
        clock::choose();
        shared_memory::begin();
        ANALYSER.lock().compare_clocks(clock::sample());
    }
}

/// Begins anew in a forked child that becomes an agent: what waits to be drained, and the counts of losses, are the parent's.
pub(super) fn begin_anew() {
    ANALYSER.renew();
    HARVEST.renew();
    SAMPLER.renew();
    COUNTED.renew();
    LAST.store(false, Ordering::Release);
    let mut discarded = RowBuffer::default();
    tables::drain(&mut discarded);
    counters().for_each(|(counter, _, _)| counter.store(0, Ordering::Relaxed));
}

/// All counters of losses, always in the same order.
fn counters() -> impl Iterator<Item = (&'static AtomicU64, &'static str, &'static str)> {
    RecordTable::ALL.into_iter().map(|table| (LOST.counter(table), table.name(), RING_FULL)).chain(COUNTERS)
}

/// Makes rows of everything in the rings. For the background thread: takes no GIL.
pub fn drain(sink: &mut RowBuffer) {
    drain_now(sink, LAST.swap(false, Ordering::AcqRel));
}

/// Makes rows of the records in the rings; with `last` also of the youngest.
pub(super) fn drain_now(sink: &mut RowBuffer, last: bool) {
    if !PREPARED.load(Ordering::Acquire) || process_flag::is_child() {
        return;
    }
    let mut analyser = ANALYSER.lock();
    let mut sample = clock::sample();
    if analyser.is_new_at(sample) {
        std::thread::sleep(COMPARED);
        sample = clock::sample();
    }
    analyser.compare_clocks(sample);
    let young = if last { 0 } else { analyser.ticks(YOUNG_NS) };
    let now = ticks();
    let patience = if last { 0 } else { analyser.ticks(DEVICE_NS) };
    let (until, given_up) = (now.saturating_sub(young), now.saturating_sub(patience));
    let readers = RingReader::all();
    device::prepare();
    let until = device::relaxed(|| merge(&mut analyser, &readers, until, given_up, sink));
    for (number, reader) in readers.iter().enumerate() {
        if reader.is_over() {
            analyser.end_thread(number);
            reader.recycle();
        }
    }
    analyser.end_drain(until, last, sink);
    overhead::add_row_if_due(&mut analyser, sample, last, sink);
    if last {
        sink.release();
    }
    count_losses(sink);
    let batches = analyser.batch_shapes();
    drop(analyser);
    slot::watch();
    tables::drain(sink);
    exceptions::drain(sink);
    SAMPLER.lock().sample(&batches, last, sink);
}

/// A ring being read.
struct RingCursor {
    number: usize,
    position: u64,
    end: u64,
    next: u64,
}

/// Analyses records up to time `until`, or up to the first one that waits for a device. A record older than `given_up` does not
/// wait. Returns the time up to which all records are analysed.
fn merge(
    analyser: &mut Analyser<Symbolizer>,
    readers: &[RingReader],
    until: u64,
    given_up: u64,
    sink: &mut RowBuffer,
) -> u64 {
    let mut harvest = HARVEST.lock();
    let mut cursors = Vec::new();
    for (number, reader) in readers.iter().enumerate() {
        let waiting = reader.waiting();
        analyser.name_thread(number, reader.thread());
        analyser.know_torch_thread(number, reader.torch_thread());
        if !waiting.is_empty() {
            cursors.push(RingCursor {
                number,
                position: waiting.start,
                end: waiting.end,
                next: reader.get(waiting.start).ts,
            });
        }
    }
    // Takes records from the ring with the oldest one until another ring has an older one, and so on.
    loop {
        cursors.retain(|cursor| cursor.position < cursor.end);
        let Some(oldest) = (0..cursors.len()).min_by_key(|index| cursors[*index].next) else { return until };
        let others = cursors.iter().enumerate().filter(|(index, _)| *index != oldest);
        let bound = others.map(|(_, cursor)| cursor.next).min().unwrap_or(u64::MAX);
        let cursor = &mut cursors[oldest];
        if cursor.next > until {
            return until;
        }
        let reader = &readers[cursor.number];
        while cursor.position < cursor.end && cursor.next <= until && cursor.next <= bound {
            let (mark, record) = reader.get(cursor.position).unmarked();
            let device = match harvest.resolve(mark, record.ts <= given_up) {
                ResolvedEvent::As(device) => device,
                ResolvedEvent::NotYet => {
                    reader.advance(cursor.position);
                    return record.ts.saturating_sub(1);
                }
            };
            analyser.feed(cursor.number, record, device, sink);
            cursor.position += 1;
            if cursor.position < cursor.end {
                cursor.next = reader.get(cursor.position).ts;
            }
            if cursor.position % 1024 == 0 {
                reader.advance(cursor.position);
            }
        }
        reader.advance(cursor.position);
    }
}

fn count_losses(sink: &mut RowBuffer) {
    let mut counted = COUNTED.lock();
    for ((counter, table, why), counted) in counters().zip(counted.iter_mut()) {
        let now = counter.load(Ordering::Relaxed);
        if now > *counted {
            sink.dropped(table, why, now - *counted);
            *counted = now;
        }
    }
}

/// Makes the next [`drain`] the last one, because training is over: it takes everything, and what is still open gets its row as
/// it is.
pub fn flush_open() {
    LAST.store(true, Ordering::Release);
}
