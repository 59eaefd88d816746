//! Copies of tensors, and the host's reads of their values.

use probe_proto::table::{Text, Time};
use probe_proto::tables::{copies, sync_points};

use super::analyser::Analyser;
use super::clock::seconds;
use super::symbol_lookup::SymbolLookup;
use super::tensor_read::TensorRead;
use crate::payload::{CONVERTED, DEVICES, IS_CONTIGUOUS, NON_BLOCKING, OPERATORS, SOME_CUDA};
use crate::record::RingRecord;
use crate::row_buffer::RowBuffer;

/// The largest number of different reads that are summed up in a step. Further reads get rows of their own.
const MAX_READS: usize = 1024;

/// The bits of a payload, above which a read's key has the part of the step.
const PART: u32 = 54;

fn operator(payload: u64) -> &'static str {
    match OPERATORS.get((payload & 15) as usize) {
        Some(&"_local_scalar_dense") => "item",
        Some(name) => name,
        None => "",
    }
}

fn device(code: u8, sink: &mut RowBuffer) -> Text {
    let kind = DEVICES.get(usize::from(code >> 4)).copied().unwrap_or_default();
    match code >> 4 {
        _ if code == SOME_CUDA => sink.strings.id("cuda"),
        0 => sink.strings.id(kind),
        _ => sink.strings.id(&format!("{kind}:{}", code & 15)),
    }
}

/// The file and line of the program with the number in `payload`.
fn line(names: &impl SymbolLookup, payload: u64, sink: &mut RowBuffer) -> (Option<Text>, Option<i32>) {
    let location = names.line(payload >> 8 & 0xffff).unwrap_or_default();
    match location.rsplit_once(':').and_then(|(file, line)| Some((file, line.parse().ok()?))) {
        Some((file, line)) => (Some(sink.strings.id(file)), Some(line)),
        None => (None, None),
    }
}

impl<N: SymbolLookup> Analyser<N> {
    pub(super) fn copy(&mut self, number: usize, record: RingRecord, sink: &mut RowBuffer) {
        let (Some(clock), payload) = (&self.clock, record.payload()) else { return };
        let begin = clock.at(record.a);
        let (from, to) = ((record.b >> 48) as u8, (record.b >> 56) as u8);
        let direction = match (from >> 4, to >> 4) {
            (0, 0) => "host to host",
            (0, _) => "host to device",
            (_, 0) => "device to host",
            _ if from == to => "within device",
            _ => "device to device",
        };
        let (file, line) = line(&self.names, payload, sink);
        let (source, destination) = (device(from, sink), device(to, sink));
        let (operation, direction) = (sink.strings.id(operator(payload)), sink.strings.id(direction));
        let part = Some(sink.strings.id(self.threads[number].part().as_str()));
        sink.push(copies::Row {
            step: self.step,
            stride: (payload >> 24) as i32,
            ts: Time(clock.unix_ns(begin)),
            duration: seconds(record.ts.saturating_sub(begin)),
            operation,
            direction,
            bytes: (record.b & 0xffff_ffff_ffff) as i64,
            blocking: payload & NON_BLOCKING == 0,
            contiguous: payload & IS_CONTIGUOUS != 0,
            converted: payload & CONVERTED != 0,
            source,
            destination,
            part,
            file,
            line,
            thread: self.threads[number].id,
        });
    }

    pub(super) fn read(&mut self, number: usize, record: RingRecord, sink: &mut RowBuffer) {
        let Some(clock) = &self.clock else { return };
        // Flags of a copy don't make a different read.
        let payload = record.payload() & !(NON_BLOCKING | IS_CONTIGUOUS | CONVERTED);
        let part = self.threads[number].part();
        let begin = clock.at(record.a);
        let waited = seconds(record.ts.saturating_sub(begin));
        let key = (payload | (part as u64) << PART, (record.b >> 48) as u8);
        if let Some(known) = self.reads.iter_mut().find(|known| known.key == key && known.thread == number) {
            known.row.count += 1;
            known.row.waited += waited;
            return;
        }
        let (file, line) = line(&self.names, payload, sink);
        let row = sync_points::Row {
            step: self.step,
            stride: (payload >> 24) as i32,
            ts: Time(clock.unix_ns(begin)),
            operation: sink.strings.id(operator(payload)),
            device: device(key.1, sink),
            count: 1,
            waited,
            part: Some(sink.strings.id(part.as_str())),
            file,
            line,
            thread: self.threads[number].id,
        };
        if self.reads.len() >= MAX_READS {
            return sink.push(row);
        }
        self.reads.push(TensorRead { key, thread: number, row });
    }

    /// Adds the rows of the step's reads, at its end.
    pub(super) fn flush_reads(&mut self, sink: &mut RowBuffer) {
        self.reads.drain(..).for_each(|read| sink.push(read.row));
    }
}
