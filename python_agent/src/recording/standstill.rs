//! The main thread stands still for a moment, while another one changes what it trains with (attaching, detaching).
//!
//! torch's hooks are in plain dictionaries, and one that is changed while it is iterated ends training with an error. So
//! the main thread is asked, by a pending call of the interpreter's, to wait at a place where it iterates none; the work
//! is done by the thread that asks, which has none of the modes that training has switched on.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyMemoryError, PyRecursionError, PyRuntimeError};
use pyo3::prelude::*;

use super::pending_call;
use crate::shared::lock;

/// Between two places that were not good ones.
const PAUSE: Duration = Duration::from_millis(1);
/// The main thread waits no longer than this, whatever the work does.
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The main thread has not come to it yet.
    Asked,
    /// It was at a bad place.
    Refused,
    /// It waits.
    Waits,
    /// Nobody wants it to wait any more.
    Over,
}

struct Meeting {
    phase: Mutex<Phase>,
    changed: Condvar,
    is_good: Py<PyAny>,
}

impl Meeting {
    fn set(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.changed.notify_all();
    }

    /// Until it is not `phase` any more, or it is late; what it is then.
    fn wait_while(&self, phase: Phase, until: Instant) -> Phase {
        let mut now = lock(&self.phase);
        while *now == phase {
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            now = match self.changed.wait_timeout(now, left) {
                Ok((now, _)) => now,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        *now
    }
}

/// What the main thread runs. An exception is that of a signal handler, which Python runs on the main thread wherever it
/// is; it is raised in the program, where it belongs.
fn meet(py: Python<'_>, meeting: &Meeting) -> PyResult<()> {
    if *lock(&meeting.phase) == Phase::Over {
        return Ok(());
    }
    match meeting.is_good.call0(py).and_then(|good| good.is_truthy(py)) {
        Ok(true) => {}
        Ok(false) => {
            meeting.set(Phase::Refused);
            return Ok(());
        }
        Err(error) => {
            meeting.set(Phase::Refused);
            // Ours: there was no room to look.
            let no_room = error.is_instance_of::<PyRecursionError>(py) || error.is_instance_of::<PyMemoryError>(py);
            return if no_room { Ok(()) } else { Err(error) };
        }
    }
    {
        let mut phase = lock(&meeting.phase);
        if *phase == Phase::Over {
            return Ok(());
        }
        *phase = Phase::Waits;
    }
    meeting.changed.notify_all();
    py.detach(|| meeting.wait_while(Phase::Waits, Instant::now() + LONGEST));
    Ok(())
}

/// Calls `work()` while the main thread stands still where `is_good()`, called there, says yes. Not for the main thread
/// itself. Returns the seconds that it stood still, or None where it came to no such place within `timeout_s`; then
/// `work` was not called. `is_good` must not raise; what a signal handler raises in it reaches the program.
#[pyfunction]
fn while_main_stands(
    py: Python<'_>,
    is_good: Py<PyAny>,
    work: Bound<'_, PyAny>,
    timeout_s: f64,
) -> PyResult<Option<f64>> {
    let deadline = Instant::now() + Duration::try_from_secs_f64(timeout_s.clamp(0.0, 1e6)).unwrap_or_default();
    let meeting = Arc::new(Meeting { phase: Mutex::new(Phase::Asked), changed: Condvar::new(), is_good });
    loop {
        meeting.set(Phase::Asked);
        let met = Arc::clone(&meeting);
        if !pending_call::on_main_thread(move |py| meet(py, &met)) {
            return Err(PyRuntimeError::new_err("the interpreter's list of pending calls is full"));
        }
        let phase = py.detach(|| meeting.wait_while(Phase::Asked, deadline));
        if phase == Phase::Waits {
            let begun = Instant::now();
            let done = work.call0();
            meeting.set(Phase::Over);
            return done.map(|_| Some(begun.elapsed().as_secs_f64()));
        }
        if Instant::now() >= deadline {
            // It may come all the same, and find that it is over.
            meeting.set(Phase::Over);
            return Ok(None);
        }
        py.detach(|| std::thread::sleep(PAUSE));
    }
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(while_main_stands, module)?)
}
