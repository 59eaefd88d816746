//! After each drain, what a successor needs to go on is put down in shared memory, so that whoever reads the rings of this
//! process when it is gone knows what they mean. On the background thread; without shared memory nothing happens.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::analyser::ANALYSER;
use super::ring::{self, Reader};
use super::shared_memory::{self, writer};
use super::{overhead, symbolizer};
use crate::shared::lock;
use probe_trace::keep::Keep;
use probe_trace::mapping::Part;
use probe_trace::recover::{self, Outgoing};
use probe_trace::sink::Sink;

pub(crate) use shared_memory::descriptor;

/// Of this thread's time, putting down may take one part of so many: where there is much, it is done more rarely, and so is
/// draining.
const SHARE: f64 = 50.0;
/// And the longest that it may wait for that (seconds).
const MAX_PAUSE: f64 = 1.0;

#[derive(Debug)]
struct State {
    /// Not again before.
    next: Option<Instant>,
    /// What the names were when they were put down.
    names: Option<symbolizer::Version>,
}

static STATE: Mutex<State> = Mutex::new(State { next: None, names: None });

/// Whether it is time to drain.
pub fn is_due() -> bool {
    lock(&STATE).next.is_none_or(|next| Instant::now() >= next) || ring::is_filling()
}

/// From here on what is drained is held until [`put_down`], or it is not, and nothing is put down. Whether it is.
pub fn hold(on: bool) -> bool {
    let Some(writer) = writer() else { return false };
    if !on {
        // What can't be cleared now was not there: the first page is.
        let _ = lock(writer).clear();
        lock(&STATE).next = None;
    }
    ring::hold(on);
    on
}

/// Puts down where things are. `outgoing` is given the rings.
pub fn put_down(sink: &Sink, outgoing: impl FnOnce(Vec<recover::Place>) -> Outgoing) {
    let Some(writer) = writer() else { return };
    let before = overhead::cpu();
    let (mut writer, mut state) = (lock(writer), lock(&STATE));
    let version = symbolizer::version();
    if state.names != Some(version) {
        // Without names there still are rows, of modules whose name is not known.
        let put = writer.put(Part::Names, |to| symbolizer::dump().put(to));
        state.names = put.is_ok().then_some(version);
    }
    let rings = Reader::all().iter().map(Reader::place).collect();
    let analyser = lock(&ANALYSER);
    // What is too much is not there to be read, and is recorded and sent all the same.
    let _ = writer.put(Part::State, |to| recover::put(&analyser, sink, &outgoing(rings), to));
    drop(analyser);
    ring::release();
    // Time of this thread: on a busy machine it may have waited for a processor in between.
    let spent = before.zip(overhead::cpu()).map_or(0.0, |((_, before), (_, after))| after - before);
    let pause = Duration::from_secs_f64((spent * SHARE).clamp(0.0, MAX_PAUSE));
    state.next = Instant::now().checked_add(pause);
}
