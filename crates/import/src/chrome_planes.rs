//! Planes and lines of TensorFlow's and JAX' `trace.json`, which is an XPlane trace as Chrome JSON: its events have no category,
//! and what they are is in the names of their process and thread.

use std::borrow::Cow;
use std::collections::HashMap;

use probe_common::error::Result;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::collect::Collected;
use super::event::{Event, text};
use super::number::integer;
use super::xplane::{self, Line, Plane, Said, Stat, Value};

/// Processes and threads whose names are kept.
const MAX_NAMES: usize = 1 << 16;

/// Names by number.
#[derive(Debug, Default)]
pub(crate) struct ChromePlanes {
    planes: HashMap<String, Plane>,
    lines: HashMap<(String, String), String>,
}

/// The arguments of an event, as they stand there.
#[derive(Debug, Deserialize)]
struct Arguments<'a> {
    #[serde(borrow, default)]
    args: HashMap<Cow<'a, str>, &'a RawValue>,
}

impl ChromePlanes {
    /// Takes an event that names a process or thread.
    pub(crate) fn take(&mut self, event: &Event<'_>) {
        let Some(name) = event.args.name.as_deref() else { return };
        if self.planes.len() + self.lines.len() >= MAX_NAMES {
            return;
        }
        match &*event.name {
            "process_name" => match Plane::named(name) {
                Plane::Other => {}
                plane => drop(self.planes.insert(event.pid.to_string(), plane)),
            },
            "thread_name" => {
                self.lines.insert((event.pid.to_string(), event.tid.to_string()), name.to_owned());
            }
            _ => {}
        }
    }

    /// What an event is on, where its process is called as a plane is.
    pub(crate) fn of(&self, event: &Event<'_>) -> Option<(Plane, Line)> {
        if self.planes.is_empty() || event.ph != "X" || !event.cat.is_empty() {
            return None;
        }
        let plane = *self.planes.get(&*event.pid)?;
        let name = self.lines.get(&(event.pid.to_string(), event.tid.to_string()));
        Some((plane, Line::of(plane, name.map_or("", |name| name), integer(&event.tid).unwrap_or(-1))))
    }
}

impl Collected {
    /// Takes an event of a plane, whose text is `json`.
    ///
    /// # Errors
    /// Records can't be written.
    pub(crate) fn take_chrome_plane(
        &mut self,
        event: &Event<'_>,
        (plane, line): (Plane, Line),
        json: &str,
    ) -> Result<()> {
        let Some(ts) = event.ts else {
            self.leave_out("without a time", 1);
            return Ok(());
        };
        let end = ts + event.dur.unwrap_or(0).max(0);
        let arguments = serde_json::from_str(json).unwrap_or_else(|_| Arguments { args: HashMap::new() });
        let stats: Vec<(Stat, Cow<'_, str>)> =
            arguments.args.iter().filter_map(|(name, raw)| Some((Stat::named(name)?, text(raw)))).collect();
        let mut said = Said::default();
        for (stat, value) in &stats {
            said.take(*stat, Value::Text(value));
        }
        let thread = if line == Line::Thread { self.thread(&event.pid, &event.tid) } else { None };
        self.take_plane_event(&xplane::Event { plane, line, thread, name: &event.name, ts, end, said })
    }
}
