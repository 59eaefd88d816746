//! The functions of the uplink that `probe_agent` calls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use probe_proto::v1::{self, eval_reply::Reply};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFrozenSet};

use crate::address::CollectorAddress;
use crate::python_text::PythonText;
use crate::recording::{self, config};
use crate::seconds::Seconds;
use crate::shared::{self, lock};

use super::commands::{Command, CommandKind, Snippet};
use super::link::{Uplink, UplinkPhase};
use super::settings::{CollectorRestart, Identity, Settings};
use super::snippet_words::{At, Outcome};
use super::starter;

/// Texts about a snippet are truncated to so many characters; those of the agent's Python half are shorter.
const MAX_TEXT_BYTES: usize = 256 << 10;

/// The uplink of this process, from its start on.
static LINK: Mutex<Option<Arc<Uplink>>> = Mutex::new(None);

/// Whether this is a forked child that is no agent, in which nothing of ours runs.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Adds this part's functions to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", probe_proto::VERSION)?;
    module.add("RESERVED_NAMES", PyFrozenSet::new(module.py(), probe_proto::RESERVED_NAMES)?)?;
    module.add_class::<Settings>()?;
    module.add_class::<Identity>()?;
    module.add_class::<CollectorRestart>()?;
    module.add_class::<At>()?;
    module.add_class::<Outcome>()?;
    module.add_class::<CommandKind>()?;
    module.add_class::<Command>()?;
    module.add_class::<Snippet>()?;
    module.add_function(wrap_pyfunction!(start, module)?)?;
    module.add_function(wrap_pyfunction!(stop, module)?)?;
    module.add_function(wrap_pyfunction!(forked, module)?)?;
    module.add_function(wrap_pyfunction!(begin_in_child, module)?)?;
    module.add_function(wrap_pyfunction!(set_identity, module)?)?;
    module.add_function(wrap_pyfunction!(set_enabled, module)?)?;
    module.add_function(wrap_pyfunction!(configure, module)?)?;
    module.add_function(wrap_pyfunction!(status, module)?)?;
    module.add_function(wrap_pyfunction!(want_boundary, module)?)?;
    module.add_function(wrap_pyfunction!(next_command, module)?)?;
    module.add_function(wrap_pyfunction!(reply_placed, module)?)?;
    module.add_function(wrap_pyfunction!(reply_armed, module)?)?;
    module.add_function(wrap_pyfunction!(reply_arrived, module)?)?;
    module.add_function(wrap_pyfunction!(wait_for_room, module)?)?;
    module.add_function(wrap_pyfunction!(reply_output, module)?)?;
    module.add_function(wrap_pyfunction!(reply_done, module)?)?;
    Ok(())
}

/// Starts the background thread; False where one runs already.
#[pyfunction]
fn start(settings: Settings) -> PyResult<bool> {
    let mut current = lock(&LINK);
    if FORKED.load(Ordering::Relaxed) || current.as_ref().is_some_and(|link| link.phase() != UplinkPhase::Ended) {
        return Ok(false);
    }
    let address = CollectorAddress::parse(&settings.collector).map_err(PyValueError::new_err)?;
    let link = Arc::new(Uplink::new(address, settings));
    starter::start(Arc::clone(&link)).map_err(|error| PyOSError::new_err(error.to_string()))?;
    *current = Some(link);
    Ok(true)
}

/// Sends what is left, sends Bye and ends the thread; True where it ended within `timeout_s`. `reason` is `exit` or `detached`.
#[pyfunction]
fn stop(py: Python<'_>, timeout_s: Seconds, reason: &str) -> bool {
    let Some(link) = link() else { return true };
    let reason = if reason == "detached" { "detached" } else { "exit" };
    link.commands.close();
    py.detach(|| {
        link.request_stop(timeout_s.0, reason);
        // The thread keeps the deadline itself; the extra time is for one that can't.
        link.wait_for(timeout_s.0 + Duration::from_millis(200), |phase| {
            matches!(phase, UplinkPhase::Ended | UplinkPhase::Refused(_))
        })
    })
}

/// Switches everything off in a forked child, which does not have the thread. Returns whether it may become an agent of its own:
/// see [`begin_in_child`].
#[pyfunction]
fn forked() -> bool {
    FORKED.store(true, Ordering::Relaxed);
    shared::ENABLED.store(false, Ordering::Relaxed);
    shared::BOUNDARY_WANTED.store(false, Ordering::Relaxed);
    recording::may_begin()
}

/// Lets a forked child become an agent of its own. False where its parent was none.
#[pyfunction]
fn begin_in_child() -> bool {
    // What went wrong between the parent and its collector is not this process's problem.
    if recording::may_begin() && lock(&LINK).take().is_some() {
        lock(&shared::PROBLEM).clear();
    }
    let begins = recording::begin_in_child();
    if begins && FORKED.swap(false, Ordering::Relaxed) {
        starter::begin_anew();
    }
    begins
}

/// Sets the identity of this process, which is sent if it has changed.
#[pyfunction]
fn set_identity(identity: Identity) {
    if let Some(link) = link() {
        link.identify(identity);
    }
}

/// Switches every hook on or off.
#[pyfunction]
fn set_enabled(enabled: bool) {
    crate::recording::switch(enabled && !FORKED.load(Ordering::Relaxed));
}

/// Applies settings, all or none. Raises ValueError, which says what is allowed.
#[pyfunction]
fn configure(values: BTreeMap<String, String>) -> PyResult<()> {
    config::apply(&values, None).map_err(PyValueError::new_err)?;
    if let Some(link) = link() {
        link.wake();
    }
    Ok(())
}

/// State of the agent: enabled, step, layers, config, problem, phase (None where there is no uplink), run.
#[pyfunction]
fn status(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let facts = PyDict::new(py);
    facts.set_item("enabled", shared::ENABLED.load(Ordering::Relaxed))?;
    facts.set_item("step", shared::STEP.load(Ordering::Relaxed))?;
    if FORKED.load(Ordering::Relaxed) {
        facts.set_item("phase", "forked")?;
        return Ok(facts);
    }
    let layers = crate::recording::layers_now();
    facts.set_item("layers", layers.into_iter().collect::<BTreeMap<_, _>>())?;
    facts.set_item("config", config::in_force())?;
    facts.set_item("problem", lock(&shared::PROBLEM).clone())?;
    let phase = link().map(|link| link.phase());
    facts.set_item("phase", phase.as_ref().map(UplinkPhase::as_str))?;
    facts.set_item("run", phase.as_ref().and_then(UplinkPhase::run))?;
    Ok(facts)
}

/// Sets whether a snippet waits for the boundary between two steps.
#[pyfunction]
fn want_boundary(wanted: bool) {
    shared::BOUNDARY_WANTED.store(wanted && !FORKED.load(Ordering::Relaxed), Ordering::SeqCst);
}

/// The next command, waiting up to `timeout_s` without the GIL; None where there is none. Raises EOFError when there
/// will be no more.
#[pyfunction]
fn next_command(py: Python<'_>, timeout_s: Seconds) -> PyResult<Option<Command>> {
    let ended = || pyo3::exceptions::PyEOFError::new_err("the uplink has ended");
    let link = link().ok_or_else(ended)?;
    // Taken with the GIL held: until then the collector can withdraw it.
    py.detach(|| link.commands.wait(timeout_s.0));
    let command = link.commands.take_next();
    if command.is_none() && link.commands.is_closed() { Err(ended()) } else { Ok(command) }
}

/// Replies where a snippet belongs, and why.
#[pyfunction]
fn reply_placed(connection: u64, id: u64, at: At, why: PythonText<MAX_TEXT_BYTES>) -> bool {
    reply(connection, id, Reply::Placed(v1::Placed { at: at.0 as i32, why: why.0 }))
}

/// Replies that a snippet waits for its boundary.
#[pyfunction]
fn reply_armed(connection: u64, id: u64, step: i64) -> bool {
    reply(connection, id, Reply::Armed(v1::Armed { step }))
}

/// Replies that the training thread waits at a boundary: how many steps it has finished, how far each process group is, and how
/// many times it has been told to go on.
#[pyfunction]
fn reply_arrived(connection: u64, id: u64, step: i64, groups: Vec<(String, u64)>, nexts: u32) -> bool {
    let groups = groups.into_iter().map(|(name, sequence)| v1::GroupPosition { name, sequence }).collect();
    reply(connection, id, Reply::Arrived(v1::Arrived { step, groups, nexts }))
}

/// Waits up to `timeout_s`, without the GIL, until the connection has sent most of what was printed; True also where it is
/// gone.
#[pyfunction]
fn wait_for_room(py: Python<'_>, connection: u64, timeout_s: Seconds) -> bool {
    let Some(link) = link() else { return true };
    // Mostly there is room: then the GIL is not released.
    link.commands.wait_for_room(connection, Duration::ZERO)
        || py.detach(|| link.commands.wait_for_room(connection, timeout_s.0))
}

/// Replies with what a snippet printed.
#[pyfunction]
fn reply_output(connection: u64, id: u64, stderr: bool, data: &[u8]) -> bool {
    reply(connection, id, Reply::Output(v1::Output { stderr, data: Bytes::copy_from_slice(data) }))
}

/// Replies how a snippet ended. A snippet that is `still_running` gets a second reply later.
#[pyfunction]
#[pyo3(signature = (connection, id, outcome, error, seconds, training_waited_s, step, still_running=false, hint=PythonText::default()))]
#[allow(clippy::too_many_arguments)] // The fields of the message.
fn reply_done(
    connection: u64,
    id: u64,
    outcome: Outcome,
    error: PythonText<MAX_TEXT_BYTES>,
    seconds: f64,
    training_waited_s: f64,
    step: i64,
    still_running: bool,
    hint: PythonText<MAX_TEXT_BYTES>,
) -> bool {
    let (outcome, error, hint) = (outcome.0 as i32, error.0, hint.0);
    let done = v1::Done { outcome, error, seconds, training_waited_s, step, still_running, hint };
    reply(connection, id, Reply::Done(done))
}

fn reply(connection: u64, id: u64, reply: Reply) -> bool {
    let Some(link) = link() else { return false };
    let taken = link.commands.reply(connection, id, reply);
    link.wake();
    taken
}

fn link() -> Option<Arc<Uplink>> {
    if FORKED.load(Ordering::Relaxed) { None } else { lock(&LINK).clone() }
}
