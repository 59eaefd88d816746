//! The first pass over a trace: turns every event that a table has a row for into a record, and sorts the records.

mod kineto_events;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::Path;

use probe_common::error::Result;

use super::chrome_planes::ChromePlanes;
use super::device_lines::DeviceLines;
use super::elements::{ElementReader, JsonElement};
use super::event::ChromeEvent;
use super::host_processes::{CollectOptions, HostProcesses, SelectedProcess};
use super::kinds::{self, EventKind};
use super::mend::mended;
use super::metadata::TraceMetadata;
use super::number::integer;
use super::records::{DeviceEvent, HostEvent, Launch, MemoryEvent};
use super::sorter::RecordSorter;
use super::step_ranges::StepRanges;
use super::steps::StepInterval;
use super::text_table::TextTable;

/// Most threads and streams of hosts.
const MAX_THREADS: usize = 1 << 16;
/// The reason for text that is missing in its row.
pub(crate) const TEXT_REFUSED: &str = "text past the limit, left out of its row";
/// Most steps of a capture.
pub(crate) const MAX_STEPS: usize = 1 << 20;

/// A thread of the capture.
#[derive(Debug)]
pub(crate) struct HostThread {
    /// The thread's number in the file; where that is no number, the number that its name ends with, else its index.
    pub number: i64,
    /// Whether modules were called on it.
    pub has_modules: bool,
}

/// The result of the first pass.
pub(crate) struct CollectedEvents {
    pub host: RecordSorter<HostEvent>,
    pub launches: RecordSorter<Launch>,
    pub devices: RecordSorter<DeviceEvent>,
    pub memory: RecordSorter<MemoryEvent>,
    pub texts: TextTable,
    pub threads: Vec<HostThread>,
    pub steps: Vec<StepInterval>,
    pub metadata: TraceMetadata,
    /// Elements of the array of events.
    pub events: u64,
    pub left_out: BTreeMap<Cow<'static, str>, u64>,
    pub mended: u64,
    /// The offset that the text was read to.
    pub text_bytes: u64,
    /// Why the text was not read to its end.
    pub problem: Option<String>,
    /// The profiler's own cost (nanoseconds), where the trace has it.
    pub overhead: Option<i64>,
    /// The begin of the first event and the end of the last.
    pub window: Option<(i64, i64)>,
    /// The process with the most host events.
    pub pid: i32,
    pub has_devices: bool,
    /// Steps and programs of device activities, which are on lines of their own.
    pub device_lines: DeviceLines,
    chrome_planes: ChromePlanes,
    thread_numbers: HashMap<(String, String), u32>,
    pub processes: HostProcesses,
    /// The process whose events are collected; None: those of all.
    only: Option<SelectedProcess>,
    /// Ranges that the user said are steps.
    step_ranges: Option<StepRanges>,
}

impl CollectedEvents {
    /// Reads the whole text, and keeps the events of its first `max_text` bytes. What stops it is in `problem`, and what came
    /// before is kept.
    ///
    /// # Errors
    /// Records can't be written to `directory`.
    pub(crate) fn read(text: impl Read, directory: &Path, max_text: u64, progress: &mut dyn FnMut()) -> Result<Self> {
        let part = CollectOptions { max_text, only: None, step_range: None };
        Self::read_part(text, directory, part, progress)
    }

    /// As [`Self::read`], for a part of the file.
    ///
    /// # Errors
    /// Records can't be written to `directory`.
    pub(crate) fn read_part(
        text: impl Read,
        directory: &Path,
        CollectOptions { max_text, only, step_range }: CollectOptions<'_>,
        progress: &mut dyn FnMut(),
    ) -> Result<Self> {
        let step_ranges = step_range.map(|pattern| StepRanges::new(Some(pattern)));
        let mut collected = Self { only, step_ranges, ..Self::empty(directory) };
        let mut elements = ElementReader::new(text);
        collected.read_elements(&mut elements, max_text, progress)?;
        collected.text_bytes = elements.offset();
        collected.finish_planes()?;
        if let Some(ranges) = collected.step_ranges.take() {
            collected.steps = ranges.finish();
        }
        collected.steps.sort_unstable();
        collected.pid = collected.processes.main().unwrap_or(-1);
        if collected.texts.refused > 0 {
            collected.leave_out(TEXT_REFUSED, collected.texts.refused);
        }
        Ok(collected)
    }

    /// An empty collection. Records that do not fit in memory are written to `directory`.
    pub(crate) fn empty(directory: &Path) -> Self {
        Self {
            host: RecordSorter::new(directory),
            launches: RecordSorter::new(directory),
            devices: RecordSorter::new(directory),
            memory: RecordSorter::new(directory),
            texts: TextTable::default(),
            threads: Vec::new(),
            steps: Vec::new(),
            metadata: TraceMetadata::default(),
            events: 0,
            left_out: BTreeMap::new(),
            mended: 0,
            text_bytes: 0,
            problem: None,
            overhead: None,
            window: None,
            pid: -1,
            has_devices: false,
            device_lines: DeviceLines::default(),
            chrome_planes: ChromePlanes::default(),
            thread_numbers: HashMap::new(),
            processes: HostProcesses::default(),
            only: None,
            step_ranges: None,
        }
    }

    /// Whether this is one process of a file that has several.
    pub(crate) fn is_part(&self) -> bool {
        self.only.is_some()
    }

    fn read_elements(
        &mut self,
        elements: &mut ElementReader<impl Read>,
        max_text: u64,
        progress: &mut dyn FnMut(),
    ) -> Result<()> {
        let collected = self;
        loop {
            match elements.next() {
                Ok(Some(JsonElement::Event(text, offset))) => {
                    collected.events += 1;
                    if offset + text.len() as u64 > max_text {
                        collected.leave_out("past the bytes of a capture", 1);
                    } else {
                        collected.event(text)?;
                    }
                    if collected.events.is_multiple_of(4096) {
                        progress();
                    }
                }
                Ok(Some(JsonElement::Value(key, text))) => collected.metadata.add(key, text),
                Ok(None) => return Ok(()),
                Err(stopped) => {
                    let (what, offset, event) = (stopped.what, stopped.offset, collected.events);
                    collected.problem = Some(format!("at byte {offset} of its text, after {event} events: {what}"));
                    return Ok(());
                }
            }
        }
    }

    /// The number of steps, and the numbers of the first and last: by ranges of the program, else by lines of devices.
    pub(crate) fn steps_found(&self) -> (i64, Option<i64>, Option<i64>) {
        let numbers: BTreeSet<i64> = match self.steps.is_empty() {
            true => self.device_lines.step_numbers().collect(),
            false => self.steps.iter().map(|step| step.number).collect(),
        };
        let steps = if self.steps.is_empty() { numbers.len() } else { self.steps.len() };
        (steps as i64, numbers.first().copied(), numbers.last().copied())
    }

    /// Whether no event was collected.
    pub(crate) fn is_empty(&self) -> bool {
        self.window.is_none()
    }

    /// Counts events that become no row.
    pub(crate) fn leave_out(&mut self, reason: impl Into<Cow<'static, str>>, events: u64) {
        *self.left_out.entry(reason.into()).or_default() += events;
    }

    /// Widens the window to include an event.
    pub(crate) fn widen(&mut self, ts: i64, end: i64) {
        let window = self.window.get_or_insert((ts, end));
        *window = (window.0.min(ts), window.1.max(end));
    }

    fn event(&mut self, bytes: &[u8]) -> Result<()> {
        let text = String::from_utf8_lossy(bytes);
        let mut was_mended = matches!(text, Cow::Owned(_));
        let fixed;
        let (event, json) = match ChromeEvent::parse(&text) {
            Ok(event) => (event, &*text),
            Err(_) => {
                was_mended = true;
                fixed = mended(&text);
                match ChromeEvent::parse(&fixed) {
                    Ok(event) => (event, &*fixed),
                    Err(_) => {
                        self.leave_out("unreadable", 1);
                        return Ok(());
                    }
                }
            }
        };
        if self.only.as_ref().is_some_and(|only| !only.has(&event)) {
            self.events -= 1;
            return Ok(());
        }
        self.mended += u64::from(was_mended);
        if event.ph == "M" {
            self.chrome_planes.add_metadata(&event);
            self.processes.take_name(&event);
        }
        if let Some(line) = self.chrome_planes.line_of(&event) {
            return self.take_chrome_plane(&event, line, json);
        }
        match kinds::event_kind(&event.ph, &event.cat, &event.name) {
            EventKind::LeftOut(reason) => self.leave_out(reason, 1),
            EventKind::Overhead => {
                let overhead = self.overhead.get_or_insert(0);
                *overhead = overhead.saturating_add(event.dur.nanoseconds().unwrap_or(0));
                self.leave_out("work of the profiler", 1);
            }
            EventKind::Host(kind) => return self.take_host(kind, &event),
            EventKind::Memory => return self.take_memory(&event),
            EventKind::Device(kind) => return self.take_device(kind, &event),
        }
        Ok(())
    }

    /// Begin and end of an event; an event that has none is counted and gives None.
    pub(crate) fn interval(&mut self, event: &ChromeEvent<'_>) -> Option<(i64, i64)> {
        event.interval().map_err(|reason| self.leave_out(reason, 1)).ok()
    }

    /// The index of a thread in `threads`; None past their number.
    pub(crate) fn thread(&mut self, pid: &str, tid: &str) -> Option<u32> {
        // Numbers of a table of texts would be nearly as long as the two texts.
        let key = (pid.to_owned(), tid.to_owned());
        if let Some(thread) = self.thread_numbers.get(&key) {
            return Some(*thread);
        }
        if self.threads.len() >= MAX_THREADS {
            return None;
        }
        let index = self.threads.len() as u32;
        let number = integer(tid).or_else(|| trailing_number(tid)).unwrap_or_else(|| i64::from(index));
        self.threads.push(HostThread { number, has_modules: false });
        self.thread_numbers.insert(key, index);
        Some(index)
    }
}

/// The number at the end of a text: 7 of "stream 7".
fn trailing_number(text: &str) -> Option<i64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').len();
    text[digits..].parse().ok()
}
