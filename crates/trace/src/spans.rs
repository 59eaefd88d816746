//! Rows of ranges and numbers that the program names.

use probe_proto::table::{Text, Time};
use probe_proto::tables::{metrics, spans};

use super::analyser::Analyser;
use super::clock::seconds;
use super::symbol_lookup::SymbolLookup;
use crate::payload::{REASONS, SPAN_KINDS};
use crate::record::RingRecord;
use crate::row_buffer::RowBuffer;

impl<N: SymbolLookup> Analyser<N> {
    pub(super) fn span(&mut self, number: usize, record: RingRecord, sink: &mut RowBuffer) {
        let (Some(clock), payload) = (&self.clock, record.payload()) else { return };
        let mut text = |id: u64| -> Option<Text> { self.names.named(true, id).map(|name| sink.strings.id(&name)) };
        let (Some(name), Some(kind)) = (text(payload & 0xffff), SPAN_KINDS.get((payload >> 40 & 0xff) as usize)) else {
            return;
        };
        let parent = (payload >> 16 & 0xffff).checked_sub(1).and_then(&mut text);
        let kind = sink.strings.id(kind);
        let begin = clock.at(record.a);
        sink.push(spans::Row {
            step: Some(record.b as i64),
            ts: Time(clock.unix_ns(begin)),
            duration: seconds(record.ts.saturating_sub(begin)),
            name,
            kind,
            depth: (payload >> 32 & 0xff) as i32,
            parent,
            thread: self.threads[number].id,
        });
    }

    pub(super) fn metric(&mut self, record: RingRecord, sink: &mut RowBuffer) {
        let Some(clock) = &self.clock else { return };
        let Some(name) = self.names.named(false, record.payload() & 0xffff) else { return };
        let name = sink.strings.id(&name);
        let why = (record.payload() >> 16).checked_sub(1).and_then(|index| REASONS.get(index as usize));
        let reason = why.map(|why| sink.strings.id(why));
        sink.push(metrics::Row {
            step: record.b as i64,
            ts: Time(clock.unix_ns(record.ts)),
            name,
            value: reason.is_none().then_some(f64::from_bits(record.a)),
            reason,
        });
    }
}
