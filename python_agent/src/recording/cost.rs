//! What an event costs on this machine: measured once at install ([`cost_measurement`](super::cost_measurement)). The cost of
//! rare events is measured each time.

use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::ticks;
use super::device;

/// Cost of the begin or the end of a module call, in ticks, as measured at install.
pub(super) static EVENT: AtomicU64 = AtomicU64::new(0);
/// Cost of the begin and the end of an autograd node together, in ticks, as measured at install.
pub(super) static NODE: AtomicU64 = AtomicU64::new(0);
/// Ticks that hooks of collectives and of the DataLoader have taken.
static RARE: AtomicU64 = AtomicU64::new(0);

/// Ticks by kind of event.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EventCosts {
    /// Begin or end of a module call.
    pub(crate) event: u64,
    /// Begin and end of an autograd node.
    pub(crate) node: u64,
    /// Event on a device's stream.
    pub(crate) mark: u64,
    /// Hooks of collectives and of the DataLoader so far, in all.
    pub(crate) rare: u64,
}

pub(crate) fn costs() -> EventCosts {
    let [event, node, rare] = [&EVENT, &NODE, &RARE].map(|ticks| ticks.load(Ordering::Relaxed));
    EventCosts { event, node, mark: device::cost(), rare }
}

/// Forgets in a forked child what the parent has spent.
pub(super) fn begin_anew() {
    RARE.store(0, Ordering::Relaxed);
}

/// Adds the time since `began` to the cost of rare hooks, which are called a few times a step.
pub(super) fn add_rare(began: u64) {
    RARE.fetch_add(ticks().saturating_sub(began), Ordering::Relaxed);
}
