//! A section of a thread's time: the state from which [`validation`](super::validation) tells validation and training apart.

use super::meter::StepEvents;
use super::persist::persist;
use super::step_parts::StepParts;
use crate::payload::{EVAL_MODE, NO_GRADIENTS};

/// Times and counts up to a point in time.
#[derive(Debug, Default, Clone)]
pub(crate) struct PartsSnapshot {
    pub(super) at: u64,
    pub(super) parts: StepParts,
    pub(super) counts: StepEvents,
}

/// A section of a thread's time that is either training or validation as a whole.
#[derive(Debug, Default)]
pub(crate) struct ThreadSection {
    pub(super) from: PartsSnapshot,
    /// The end of the last call.
    pub(super) until: PartsSnapshot,
    /// Number of intervals that had been recorded when the section began.
    pub(super) rows: u64,
    /// The iterator that its batches come from; 0 is none.
    pub(super) iterator: u64,
    pub(super) trains: bool,
    /// Outermost modules with parameters that were called and did not train. `mode` has the flags that all those calls had.
    pub(super) modules: Vec<u64>,
    pub(super) mode: u64,
    /// Whether gradients were asked for that are added to no parameter.
    pub(super) differentiated: bool,
}

persist!(PartsSnapshot { at, parts, counts });
persist!(ThreadSection { from, until, rows, iterator, trains, modules, mode, differentiated });

impl ThreadSection {
    pub(super) fn has_calls(&self) -> bool {
        !self.modules.is_empty()
    }

    /// Whether it began with a module without parameters, and nothing has followed.
    pub(super) fn is_prepared(&self) -> bool {
        self.iterator == 0 && !self.trains && !self.has_calls()
    }

    /// Whether the section so far is validation.
    pub(super) fn validates(&self) -> bool {
        !self.trains && self.has_calls()
    }

    /// Whether gradients that are only returned leave the section validation: where a batch divides it from what trains.
    pub(super) fn may_differentiate(&self) -> bool {
        self.validates_in_eval_mode() && self.iterator != 0
    }

    fn validates_in_eval_mode(&self) -> bool {
        self.validates() && self.mode & EVAL_MODE != 0
    }

    /// Whether a call of `module` in this `mode` trains a module that was validated until now. Where gradients were asked for,
    /// an attack may have made the batch that is now trained with.
    pub(super) fn was_validation_of(&self, module: u64, mode: u64) -> bool {
        let changed = mode & EVAL_MODE == 0 || mode & NO_GRADIENTS == 0 && self.mode & NO_GRADIENTS != 0;
        self.validates_in_eval_mode() && !self.differentiated && changed && self.modules.contains(&module)
    }
}
