//! Rows of the memory that allocators of devices report at the end of a step.

use probe_proto::table::Time;
use probe_proto::tables::memory;

use super::analyser::Analyser;
use super::memory_sample::MemorySample;
use super::symbol_lookup::SymbolLookup;
use crate::payload::{MB, MEMORY_VALUES as COUNT};
use crate::record::RingRecord;
use crate::row_buffer::RowBuffer;

impl<N: SymbolLookup> Analyser<N> {
    pub(super) fn memory(&mut self, number: usize, record: RingRecord, sink: &mut RowBuffer) {
        let (part, device) = ((record.payload() & 0xff) as usize, record.payload() >> 8);
        let sample = &mut self.threads[number].memory;
        if part == 0 {
            *sample = MemorySample { device, ts: record.ts, ..MemorySample::default() };
        } else if part != sample.next || device != sample.device {
            sample.next = 0;
            return;
        }
        let Some([first, second]) = sample.values.get_mut(2 * part..2 * part + 2) else { return };
        (*first, *second) = (record.a, record.b);
        sample.next = part + 1;
        if sample.next * 2 < COUNT {
            return;
        }
        sample.next = 0;
        let (values, ts) = (sample.values, sample.ts);
        let Some(clock) = &self.clock else { return };
        let size = |index: usize| (values[index] != u64::MAX).then(|| values[index] as f64 / MB);
        let count = |index: usize| i64::try_from(values[index]).ok();
        if let Some(peak) = size(1) {
            self.peak = Some(self.peak.unwrap_or_default().max(peak));
        }
        let device = sink.strings.id(&format!("cuda:{device}"));
        sink.push(memory::Row {
            step: self.step,
            device,
            ts: Time(clock.unix_ns(ts)),
            allocated: size(0),
            reserved: size(2),
            max_allocated: size(1),
            max_reserved: size(3),
            active: size(4),
            inactive: size(5),
            retries: count(6),
            ooms: count(7),
            device_allocs: count(8),
            device_frees: count(9),
            rss: None,
            max_rss: None,
            children: None,
            children_rss: None,
        });
    }
}
