//! Events to points in time, on the background thread, in the order of the records that name them.
//!
//! Each point is that of the event before it on the device plus what lies between the two. A record whose event has not
//! come keeps back those after it: a device is at most as far behind as its queues are long. Where it seems to have
//! stopped altogether, records go on without it, because what they say is what somebody will want to know then.

use probe_proto::TIMES_PER_SECOND;

use super::driver::{self, Driver, State};
use super::pool::{self, DEVICES, FAILED};
use probe_trace::Device;

/// What is known of a record's event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Resolved {
    /// All that there is to know.
    As(Device),
    /// It has not come yet.
    NotYet,
}

/// The newest event that has come, of each device, and when (in milliseconds since the first one).
#[derive(Debug, Default)]
pub(crate) struct Harvest {
    newest: [Option<(u16, f64)>; DEVICES],
}

impl Harvest {
    /// Looks at the event that `mark` names. With `give_up` one that has not come is not waited for. Then the event is
    /// free again; it is asked for once. Within [`super::relaxed`].
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
                // Which of the two is broken, nobody says.
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
