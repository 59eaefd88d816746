//! Converts events to points in time, on the background thread, in the order of the records that name them.
//!
//! Each point is that of the event before it on the device plus the time between the two. A record whose event has not occurred
//! holds back those after it: a device is at most as far behind as its queues are long. Where a device seems to have stopped,
//! records are analysed without their events, because they are then needed to find out why.

use probe_proto::TIMES_PER_SECOND;

use super::driver::{self, CudaDriver, EventState};
use super::pool::{self, DEVICES, FAILED};
use probe_trace::DeviceTimestamp;

/// What is known about a record's event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ResolvedEvent {
    /// The final result.
    As(DeviceTimestamp),
    /// The event has not occurred yet.
    NotYet,
}

/// The newest event that has occurred on each device, and its time (in milliseconds since the first one).
#[derive(Debug, Default)]
pub(crate) struct NewestEvents {
    newest: [Option<(u16, f64)>; DEVICES],
}

impl NewestEvents {
    /// Resolves the event that `mark` names. With `give_up`, one that has not occurred counts as unknown. A resolved event is
    /// free again, so each is resolved once. Called within [`super::relaxed`].
    pub(crate) fn resolve(&mut self, mark: u16, give_up: bool) -> ResolvedEvent {
        let slot = match mark {
            0 => return ResolvedEvent::As(DeviceTimestamp::None),
            FAILED => return ResolvedEvent::As(DeviceTimestamp::Unknown),
            mark => mark - 1,
        };
        let Some(driver) = driver::loaded() else { return ResolvedEvent::As(DeviceTimestamp::Unknown) };
        let device = pool::device(slot);
        match self.look(driver, device, slot) {
            EventState::Done(milliseconds) => {
                if let Some((before, _)) = self.newest[device].replace((slot, milliseconds)) {
                    pool::give_back(before);
                }
                let at = (milliseconds * 1e-3 * TIMES_PER_SECOND as f64).round() as i64;
                ResolvedEvent::As(DeviceTimestamp::At { device: device as u8, at })
            }
            EventState::NotYet if !give_up => ResolvedEvent::NotYet,
            EventState::NotYet => {
                pool::give_back(slot);
                ResolvedEvent::As(DeviceTimestamp::Unknown)
            }
            EventState::Failed => {
                // The driver does not tell which of the two events failed.
                pool::give_back(slot);
                if let Some((before, _)) = self.newest[device].take() {
                    pool::give_back(before);
                }
                ResolvedEvent::As(DeviceTimestamp::Unknown)
            }
        }
    }

    fn look(&self, driver: &CudaDriver, device: usize, slot: u16) -> EventState<f64> {
        match self.newest[device] {
            None => match driver.query(pool::event(slot)) {
                EventState::Done(()) => EventState::Done(0.0),
                EventState::NotYet => EventState::NotYet,
                EventState::Failed => EventState::Failed,
            },
            Some((before, at)) => match driver.elapsed(pool::event(before), pool::event(slot)) {
                EventState::Done(milliseconds) => EventState::Done(at + milliseconds),
                other => other,
            },
        }
    }
}
