//! What a step's time went into, on one thread.

use super::device_step::DeviceParts;
use super::keep::keep;

/// Where a moment belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Data,
    Forward,
    Backward,
    Optimizer,
    Suspended,
    Other,
}

/// Times of a step so far, in units of the clock, and what is counted along.
#[derive(Debug, Default, Clone)]
pub(crate) struct Parts {
    pub(crate) data: u64,
    pub(crate) forward: u64,
    pub(crate) backward: u64,
    pub(crate) optimizer: u64,
    pub(crate) comm: u64,
    pub(crate) suspended: u64,
    /// Inside the backward call that is open: its end says what of it was backward.
    pub(crate) pending: u64,
    /// Until when communication has been counted.
    pub(crate) comm_until: u64,
    pub(crate) micro_steps: i32,
    pub(crate) samples: Option<i64>,
    /// Of the batches that were handed over.
    pub(crate) batch_samples: Option<i64>,
    /// On the device's clock.
    pub(super) device: DeviceParts,
    /// Intervals of the step were lost, which its device times are made of.
    pub(super) lost: bool,
}

keep!(Parts {
    data,
    forward,
    backward,
    optimizer,
    comm,
    suspended,
    pending,
    comm_until,
    micro_steps,
    samples,
    batch_samples,
    device,
    lost,
});

impl Parts {
    /// `time` more for `part`.
    #[inline]
    pub(crate) fn credit(&mut self, part: Part, time: u64) {
        let place = match part {
            Part::Data => &mut self.data,
            Part::Forward => &mut self.forward,
            Part::Backward => &mut self.pending,
            Part::Optimizer => &mut self.optimizer,
            Part::Suspended => &mut self.suspended,
            Part::Other => return,
        };
        *place += time;
    }

    /// The thread waited for a collective from `begin` to `end`; what of it is counted already is not counted again.
    pub(crate) fn wait(&mut self, begin: u64, end: u64) {
        self.comm += end.saturating_sub(begin.max(self.comm_until));
        self.comm_until = self.comm_until.max(end);
    }

    /// The sum of all parts but what nobody claimed.
    pub(crate) fn sum(&self) -> u64 {
        self.data + self.forward + self.backward + self.optimizer + self.comm
    }
}
