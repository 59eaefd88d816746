//! Takes events of TensorFlow's and JAX' `trace.json` as events of the planes that they were made of.

use std::borrow::Cow;
use std::collections::HashMap;

use probe_common::error::Result;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::collect::CollectedEvents;
use super::event::{ChromeEvent, text};
use super::xplane::event_stats::{EventStats, Stat, StatValue};
use super::xplane::events::PlaneEvent;
use super::xplane::lines::{Line, Plane};

/// The arguments of an event, unparsed.
#[derive(Debug, Deserialize)]
struct RawArguments<'a> {
    #[serde(borrow, default)]
    args: HashMap<Cow<'a, str>, &'a RawValue>,
}

impl CollectedEvents {
    /// Takes an event of a plane, whose text is `json`.
    ///
    /// # Errors
    /// Records can't be written.
    pub(crate) fn take_chrome_plane(
        &mut self,
        event: &ChromeEvent<'_>,
        (plane, line): (Plane, Line),
        json: &str,
    ) -> Result<()> {
        let Some((ts, end)) = self.interval(event) else { return Ok(()) };
        let arguments = serde_json::from_str(json).unwrap_or_else(|_| RawArguments { args: HashMap::new() });
        let named_stats: Vec<(Stat, Cow<'_, str>)> =
            arguments.args.iter().filter_map(|(name, raw)| Some((Stat::named(name)?, text(raw)))).collect();
        let mut stats = EventStats::default();
        for (stat, value) in &named_stats {
            stats.add(*stat, StatValue::Text(value));
        }
        let thread = if line == Line::Thread { self.thread(&event.pid, &event.tid) } else { None };
        self.take_plane_event(&PlaneEvent { plane, line, thread, name: &event.name, ts, end, stats })
    }
}
