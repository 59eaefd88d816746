//! Facts of a trace beside its events: the host, its devices and its begin.

use std::collections::BTreeSet;

use super::event_stats::StatValue;
use super::lines::Plane;
use super::names::{PlaneNames, value};

/// Most names of devices.
const MAX_DEVICES: usize = 1024;
/// Latest time, so that sums stay within 64 bits (nanoseconds).
const MAX_TIME: i64 = i64::MAX / 4;

/// Facts of a file beside its events.
#[derive(Debug, Default)]
pub(crate) struct XSpace {
    pub host: Option<String>,
    /// The begin of the trace (nanoseconds from 1970), from which times of events count.
    pub began: Option<i64>,
    devices: BTreeSet<String>,
}

impl XSpace {
    /// Takes a stat of a plane (`XStat`).
    pub(crate) fn add_stat(&mut self, plane: Plane, stat: &[u8], names: &PlaneNames) {
        let Some((number, raw)) = value(stat) else { return };
        match (plane, names.resolved(raw)) {
            (Plane::Environment, Some(StatValue::Integer(began))) if names.is_called(number, "profile_start_time") => {
                self.began = Some(began).filter(|began| (0..=MAX_TIME).contains(began));
            }
            (Plane::Gpu(_) | Plane::Tpu(_), Some(StatValue::Text(name)))
                if self.devices.len() < MAX_DEVICES && names.is_called(number, "device_type_string") =>
            {
                self.devices.insert(name.to_owned());
            }
            _ => {}
        }
    }

    /// Names of devices, with commas.
    pub(crate) fn devices(&self) -> Option<String> {
        let names: Vec<&str> = self.devices.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}
