//! Writes and reads the state of the analysis between two drains.

use super::analyser::{Analyser, CommonTexts};
use super::meter::DetailMeter;
use super::persist::{Persist, PersistedBytes};
use super::symbol_lookup::SymbolLookup;

impl<N: SymbolLookup> Analyser<N> {
    /// Appends all that a successor needs to go on: everything except the names and the meter of overhead.
    pub fn put(&self, to: &mut Vec<u8>) {
        self.clock.put(to);
        self.threads.put(to);
        self.ended.put(to);
        self.modules.put(to);
        self.calls.put(to);
        (self.step, self.step_begin).put(to);
        (self.detail, self.broken).put(to);
        self.captured.put(to);
        (self.is_partial, (self.trained, self.stepped)).put(to);
        self.infers.put(to);
        self.optimizers.put(to);
        self.operations.put(to);
        self.reads.put(to);
        self.peak.put(to);
        self.queue.put(to);
        self.processor.put(to);
        (self.collecting, self.pauses).put(to);
        self.settling.put(to);
        (self.batch_shapes, self.newest).put(to);
    }

    /// Reads the state that [`Analyser::put`] wrote.
    pub fn restore(names: N, from: &mut PersistedBytes<'_>) -> Option<Self> {
        let (clock, threads, ended) = (Persist::get(from)?, Persist::get(from)?, Persist::get(from)?);
        let (modules, calls) = (Persist::get(from)?, Persist::get(from)?);
        let ((step, step_begin), (detail, broken)) = (Persist::get(from)?, Persist::get(from)?);
        let captured = Persist::get(from)?;
        let (is_partial, (trained, stepped)) = Persist::get(from)?;
        let infers = Persist::get(from)?;
        let (optimizers, operations, reads) = (Persist::get(from)?, Persist::get(from)?, Persist::get(from)?);
        let (peak, queue) = (Persist::get(from)?, Persist::get(from)?);
        let (processor, (collecting, pauses)) = (Persist::get(from)?, Persist::get(from)?);
        let settling = Persist::get(from)?;
        let (batch_shapes, newest) = Persist::get(from)?;
        Some(Self {
            names,
            clock,
            threads,
            ended,
            modules,
            calls,
            step,
            step_begin,
            detail,
            captured,
            broken,
            is_partial,
            trained,
            stepped,
            infers,
            optimizers,
            operations,
            reads,
            peak,
            queue,
            processor,
            collecting,
            pauses,
            meter: DetailMeter::default(),
            settling,
            batch_shapes,
            words: CommonTexts::default(),
            newest,
        })
    }

    /// Number of steps finished.
    pub fn step(&self) -> i64 {
        self.step
    }
}
