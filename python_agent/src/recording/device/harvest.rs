//! Converts events to points in time, on the background thread, in the order of the records that name them.
//!
//! Each point is that of the event before it on the device plus the time between the two. A record whose event has not occurred
//! holds back those after it: a device is at most as far behind as its queues are long. Where a device seems to have stopped,
//! records are analysed without their events, because they are then needed to find out why.

use probe_proto::TIMES_PER_SECOND;

use super::driver::{self, Driver, State};
use super::pool::{self, DEVICES, FAILED};
use probe_trace::Device;

/// What is known about a record's event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Resolved {
    /// The final result.
    As(Device),
    /// The event has not occurred yet.
    NotYet,
}

/// The newest event that has occurred on each device, and its time (in milliseconds since the first one).
#[derive(Debug, Default)]
pub(crate) struct Harvest {
    newest: [Option<(u16, f64)>; DEVICES],
}

impl Harvest {
    /// Resolves the event that `mark` names. With `give_up`, one that has not occurred counts as unknown. A resolved event is
    /// free again, so each is resolved once. Called within [`super::relaxed`].
    pub(crate) fn resolve(&mut self, mark: u16, give_up: bool) -> Resolved {
        let slot = match mark {
            0 => return Resolved::As(Device::None),
            FAILED => return Resolved::As(Device::Unknown),
            mark => mark - 1,
        };
        let Some(driver) = driver::loaded() else { return Resolved::As(Device::Unknown) };
        let device = pool::device(slot);
        match self.look(driver, device, slot) {
            State::Done(milliseconds) => {
                if let Some((before, _)) = self.newest[device].replace((slot, milliseconds)) {
                    pool::give(before);
                }
                let at = (milliseconds * 1e-3 * TIMES_PER_SECOND as f64).round() as i64;
                Resolved::As(Device::At { device: device as u8, at })
            }
            State::NotYet if !give_up => Resolved::NotYet,
            State::NotYet => {
                pool::give(slot);
                Resolved::As(Device::Unknown)
            }
            State::Failed => {
                // The driver does not tell which of the two events failed.
                pool::give(slot);
                if let Some((before, _)) = self.newest[device].take() {
                    pool::give(before);
                }
                Resolved::As(Device::Unknown)
            }
        }
    }

    fn look(&self, driver: &Driver, device: usize, slot: u16) -> State<f64> {
        match self.newest[device] {
            None => match driver.query(pool::event(slot)) {
                State::Done(()) => State::Done(0.0),
                State::NotYet => State::NotYet,
                State::Failed => State::Failed,
            },
            Some((before, at)) => match driver.elapsed(pool::event(before), pool::event(slot)) {
                State::Done(milliseconds) => State::Done(at + milliseconds),
                other => other,
            },
        }
    }
}
