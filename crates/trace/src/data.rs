//! Batches, from the request for each to its arrival.

use probe_proto::table::Time;
use probe_proto::tables::data_trace;

use super::analyser::Analyser;
use super::clock::seconds;
use super::drops::INCOMPLETE;
use super::frame::ThreadFrame;
use super::kind::TORCH_TRACE;
use super::symbol_lookup::SymbolLookup;
use crate::payload::{HANDED, LOADER, OUTSTANDING, PERSISTENT, PINNED, PREFETCH, WORKERS};
use crate::record::RingRecord;
use crate::row_buffer::RowBuffer;

/// The bits of the iterator's address in the second word.
const ITERATOR: u64 = (1 << OUTSTANDING) - 1;

impl<N: SymbolLookup> Analyser<N> {
    pub(super) fn data_begin(&mut self, number: usize, record: RingRecord, sink: &RowBuffer) {
        self.section_asks(number, record.b & ITERATOR, record.ts, sink);
        let frame = ThreadFrame::Data {
            begin: record.ts,
            step: self.step,
            class: record.payload(),
            ready: record.a,
            outstanding: record.b >> OUTSTANDING,
            loaded: None,
            padding: None,
        };
        self.threads[number].push(frame);
    }

    /// Which worker loaded the innermost batch that was asked for.
    pub(super) fn data_loaded(&mut self, number: usize, record: RingRecord) {
        if let Some(ThreadFrame::Data { loaded, .. }) = self.asked_batch(number) {
            *loaded = Some((record.a, record.b));
        }
    }

    /// How much of the innermost batch that was asked for is padding.
    pub(super) fn data_padding(&mut self, number: usize, record: RingRecord) {
        if let Some(ThreadFrame::Data { padding, .. }) = self.asked_batch(number) {
            *padding = Some(record.a);
        }
    }

    fn asked_batch(&mut self, number: usize) -> Option<&mut ThreadFrame> {
        self.threads[number].frames.iter_mut().rev().find(|frame| matches!(frame, ThreadFrame::Data { .. }))
    }

    pub(super) fn data_end(&mut self, number: usize, record: RingRecord, sink: &mut RowBuffer) {
        let thread = &mut self.threads[number];
        let taken = thread.take_frame(|frame| matches!(frame, ThreadFrame::Data { .. }));
        let Some((ThreadFrame::Data { begin, step, class, ready, outstanding, loaded, padding }, missing)) = taken
        else {
            return;
        };
        if missing > 0 {
            sink.dropped(TORCH_TRACE, INCOMPLETE, missing);
        }
        let payload = record.payload();
        // At the end of an epoch, or after an exception, no batch was handed over.
        if payload & HANDED == 0 {
            return self.section_ran_out(number, record.ts);
        }
        let Some(clock) = &self.clock else { return };
        let half = |word: u64| u32::try_from(word & 0xffff_ffff).ok().filter(|half| *half != u32::MAX).map(i64::from);
        let count = |word: u64| i32::try_from(word).ok();
        let is_known = outstanding != u64::MAX >> OUTSTANDING;
        if half(record.b).is_none_or(|index| index == 0) {
            thread.begins_or_ends_iterator();
        }
        let samples = half(record.b >> 32);
        // A loader that another one reads from hands over the same samples.
        if let Some(samples) = samples
            && !thread.frames.iter().any(|frame| matches!(frame, ThreadFrame::Data { .. }))
        {
            let sum = thread.parts.batch_samples.get_or_insert(0);
            *sum = sum.saturating_add(samples);
        }
        let is_loader = payload & LOADER != 0;
        let workers = (payload >> WORKERS & 0xffff) as i32;
        let ahead = (payload >> PREFETCH & 0xffff) as i32;
        let dataset = self.names.class(class).map(|class| sink.strings.id(&class));
        sink.push(data_trace::Row {
            step,
            batch_index: half(record.b),
            dataset,
            ts: Time(clock.unix_ns(begin)),
            wait: seconds(record.ts.saturating_sub(begin)),
            num_workers: is_loader.then_some(workers),
            queue_depth: count(ready),
            tasks_outstanding: count(outstanding).filter(|_| is_known),
            prefetch_factor: (ahead > 0).then_some(ahead),
            worker: loaded.and_then(|(worker, _)| count(worker)),
            fetch_time: loaded.filter(|(_, fetch)| *fetch != u64::MAX).map(|(_, fetch)| fetch as f64 * 1e-9),
            samples,
            bytes: i64::try_from(record.a).ok(),
            padding: padding.map(f64::from_bits),
            pinned: is_loader.then_some(payload & PINNED != 0),
            persistent_workers: is_loader.then_some(payload & PERSISTENT != 0),
            thread: self.threads[number].id,
        });
    }
}
