//! Writes into shared memory, after each drain, what the collector needs to make rows of this process's rings after its death.
//! On the background thread; without shared memory nothing happens.

use std::time::{Duration, Instant};

use super::analyser::ANALYSER;
use super::ring::{self, RingReader};
use super::shared_memory::{self, writer};
use super::{overhead, symbolizer};
use crate::renewable::Renewable;
use crate::shared::lock;
use probe_trace::persist::Persist;
use probe_trace::recover::{self, UplinkCheckpoint};
use probe_trace::row_buffer::RowBuffer;
use probe_trace::shared_layout::CheckpointSlot;

pub(crate) use shared_memory::descriptor;

/// Ratio of the pause after writing to the processor time that writing took: with much to write, writing and draining are rarer.
const SHARE: f64 = 50.0;
/// Longest time between two writes (seconds).
const MAX_PAUSE: f64 = 1.0;

#[derive(Debug)]
struct CheckpointState {
    /// Earliest time of the next drain and write.
    next: Option<Instant>,
    /// Version of the names that were written last.
    names: Option<symbolizer::NamesVersion>,
}

static STATE: Renewable<CheckpointState> = Renewable::new(|| CheckpointState { next: None, names: None });

/// Forgets in a forked child what was written into the parent's memory.
pub(super) fn begin_anew() {
    STATE.renew();
}

/// Whether it is time to drain.
pub fn is_due() -> bool {
    STATE.lock().next.is_none_or(|next| Instant::now() >= next) || ring::is_filling()
}

/// Sets whether what is drained is held in the rings until [`write`]; without holding, nothing is written. Returns whether
/// it is held.
pub fn set_holding(on: bool) -> bool {
    let Some(writer) = writer() else {
        ring::set_holding(false);
        return false;
    };
    if !on {
        // Clearing fails only where nothing was written: the first page is always allocated.
        let _ = lock(writer).clear();
        STATE.lock().next = None;
    }
    ring::set_holding(on);
    on
}

/// Writes the state of the analysis and what has not been sent. `outgoing` is given the positions of the rings.
pub fn write(sink: &RowBuffer, outgoing: impl FnOnce(Vec<recover::RingPosition>) -> UplinkCheckpoint) {
    let Some(writer) = writer() else { return };
    let before = overhead::cpu();
    let (mut writer, mut state) = (lock(writer), STATE.lock());
    let version = symbolizer::version();
    if state.names != Some(version) {
        // Without names there still are rows: those of modules have no name.
        let put = writer.write_slot(CheckpointSlot::Names, |to| symbolizer::dump().put(to));
        state.names = put.is_ok().then_some(version);
    }
    let rings = RingReader::all().iter().map(RingReader::position).collect();
    let analyser = ANALYSER.lock();
    // State that is too large is not written. It is recorded and sent all the same.
    let _ = writer.write_slot(CheckpointSlot::State, |to| recover::write_state(&analyser, sink, &outgoing(rings), to));
    drop(analyser);
    ring::release();
    // Processor time of this thread: on a busy machine it may have waited for a processor in between.
    let spent = before.zip(overhead::cpu()).map_or(0.0, |((_, before), (_, after))| after - before);
    let pause = Duration::from_secs_f64((spent * SHARE).clamp(0.0, MAX_PAUSE));
    state.next = Instant::now().checked_add(pause);
}
