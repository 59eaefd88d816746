//! The first pass over a trace: turns every event that a table has a row for into a record, and sorts the records.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::Path;

use probe_common::error::Result;
use probe_proto::bus_factor::bus_factor;

use super::blank_records::{Activity, device_event};
use super::chrome_planes::ChromePlanes;
use super::device_lines::DeviceLines;
use super::elements::{Element, Elements};
use super::event::Event;
use super::flops::flops;
use super::host_processes::{HostProcesses, OneProcess, Part};
use super::kinds::{self, Kind};
use super::mend::mended;
use super::metadata::Metadata;
use super::number::integer;
use super::records::{DeviceEvent, HostEvent, Launch, MemoryEvent, UNKNOWN, device, host};
use super::sorter::Sorter;
use super::step_ranges::StepRanges;
use super::steps::Step;
use super::text_table::TextTable;

/// Most threads and streams of hosts.
const MAX_THREADS: usize = 1 << 16;
/// The reason for text that is missing in its row.
pub(crate) const TEXT_REFUSED: &str = "text past the limit, left out of its row";
/// Most steps of a capture.
pub(crate) const MAX_STEPS: usize = 1 << 20;

/// A thread of the capture.
#[derive(Debug)]
pub(crate) struct Thread {
    /// The thread's number in the file; where that is no number, the number that its name ends with, else its index.
    pub number: i64,
    /// Whether modules were called on it.
    pub has_modules: bool,
}

/// The result of the first pass.
pub(crate) struct Collected {
    pub host: Sorter<HostEvent>,
    pub launches: Sorter<Launch>,
    pub devices: Sorter<DeviceEvent>,
    pub memory: Sorter<MemoryEvent>,
    pub texts: TextTable,
    pub threads: Vec<Thread>,
    pub steps: Vec<Step>,
    pub metadata: Metadata,
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
    only: Option<OneProcess>,
    /// Ranges that the user said are steps.
    step_ranges: Option<StepRanges>,
}

impl Collected {
    /// Reads the whole text, and keeps the events of its first `max_text` bytes. What stops it is in `problem`, and what came
    /// before is kept.
    ///
    /// # Errors
    /// Records can't be written to `directory`.
    pub(crate) fn read(text: impl Read, directory: &Path, max_text: u64, progress: &mut dyn FnMut()) -> Result<Self> {
        let part = Part { max_text, only: None, step_range: None };
        Self::read_part(text, directory, part, progress)
    }

    /// As [`Self::read`], for a part of the file.
    ///
    /// # Errors
    /// Records can't be written to `directory`.
    pub(crate) fn read_part(
        text: impl Read,
        directory: &Path,
        Part { max_text, only, step_range }: Part<'_>,
        progress: &mut dyn FnMut(),
    ) -> Result<Self> {
        let step_ranges = step_range.map(|pattern| StepRanges::new(Some(pattern)));
        let mut collected = Self { only, step_ranges, ..Self::empty(directory) };
        let mut elements = Elements::new(text);
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
            host: Sorter::new(directory),
            launches: Sorter::new(directory),
            devices: Sorter::new(directory),
            memory: Sorter::new(directory),
            texts: TextTable::default(),
            threads: Vec::new(),
            steps: Vec::new(),
            metadata: Metadata::default(),
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
        elements: &mut Elements<impl Read>,
        max_text: u64,
        progress: &mut dyn FnMut(),
    ) -> Result<()> {
        let collected = self;
        loop {
            match elements.next() {
                Ok(Some(Element::Event(text, offset))) => {
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
                Ok(Some(Element::Value(key, text))) => collected.metadata.take(key, text),
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
        let (event, json) = match Event::parse(&text) {
            Ok(event) => (event, &*text),
            Err(_) => {
                was_mended = true;
                fixed = mended(&text);
                match Event::parse(&fixed) {
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
            self.chrome_planes.take(&event);
            self.processes.take_name(&event);
        }
        if let Some(line) = self.chrome_planes.of(&event) {
            return self.take_chrome_plane(&event, line, json);
        }
        match kinds::kind(&event.ph, &event.cat, &event.name) {
            Kind::LeftOut(reason) => self.leave_out(reason, 1),
            Kind::Overhead => {
                let overhead = self.overhead.get_or_insert(0);
                *overhead = overhead.saturating_add(event.dur.nanoseconds().unwrap_or(0));
                self.leave_out("work of the profiler", 1);
            }
            Kind::Host(kind) => return self.take_host(kind, &event),
            Kind::Memory => return self.take_memory(&event),
            Kind::Device(kind) => return self.take_device(kind, &event),
        }
        Ok(())
    }

    /// Begin and end of an event; an event that has none is counted and gives None.
    pub(crate) fn interval(&mut self, event: &Event<'_>) -> Option<(i64, i64)> {
        event.interval().map_err(|reason| self.leave_out(reason, 1)).ok()
    }

    fn take_host(&mut self, kind: u8, event: &Event<'_>) -> Result<()> {
        let Some(thread) = self.thread(&event.pid, &event.tid) else {
            self.leave_out("past the number of threads", 1);
            return Ok(());
        };
        let Some((ts, end)) = self.interval(event) else { return Ok(()) };
        self.widen(ts, end);
        self.processes.count(event, kind);
        if kind == host::ANNOTATION {
            if let Some(ranges) = &mut self.step_ranges {
                ranges.take(self.texts.number(&event.name), &event.name, ts, end);
            } else if let Some(number) = kinds::step_number(&event.name)
                && self.steps.len() < MAX_STEPS
            {
                self.steps.push(Step { ts, end, number });
            }
        }
        if kind == host::MODULE || kind == host::FRAME && event.name.starts_with("nn.Module: ") {
            self.threads[thread as usize].has_modules = true;
        }
        let (args, number) = (&event.args, self.events as i64);
        let (external_id, id) = match kind {
            host::FRAME => (args.python_parent, args.python_id),
            host::LAUNCH => (args.external_id, args.correlation),
            _ => (args.external_id, args.sequence.filter(|sequence| *sequence >= 0)),
        };
        let texts = &mut self.texts;
        self.host.push(HostEvent {
            thread,
            kind,
            ts,
            end,
            name: texts.number(&event.name),
            number,
            external_id: external_id.unwrap_or(UNKNOWN),
            id: id.unwrap_or(UNKNOWN),
            shapes: texts.optional(args.input_shapes.map(compact).as_deref()),
            types: texts.optional(args.input_types.map(compact).as_deref()),
            call_stack: texts.optional(args.call_stack.as_deref()),
            collective: texts.optional(args.collective().as_deref()),
            flops: args.flops.or_else(|| flops(&event.name, args.input_shapes?, args.inputs)).unwrap_or(f64::NAN),
            record_function: args.record_function.unwrap_or(UNKNOWN),
            step_group: UNKNOWN,
        })?;
        if kind == host::LAUNCH
            && let Some(correlation) = args.correlation.filter(|correlation| *correlation != 0)
        {
            let graph = u8::from(event.name.contains("GraphLaunch"));
            self.launches.push(Launch { correlation, thread, ts, end, number, graph })?;
        }
        Ok(())
    }

    fn take_memory(&mut self, event: &Event<'_>) -> Result<()> {
        let args = &event.args;
        let Some(bytes) = args.memory_bytes.filter(|bytes| *bytes != i64::MIN) else {
            self.leave_out("memory without its size", 1);
            return Ok(());
        };
        let Some(thread) = self.thread(&event.pid, &event.tid) else {
            self.leave_out("past the number of threads", 1);
            return Ok(());
        };
        let Some((ts, end)) = self.interval(event) else { return Ok(()) };
        self.widen(ts, end);
        let unknown = |value: Option<i64>| value.unwrap_or(UNKNOWN);
        self.memory.push(MemoryEvent {
            thread,
            ts,
            number: self.events as i64,
            sorted: 0,
            device_type: args.device_type.unwrap_or(0),
            device: args.device_id.unwrap_or(0),
            address: unknown(args.address),
            bytes,
            allocated: unknown(args.total_allocated),
            reserved: unknown(args.total_reserved),
        })
    }

    fn take_device(&mut self, kind: u8, event: &Event<'_>) -> Result<()> {
        let Some((ts, end)) = self.interval(event) else { return Ok(()) };
        self.widen(ts, end);
        let args = &event.args;
        self.has_devices |= kind != device::SYNC;
        let elements = args.in_elements.max(args.out_elements);
        let bytes = args.bytes.or_else(|| elements?.checked_mul(kinds::dtype_bytes(args.dtype.as_deref()?)?));
        let speed = bytes.filter(|_| end > ts).map(|bytes| bytes as f64 / (end - ts) as f64);
        let busbw = match (&args.collective, args.group_size, speed) {
            (Some(collective), Some(ranks), Some(speed)) => speed * bus_factor(collective, ranks),
            _ => f64::NAN,
        };
        let communication =
            kind == device::KERNEL && (args.collective.is_some() || kinds::is_communication(&event.name));
        let (unknown, float) =
            (|value: Option<i64>| value.unwrap_or(UNKNOWN), |value: Option<f64>| value.unwrap_or(f64::NAN));
        let activity = Activity {
            ts,
            end,
            device: unknown(args.device.or_else(|| integer(&event.pid))),
            stream: unknown(args.stream.or_else(|| trailing_number(&event.tid))),
            correlation: unknown(args.correlation.filter(|correlation| *correlation != 0)),
        };
        let texts = &mut self.texts;
        self.devices.push(DeviceEvent {
            communication: u8::from(communication),
            name: texts.number(&event.name),
            external_id: unknown(args.external_id),
            grid: texts.optional(args.grid.map(compact).as_deref()),
            block: texts.optional(args.block.map(compact).as_deref()),
            registers: unknown(args.registers),
            shared_memory: unknown(args.shared_memory),
            blocks_per_sm: float(args.blocks_per_sm),
            warps_per_sm: float(args.warps_per_sm),
            occupancy: float(args.occupancy),
            bytes: unknown(bytes),
            bandwidth: float(args.bandwidth),
            collective: texts.optional(args.collective.as_deref()),
            group_name: texts.optional(args.group_name.as_deref()),
            group_ranks: texts.optional(args.group_ranks.as_deref()),
            group_size: unknown(args.group_size),
            dtype: texts.optional(args.dtype.as_deref()),
            seq: unknown(args.seq),
            elements: unknown(elements),
            busbw,
            graph: u8::from(args.graph_id.is_some_and(|graph| graph != 0)),
            ..device_event(&activity, kind)
        })
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
        self.threads.push(Thread { number, has_modules: false });
        self.thread_numbers.insert(key, index);
        Some(index)
    }
}

/// The number at the end of a text: 7 of "stream 7".
fn trailing_number(text: &str) -> Option<i64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_digit() || c == '-').len();
    text[digits..].parse().ok()
}

/// JSON without the white space between its values.
fn compact(json: &str) -> Cow<'_, str> {
    if !json.contains([' ', '\n', '\t', '\r']) {
        return Cow::Borrowed(json);
    }
    let (mut out, mut quoted, mut escaped) = (String::with_capacity(json.len()), false, false);
    for character in json.chars() {
        if quoted || !matches!(character, ' ' | '\n' | '\t' | '\r') {
            out.push(character);
        }
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
    }
    Cow::Owned(out)
}
