//! Garbage collections and compilations.
//!
//! Payload of a record: for a garbage collection its generation; for a compilation [`COMPILATION`], and [`WITHOUT_ID`] where
//! torch did not say which one.

use probe_proto::table::Time;
use probe_proto::tables::pauses;

use super::analyser::Analyser;
use super::clock::seconds;
use super::step_parts::RecordedPart;
use super::symbol_lookup::SymbolLookup;
use crate::payload::{COMPILATION, WITHOUT_ID};
use crate::record::RingRecord;
use crate::row_buffer::RowBuffer;

/// Seconds below which collections of young generations get no row.
const SHORT: f64 = 1e-4;
/// The generation of a full collection.
const FULL: i32 = 2;

impl<N: SymbolLookup> Analyser<N> {
    pub(super) fn pause(&mut self, number: usize, record: RingRecord, sink: &mut RowBuffer) {
        let (Some(clock), thread) = (&self.clock, &self.threads[number]) else { return };
        let part = thread.part();
        if part == RecordedPart::Suspended {
            // A pause in a snippet is part of that.
            return;
        }
        let (payload, begin) = (record.payload(), clock.at(record.a));
        let duration = record.ts.saturating_sub(begin);
        let is_compilation = payload & COMPILATION != 0;
        let generation = (!is_compilation).then_some((payload & 0xff) as i32);
        // Before the first step a collection is part of none.
        if !is_compilation && self.step_begin.is_some() {
            self.collecting += duration;
        }
        if generation.is_some_and(|generation| generation < FULL) && seconds(duration) < SHORT {
            return;
        }
        let (low, high) = (record.b as u32, (record.b >> 32) as u32);
        let kind = sink.strings.id(if is_compilation { "compilation" } else { "garbage collection" });
        let part = sink.strings.id(part.as_str());
        let known_id = is_compilation && payload & WITHOUT_ID == 0;
        let compile_id = known_id.then(|| sink.strings.id(&format!("{low}/{high}")));
        sink.push(pauses::Row {
            step: self.step,
            ts: Time(clock.unix_ns(begin)),
            kind,
            part,
            duration: seconds(duration),
            generation,
            collected: (!is_compilation).then_some(i64::from(low)),
            uncollectable: (!is_compilation).then_some(i64::from(high)),
            compile_id,
            thread: thread.id,
        });
    }
}
