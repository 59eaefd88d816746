//! Rows of what the program saves.

use probe_proto::table::Time;
use probe_proto::tables::checkpoints;

use super::analyser::Analyser;
use super::clock::seconds;
use super::symbol_lookup::SymbolLookup;
use crate::payload::{FAILED, SAVED_ERROR, SAVED_FILE, SAVED_STEP, SAVER, SAVERS, UNKNOWN_BYTES};
use crate::record::RingRecord;
use crate::row_buffer::RowBuffer;

impl<N: SymbolLookup> Analyser<N> {
    pub(super) fn saved(&mut self, number: usize, record: RingRecord, sink: &mut RowBuffer) {
        let (Some(clock), payload) = (&self.clock, record.payload()) else { return };
        let text = |number: u64| self.names.saved(number.checked_sub(1)?);
        let bytes = record.b & UNKNOWN_BYTES;
        let begin = clock.at(record.a);
        let Some(saver) = SAVERS.get((payload & SAVER) as usize) else { return };
        let kind = sink.strings.id(saver);
        let path = text(record.b >> SAVED_FILE).and_then(|path| sink.path(&path));
        let error = (payload & FAILED != 0).then(|| {
            let class = text(payload >> SAVED_ERROR & 0x3fff);
            sink.strings.id(class.as_deref().unwrap_or("an exception"))
        });
        sink.push(checkpoints::Row {
            step: (payload >> SAVED_STEP) as i64,
            ts: Time(clock.unix_ns(begin)),
            duration: seconds(record.ts.saturating_sub(begin)),
            kind,
            path,
            bytes: (bytes != UNKNOWN_BYTES).then_some(bytes as i64),
            error,
            thread: self.threads[number].id,
        });
    }
}
