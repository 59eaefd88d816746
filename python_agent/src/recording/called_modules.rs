//! The outermost modules that were called while nothing had ended a step. What is called again and again is a loop; what
//! is called once, a model that tries its layers one by one when it is made, is none.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many modules are remembered. Any further one counts as called before.
const MAX_MODULES: usize = 64;

static CALLED: [AtomicUsize; MAX_MODULES] = [const { AtomicUsize::new(0) }; MAX_MODULES];

/// Notes a call of the module at this address. Returns whether there was one before.
pub(super) fn was_called(address: usize) -> bool {
    for called in &CALLED {
        match called.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return false,
            Err(known) if known == address => return true,
            Err(_) => {}
        }
    }
    true
}

/// Begins anew.
pub(super) fn forget() {
    CALLED.iter().for_each(|called| called.store(0, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::{MAX_MODULES, forget, was_called};

    #[test]
    fn a_module_was_called_from_its_second_call_on() {
        let addresses = 1..=MAX_MODULES;
        assert!(!addresses.clone().any(was_called));
        assert!(addresses.chain([MAX_MODULES + 1]).all(was_called));
        forget();
        assert!(!was_called(MAX_MODULES + 1));
        forget();
    }
}
