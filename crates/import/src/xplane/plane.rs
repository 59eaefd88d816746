//! Reads the planes of a file.

use std::collections::HashMap;
use std::io::{Read, Seek};

use probe_common::error::{Error, Result};

use super::event_stats::EventStats;
use super::events::PlaneEvent;
use super::lines::{Line, Plane};
use super::message::{Fields, Value as Raw, entry};
use super::names::PlaneNames;
use super::space::XSpace;
use super::wire::{FieldContent, WireError, WireReader};
use crate::collect::CollectedEvents;
use crate::step_ranges::StepRanges;

/// Most planes of a file, and most lines of a plane.
const MAX_PLANES: usize = 1 << 12;
const MAX_LINES: usize = 1 << 16;
/// Largest event and description (bytes). XLA's programs are in descriptions of a plane that is not read.
const MAX_MESSAGE: usize = 16 << 20;
/// Longest name of a plane or line that is read, and of the host (bytes).
const MAX_NAME: usize = 4 << 10;
/// Most nanoseconds either way, so that sums and differences stay within 64 bits.
const MAX_TIME: i128 = i64::MAX as i128 / 4;
/// Events between two reports of progress.
const REPORT: u64 = 4096;

/// The first fields of a line.
#[derive(Debug, Default)]
struct LineHead {
    id: i64,
    name: String,
    /// Nanoseconds.
    began: i64,
}

/// Reads planes.
pub(crate) struct PlaneReader<'a, R> {
    wire: WireReader<R>,
    collected: CollectedEvents,
    space: XSpace,
    /// The steps, where a pattern says which ranges are steps.
    steps: Option<StepRanges>,
    /// Threads by the number of a line of the host.
    threads: HashMap<i64, Option<u32>>,
    buffer: Vec<u8>,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a, R: Read + Seek> PlaneReader<'a, R> {
    pub(crate) fn new(
        file: R,
        collected: CollectedEvents,
        steps: Option<StepRanges>,
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        let (space, threads, buffer) = (XSpace::default(), HashMap::new(), Vec::new());
        Self { wire: WireReader::new(file), collected, space, steps, threads, buffer, progress }
    }

    /// Reads all planes. What stops that is in the problem, and what came before is kept.
    ///
    /// # Errors
    /// Records can't be written.
    pub(crate) fn read(mut self) -> Result<(CollectedEvents, XSpace)> {
        let end = self.wire.size().map_err(Error::caused)?;
        let mut planes = Vec::new();
        if let Err(stopped) = self.list_planes(end, &mut planes) {
            self.stop(&stopped);
        }
        for (begin, end) in planes {
            match self.plane(begin, end) {
                Ok(written) => written?,
                Err(stopped) => self.stop(&stopped),
            }
        }
        if let Some(cut) = self.wire.cut.take() {
            let events = self.collected.events;
            self.collected.problem.get_or_insert_with(|| format!("{cut}; {events} events were read"));
        }
        if let Some(steps) = self.steps {
            self.collected.steps = steps.finish();
        }
        Ok((self.collected, self.space))
    }

    fn stop(&mut self, stopped: &WireError) {
        let (what, offset, events) = (&stopped.what, stopped.offset, self.collected.events);
        self.collected.problem.get_or_insert_with(|| format!("at byte {offset}, after {events} events: {what}"));
    }

    /// Lists the offsets of planes, and takes the name of the host.
    fn list_planes(&mut self, end: u64, planes: &mut Vec<(u64, u64)>) -> Result<(), WireError> {
        while let Some((field, content)) = self.wire.field(end)? {
            match (field, content) {
                (1, FieldContent::Bytes(length)) if planes.len() < MAX_PLANES => {
                    planes.push((self.wire.offset(), self.wire.offset() + length));
                    self.wire.skip(content)?;
                }
                (1, FieldContent::Bytes(_)) => {
                    self.collected.leave_out("plane past their number", 1);
                    self.wire.skip(content)?;
                }
                (4, FieldContent::Bytes(length)) => {
                    if self.wire.bytes(length, MAX_NAME, &mut self.buffer)? {
                        let name = String::from_utf8_lossy(&self.buffer).into_owned();
                        self.space.host.get_or_insert(name);
                    }
                }
                _ => self.wire.skip(content)?,
            }
        }
        Ok(())
    }

    /// Reads a plane: first its name, the names of stats, and the offsets of its lines; then the descriptions of its events;
    /// then its lines.
    fn plane(&mut self, begin: u64, end: u64) -> Result<Result<()>, WireError> {
        let (mut plane, mut names, mut lines) = (Plane::Other, PlaneNames::default(), Vec::new());
        self.wire.seek(begin)?;
        while let Some((field, content)) = self.wire.field(end)? {
            match (field, content) {
                (2, FieldContent::Bytes(length)) => {
                    if self.wire.bytes(length, MAX_NAME, &mut self.buffer)? {
                        plane = Plane::named(&String::from_utf8_lossy(&self.buffer));
                    }
                }
                (3, FieldContent::Bytes(length)) => {
                    if lines.len() < MAX_LINES {
                        lines.push((self.wire.offset(), self.wire.offset() + length));
                    } else {
                        self.collected.leave_out("line past their number", 1);
                    }
                    self.wire.skip(content)?;
                }
                (5, FieldContent::Bytes(length)) => {
                    if self.wire.bytes(length, MAX_MESSAGE, &mut self.buffer)?
                        && let Some((number, message)) = entry(&self.buffer)
                    {
                        names.take_stat(number, message);
                    } else {
                        names.refused += 1;
                    }
                }
                _ => self.wire.skip(content)?,
            }
        }
        self.wire.seek(begin)?;
        while let Some((field, content)) = self.wire.field(end)? {
            match (field, content) {
                (4, FieldContent::Bytes(length)) if plane != Plane::Other => {
                    if self.wire.bytes(length, MAX_MESSAGE, &mut self.buffer)?
                        && let Some((number, message)) = entry(&self.buffer)
                    {
                        names.take_event(number, message);
                    } else {
                        names.refused += 1;
                    }
                }
                (6, FieldContent::Bytes(length)) => {
                    if self.wire.bytes(length, MAX_NAME, &mut self.buffer)? {
                        self.space.add_stat(plane, &self.buffer, &names);
                    }
                }
                _ => self.wire.skip(content)?,
            }
        }
        if names.refused > 0 {
            self.collected.leave_out("description of events past the limit", names.refused);
        }
        for (begin, end) in lines {
            if let Err(error) = self.line(plane, (begin, end), &names)? {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    /// Reads a line: first its name and begin, in any order of fields, then its events.
    fn line(&mut self, plane: Plane, (begin, end): (u64, u64), names: &PlaneNames) -> Result<Result<()>, WireError> {
        let mut head = LineHead::default();
        self.wire.seek(begin)?;
        while let Some((field, content)) = self.wire.field(end)? {
            match (field, content) {
                (1, FieldContent::Number(id)) => head.id = id as i64,
                (3, FieldContent::Number(began)) => head.began = began as i64,
                (2, FieldContent::Bytes(length)) => {
                    if self.wire.bytes(length, MAX_NAME, &mut self.buffer)? {
                        head.name = String::from_utf8_lossy(&self.buffer).into_owned();
                    }
                }
                _ => self.wire.skip(content)?,
            }
        }
        let line = Line::of(plane, &head.name, head.id);
        let thread = if line == Line::Thread { self.thread(head.id) } else { None };
        self.wire.seek(begin)?;
        let mut bytes = Vec::new();
        while let Some((field, content)) = self.wire.field(end)? {
            let (4, FieldContent::Bytes(length)) = (field, content) else {
                self.wire.skip(content)?;
                continue;
            };
            self.collected.events += 1;
            if self.collected.events.is_multiple_of(REPORT) {
                (self.progress)(self.wire.offset());
            }
            if !self.wire.bytes(length, MAX_MESSAGE, &mut bytes)? {
                self.collected.leave_out("event larger than 16 MiB", 1);
                continue;
            }
            if let Err(error) = self.event((plane, line, thread), head.began, &bytes, names) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    fn thread(&mut self, id: i64) -> Option<u32> {
        let collected = &mut self.collected;
        *self.threads.entry(id).or_insert_with(|| collected.thread("", &id.to_string()))
    }

    fn event(
        &mut self,
        (plane, line, thread): (Plane, Line, Option<u32>),
        began: i64,
        message: &[u8],
        names: &PlaneNames,
    ) -> Result<()> {
        let (mut number, mut offset, mut duration, mut is_sum) = (0, 0, 0, false);
        let mut fields = Fields::of(message);
        for (field, value) in &mut fields {
            match (field, value) {
                (1, Raw::Number(value)) => number = value as i64,
                (2, Raw::Number(value)) => offset = value as i64,
                (3, Raw::Number(value)) => duration = value as i64,
                (5, Raw::Number(_)) => is_sum = true,
                _ => {}
            }
        }
        if fields.broken {
            self.collected.leave_out("unreadable", 1);
            return Ok(());
        }
        if is_sum {
            self.collected.leave_out("sum over several occurrences, without a time", 1);
            return Ok(());
        }
        let Some((ts, end)) = interval(began, offset, duration) else {
            self.collected.leave_out("without a time", 1);
            return Ok(());
        };
        let description = names.event(number);
        let mut stats = description.map_or_else(EventStats::default, |description| description.stats());
        for (field, value) in Fields::of(message) {
            if let (4, Raw::Bytes(stat)) = (field, value)
                && let Some((stat, value)) = names.stat(stat)
            {
                stats.add(stat, value);
            }
        }
        let name = description.map_or("(no name in the file)", |description| &description.name);
        if line == Line::Thread
            && let Some(steps) = &mut self.steps
        {
            let named = self.collected.texts.number(name);
            steps.add(named, name, ts, end);
        }
        self.collected.take_plane_event(&PlaneEvent { plane, line, thread, name, ts, end, stats })
    }
}

/// Begin and end of an event (nanoseconds). Both are rounded down, so that an event within another stays there.
fn interval(began: i64, offset: i64, duration: i64) -> Option<(i64, i64)> {
    let offset = i128::from(offset);
    let ts = i128::from(began) + offset.div_euclid(1000);
    let end = i128::from(began) + (offset + i128::from(duration.max(0))).div_euclid(1000);
    (ts.abs() <= MAX_TIME && end.abs() <= MAX_TIME).then_some((ts as i64, end as i64))
}
