//! A step on the device's clock: its parts, and how long nothing may have been queued for the device.
//!
//! An event that training recorded at one time and the device reached at a later one waited in between, and so there was work
//! before it. The rest of the step may have been idle, or busy with work that was queued and done between two events: it is
//! an upper bound. The two clocks are compared by the events themselves: none is reached before it is recorded, so the
//! smallest difference so far is that of an empty queue. Where the queue was never empty, work counts as waiting for too
//! short a time, and the bound still holds.

use super::device::DeviceTimestamp;
use super::persist::persist;

/// The clocks may drift apart by one part in this many.
const DRIFT: u64 = 5_000;

/// What the device did in a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceStep {
    /// The time from the end of the step before to the end of this one.
    pub(super) duration: Option<u64>,
    /// The longest time for which nothing may have been queued.
    pub(super) idle: Option<u64>,
}

/// The state of a device's queue. All times are in units of the host's [`clock`](super::clock).
#[derive(Debug, Default)]
pub(super) struct DeviceQueue {
    device: Option<u8>,
    /// The device's clock minus the host's, of an event that did not wait; as of `newest`.
    offset: i64,
    newest: u64,
    /// Until when something is known to have waited.
    until: u64,
    /// For how long events have waited in all, since the step began.
    waited: u64,
    /// Whether the current step has an event, and whether it has events of several devices.
    has_event: bool,
    mixed: bool,
    /// When the device reached the end of the step before.
    ended: DeviceTimestamp,
}

persist!(DeviceQueue { device, offset, newest, until, waited, has_event, mixed, ended });

impl DeviceQueue {
    /// Takes in an event that was recorded at `host`. `exact`: not earlier, so that it shows how the clocks differ.
    pub(super) fn note_event(&mut self, host: u64, device: DeviceTimestamp, exact: bool) {
        let DeviceTimestamp::At { device, at } = device else { return };
        let lag = at.saturating_sub_unsigned(host);
        self.has_event = true;
        if self.device != Some(device) {
            self.mixed |= self.device.is_some();
            (self.device, self.offset, self.newest) = (Some(device), lag, host);
        }
        self.offset = self.offset.saturating_add_unsigned(host.saturating_sub(self.newest) / DRIFT);
        self.newest = self.newest.max(host);
        if exact {
            self.offset = self.offset.min(lag);
        }
        let came = host.saturating_add(u64::try_from(lag.saturating_sub(self.offset)).unwrap_or(0));
        let from = host.max(self.until);
        if came > from {
            self.waited = self.waited.saturating_add(came - from);
            self.until = came;
        }
    }

    /// Ends a step that took `whole` at `end`, which the device reached at `device`.
    pub(super) fn end_step(&mut self, end: u64, whole: u64, device: DeviceTimestamp) -> DeviceStep {
        let remaining = self.until.saturating_sub(end);
        let waited = std::mem::replace(&mut self.waited, remaining).saturating_sub(remaining);
        let known = std::mem::take(&mut self.has_event) && !std::mem::take(&mut self.mixed);
        let duration = device.since(std::mem::replace(&mut self.ended, device));
        DeviceStep { duration: duration.filter(|_| known), idle: known.then(|| whole.saturating_sub(waited)) }
    }

    /// Forgets waits so far: they belong to no step.
    pub(super) fn skip(&mut self) {
        (self.waited, self.has_event, self.mixed, self.ended) = (0, false, false, DeviceTimestamp::None);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OFFSET: i64 = -1_000_000_000;

    fn at(host: u64) -> DeviceTimestamp {
        DeviceTimestamp::At { device: 0, at: host as i64 + OFFSET }
    }

    #[test]
    fn what_waits_is_no_gap() {
        let mut queue = DeviceQueue::default();
        // Reached as it is recorded: nothing was queued. Then 30 of work, that the device ends in the next step.
        queue.note_event(100, at(100), true);
        queue.note_event(150, at(170), true);
        queue.note_event(190, at(220), true);
        let end = |queue: &mut DeviceQueue, host, device| {
            let step = queue.end_step(host, 100, device);
            (step.duration, step.idle)
        };
        assert_eq!(end(&mut queue, 200, at(220)), (None, Some(100 - 20 - 10)));
        queue.note_event(300, at(300), true);
        assert_eq!(end(&mut queue, 300, at(300)), (Some(80), Some(100 - 20)));
        // No event, and nothing is known; one of another device, and it is not known whose gaps they are.
        assert_eq!(end(&mut queue, 400, DeviceTimestamp::None), (None, None));
        queue.note_event(450, at(450), true);
        queue.note_event(460, DeviceTimestamp::At { device: 1, at: 5 }, true);
        assert_eq!(end(&mut queue, 500, DeviceTimestamp::None), (None, None));
    }

    #[test]
    fn a_device_whose_clock_runs_away_is_followed() {
        let mut queue = DeviceQueue::default();
        let mut idle = Vec::new();
        for step in 1..=1_000_u64 {
            let host = step * 1_000_000;
            // 50 in a million faster, and always idle.
            queue.note_event(host, DeviceTimestamp::At { device: 0, at: (host + host / 20_000) as i64 }, true);
            idle.extend(queue.end_step(host, 1_000_000, DeviceTimestamp::None).idle);
        }
        assert_eq!(idle, vec![1_000_000; 1_000]);
    }

    proptest! {
        /// For a device that does one thing after the other, the reported bound is never below the true idle time.
        #[test]
        fn it_is_a_bound(work in prop::collection::vec((0..500_u64, 0..400_u64, any::<bool>(), 1..5_u64), 1..200)) {
            let mut queue = DeviceQueue::default();
            let (mut now, mut free, mut begin, mut idle) = (1_000_u64, 1_000_u64, 1_000_u64, 0_u64);
            let mut steps = Vec::new();
            for (pass, length, event, end) in work {
                now += pass;
                // Idle until now, if nothing is queued any more.
                idle += now.saturating_sub(free);
                free = free.max(now) + length;
                if event {
                    queue.note_event(now, at(free), true);
                }
                if end == 1 {
                    idle += now.saturating_sub(free);
                    free = free.max(now);
                    steps.push((queue.end_step(now, now - begin, DeviceTimestamp::None).idle, idle));
                    (begin, idle) = (now, 0);
                }
            }
            for (bound, truth) in steps {
                prop_assert!(bound.is_none_or(|bound| bound >= truth), "{bound:?} and it was {truth}");
            }
        }
    }
}
