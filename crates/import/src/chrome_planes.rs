//! Planes and lines of TensorFlow's and JAX' `trace.json`, which is an XPlane trace as Chrome JSON: its events have no category,
//! and their kind is in the names of their process and thread.

use std::collections::HashMap;

use super::event::ChromeEvent;
use super::number::integer;
use super::xplane::lines::{Line, Plane};

/// Most processes and threads whose names are kept.
const MAX_NAMES: usize = 1 << 16;

/// Planes and lines, by process and thread.
#[derive(Debug, Default)]
pub(crate) struct ChromePlanes {
    planes: HashMap<String, Plane>,
    lines: HashMap<(String, String), String>,
}

impl ChromePlanes {
    /// Takes an event that names a process or thread.
    pub(crate) fn add_metadata(&mut self, event: &ChromeEvent<'_>) {
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

    /// The plane and line of an event, where its process has the name of a plane.
    pub(crate) fn line_of(&self, event: &ChromeEvent<'_>) -> Option<(Plane, Line)> {
        if self.planes.is_empty() || event.ph != "X" || !event.cat.is_empty() {
            return None;
        }
        let plane = *self.planes.get(&*event.pid)?;
        let name = self.lines.get(&(event.pid.to_string(), event.tid.to_string()));
        Some((plane, Line::of(plane, name.map_or("", |name| name), integer(&event.tid).unwrap_or(-1))))
    }
}
