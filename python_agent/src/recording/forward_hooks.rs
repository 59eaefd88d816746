//! Module calls by torch's global forward hooks, where the slot can't be used. A hook costs a hundred times as much.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use pyo3::prelude::*;

use super::boundary;
use super::first_use;
use super::forward::{self, beside_error};
use super::shape;
use super::thread::{self, BESIDE, RECORD, TESTING, ThreadState};
use crate::shared::ENABLED;

thread_local! {
    /// Open calls: module, and whether its beginning was recorded. Hooks, unlike the slot, may miss an end
    /// (`KeyboardInterrupt`), so ends are matched by module.
    static OPEN: RefCell<Vec<(usize, bool)>> = const { RefCell::new(Vec::new()) };
}

/// Hook before a module's forward. `args` are the positional arguments.
#[pyfunction]
fn forward_enter(module: &Bound<'_, PyAny>, args: &Bound<'_, PyAny>) -> PyResult<()> {
    if !ENABLED.load(Ordering::Relaxed) {
        return Ok(());
    }
    thread::with(|state| {
        match state.mode.get() {
            RECORD => {}
            TESTING => {
                state.test_calls.set(state.test_calls.get() + 1);
                return Ok(());
            }
            BESIDE => {
                return if forward::trains(module)? { Err(beside_error()) } else { Ok(()) };
            }
            _ => return Ok(()),
        }
        let outermost = state.depth.get() == 0;
        if outermost && forward::is_loading(state, module.as_ptr()) {
            first_use::happened(module.py());
            return Ok(());
        }
        if outermost {
            forward::enter_outermost(state, module.as_ptr());
        } else if !state.detail.get() {
            return Ok(());
        }
        let recorded = forward::enter(state, module.as_ptr(), outermost);
        if outermost && recorded {
            shape::record(state, args.as_ptr(), std::ptr::null_mut());
        }
        state.depth.set(state.depth.get() + 1);
        OPEN.with_borrow_mut(|open| open.push((module.as_ptr() as usize, recorded)));
        Ok(())
    })
}

/// Hook after a module's forward, also when that raised.
#[pyfunction]
fn forward_exit(module: &Bound<'_, PyAny>) {
    thread::with(|state| {
        let address = module.as_ptr() as usize;
        let ours = OPEN.with_borrow(|open| open.iter().rposition(|(open, _)| *open == address));
        if let Some(index) = ours {
            close_from(state, index, true);
            if state.depth.get() == 0 && !state.is_in_backward() {
                boundary::note_call_end(module.py(), state, address);
            }
        }
    });
}

/// Ends all calls that are noted as open: a training step has ended, so none can be.
pub(super) fn close_all(state: &ThreadState) {
    close_from(state, 0, false);
}

/// Ends the open calls from `index` on. `may_ask`: the GIL is held and no exception is set.
fn close_from(state: &ThreadState, index: usize, may_ask: bool) {
    OPEN.with_borrow_mut(|open| {
        while open.len() > index {
            let Some((module, recorded)) = open.pop() else { break };
            state.depth.set(state.depth.get().saturating_sub(1));
            if recorded {
                forward::leave(state, module as u64, may_ask);
            }
        }
    });
}

/// Adds this file's functions to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(forward_enter, module)?)?;
    module.add_function(wrap_pyfunction!(forward_exit, module)?)
}
