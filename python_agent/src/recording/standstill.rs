//! Stops the main thread for a moment while another thread changes torch's hooks (attaching, detaching).
//!
//! torch's hooks are in plain dictionaries, and changing one while it is iterated ends training with an error. So a pending call
//! of the interpreter makes the main thread wait at a point where it iterates none. The requesting thread does the work, because
//! it has none of the modes that training has switched on.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyMemoryError, PyRecursionError, PyRuntimeError};
use pyo3::prelude::*;

use super::pending_call;
use crate::shared::lock;

/// Time between two attempts, where the main thread was at no good point.
const PAUSE: Duration = Duration::from_millis(1);
/// The main thread waits no longer than this for the work to begin, and again no longer for its end.
const MAX_STANDSTILL: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MeetingPhase {
    /// The main thread has not reached the pending call yet.
    Asked,
    /// The main thread was at no good point.
    Refused,
    /// The main thread waits.
    Waits,
    /// The main thread waits, and the work is being done.
    Works,
    /// The main thread need not wait any more.
    Over,
}

struct MainThreadMeeting {
    phase: Mutex<MeetingPhase>,
    changed: Condvar,
}

impl MainThreadMeeting {
    fn new() -> Self {
        Self { phase: Mutex::new(MeetingPhase::Asked), changed: Condvar::new() }
    }

    /// Changes the phase from `from` to `to`; false where the phase is another one by now.
    fn advance(&self, from: MeetingPhase, to: MeetingPhase) -> bool {
        let mut phase = lock(&self.phase);
        let holds = *phase == from;
        if holds {
            *phase = to;
            self.changed.notify_all();
        }
        holds
    }

    /// Makes the main thread wait until the work is done. Where the work does not begin in time, the main thread goes on, and the
    /// work must not be done.
    fn stand(&self, longest: Duration) {
        self.wait_while(MeetingPhase::Waits, Instant::now() + longest);
        if !self.advance(MeetingPhase::Waits, MeetingPhase::Refused) {
            self.wait_while(MeetingPhase::Works, Instant::now() + longest);
        }
    }

    fn set(&self, phase: MeetingPhase) {
        *lock(&self.phase) = phase;
        self.changed.notify_all();
    }

    /// Waits until the phase is not `phase` any more, or until the time `until`.
    fn wait_while(&self, phase: MeetingPhase, until: Instant) {
        let mut now = lock(&self.phase);
        while *now == phase {
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            now = match self.changed.wait_timeout(now, left) {
                Ok((now, _)) => now,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// The pending call that the main thread runs. An exception is that of a signal handler, which Python runs on the main thread at
/// any point; it is raised in the program, where it belongs.
fn meet(py: Python<'_>, meeting: &MainThreadMeeting, is_good: &Py<PyAny>) -> PyResult<()> {
    if *lock(&meeting.phase) == MeetingPhase::Over {
        return Ok(());
    }
    match is_good.call0(py).and_then(|good| good.is_truthy(py)) {
        Ok(true) => {}
        Ok(false) => {
            meeting.set(MeetingPhase::Refused);
            return Ok(());
        }
        Err(error) => {
            meeting.set(MeetingPhase::Refused);
            // An error of ours: there was no memory, or no stack, for `is_good`.
            let no_room = error.is_instance_of::<PyRecursionError>(py) || error.is_instance_of::<PyMemoryError>(py);
            return if no_room { Ok(()) } else { Err(error) };
        }
    }
    if meeting.advance(MeetingPhase::Asked, MeetingPhase::Waits) {
        py.detach(|| meeting.stand(MAX_STANDSTILL));
    }
    Ok(())
}

/// Calls `work()` while the main thread waits at a point at which `is_good()`, called on it, returned True. Not for the main
/// thread itself. Returns the seconds that it waited, or None where it reached no such point within `timeout_s`; then `work` was
/// not called. `is_good` must not raise; what a signal handler raises in it reaches the program.
#[pyfunction]
fn while_main_stands(
    py: Python<'_>,
    is_good: Py<PyAny>,
    work: Bound<'_, PyAny>,
    timeout_s: f64,
) -> PyResult<Option<f64>> {
    let deadline = Instant::now() + Duration::try_from_secs_f64(timeout_s.clamp(0.0, 1e6)).unwrap_or_default();
    let is_good = Arc::new(is_good);
    loop {
        // A meeting that the main thread has left can't be used again.
        let meeting = Arc::new(MainThreadMeeting::new());
        let (met, is_good) = (Arc::clone(&meeting), Arc::clone(&is_good));
        if !pending_call::on_main_thread(move |py| meet(py, &met, &is_good)) {
            return Err(PyRuntimeError::new_err("the interpreter's list of pending calls is full"));
        }
        py.detach(|| meeting.wait_while(MeetingPhase::Asked, deadline));
        // The GIL is held again; to get it may have taken long.
        if meeting.advance(MeetingPhase::Waits, MeetingPhase::Works) {
            let begun = Instant::now();
            let done = work.call0();
            meeting.set(MeetingPhase::Over);
            return done.map(|_| Some(begun.elapsed().as_secs_f64()));
        }
        if Instant::now() >= deadline {
            // The main thread may still reach the call, and finds that it is over.
            meeting.set(MeetingPhase::Over);
            return Ok(None);
        }
        py.detach(|| std::thread::sleep(PAUSE));
    }
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(while_main_stands, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn work_that_comes_too_late_is_not_done() {
        let meeting = MainThreadMeeting::new();
        assert!(meeting.advance(MeetingPhase::Asked, MeetingPhase::Waits));
        meeting.stand(Duration::ZERO);
        assert!(!meeting.advance(MeetingPhase::Waits, MeetingPhase::Works), "the main thread has gone on");
    }

    #[test]
    fn the_main_thread_stands_until_work_that_has_begun_is_done() {
        let meeting = MainThreadMeeting::new();
        assert!(meeting.advance(MeetingPhase::Asked, MeetingPhase::Waits));
        std::thread::scope(|scope| {
            let main = scope.spawn(|| meeting.stand(LONG));
            assert!(meeting.advance(MeetingPhase::Waits, MeetingPhase::Works));
            assert!(!main.is_finished());
            meeting.set(MeetingPhase::Over);
            main.join().expect("it goes on");
        });
        assert_eq!(*lock(&meeting.phase), MeetingPhase::Over);
    }
}
