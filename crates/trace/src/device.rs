//! When a device reached records that have an event, and sums of the times between them. A sum is known as long as each of
//! its times is.

use super::persist::{Persist, PersistedBytes};

/// When a device reached a record, as far as that is known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum DeviceTimestamp {
    /// The record has to do with no device.
    #[default]
    None,
    /// A device may have reached the record, and it is not known when.
    Unknown,
    /// The device reached the record at this time, in units of [`clock`](super::clock) since some point of the device's own.
    At { device: u8, at: i64 },
}

impl DeviceTimestamp {
    /// The time from an earlier record to this one; None where it is not known, or the records are of two devices.
    pub(super) fn since(self, before: Self) -> Option<u64> {
        match (before, self) {
            (Self::At { device: a, at: from }, Self::At { device: b, at: to }) if a == b => {
                Some(u64::try_from(to.saturating_sub(from)).unwrap_or(0))
            }
            _ => None,
        }
    }
}

/// A sum of device times: None as soon as one of them is not known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceTime(Option<u64>);

impl Persist for DeviceTimestamp {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::None => 0_u8.put(to),
            Self::Unknown => 1_u8.put(to),
            Self::At { device, at } => {
                2_u8.put(to);
                device.put(to);
                at.put(to);
            }
        }
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        Some(match u8::get(from)? {
            0 => Self::None,
            1 => Self::Unknown,
            2 => Self::At { device: u8::get(from)?, at: i64::get(from)? },
            _ => return None,
        })
    }
}

impl Persist for DeviceTime {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        Option::get(from).map(Self)
    }
}

impl Default for DeviceTime {
    fn default() -> Self {
        Self(Some(0))
    }
}

impl DeviceTime {
    pub(super) fn add(&mut self, time: Option<u64>) {
        self.0 = self.0.zip(time).map(|(sum, time)| sum.saturating_add(time));
    }

    pub(super) fn sum(self) -> Option<u64> {
        self.0
    }
}
