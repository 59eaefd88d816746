//! How often operators ran in a step, and the host's time in them.

use probe_proto::table::Time;
use probe_proto::tables::operator_counts;

use super::analyser::Analyser;
use super::clock::seconds;
use super::step_parts::RecordedPart;
use super::symbol_lookup::SymbolLookup;
use crate::record::RingRecord;
use crate::row_buffer::RowBuffer;

impl<N: SymbolLookup> Analyser<N> {
    pub(super) fn operator_count(&mut self, record: RingRecord, sink: &mut RowBuffer) {
        let (Some(clock), payload) = (&self.clock, record.payload()) else { return };
        let Some(part) = RecordedPart::ALL.get((payload >> 16 & 0xff) as usize) else { return };
        let operator = self.names.operator(payload & 0xffff).map(|name| sink.strings.id(&name));
        let part = sink.strings.id(part.as_str());
        sink.push(operator_counts::Row {
            step: self.step,
            stride: (payload >> 24) as i32,
            ts: Time(clock.unix_ns(record.ts)),
            operator,
            part,
            count: i64::from(record.b as u32),
            outermost: (record.b >> 32) as i64,
            duration: seconds(record.ts.saturating_sub(clock.at(record.a))),
        });
    }
}
