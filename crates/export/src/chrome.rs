//! Chrome's JSON, as torch.profiler writes it and as chrome://tracing, Perfetto, HolisticTraceAnalysis and TensorBoard's
//! plugin read it: an event a line, each at its time after a common base.

use std::collections::BTreeMap;
use std::io::{Result, Write};

use serde_json::value::RawValue;

use super::format::TraceFormat;
use super::model::{
    Argument, ArgumentValue, Counter, CounterId, Flow, FlowKind, InstantEvent, ProcessId, Slice, TraceProcess, Track,
    TrackId, TrackPoint,
};

/// The writer of a file.
pub struct ChromeWriter<W> {
    out: W,
    base: i64,
    /// Text after the events.
    end: String,
    is_first: bool,
    /// Whether numbers of processes and devices are as torch.profiler writes them: those of one process.
    as_profiler: bool,
    processes: Vec<u32>,
    devices: Vec<u32>,
    /// Process and thread number of each track: viewers take 32 bits, and 0 for something else.
    threads: Vec<(u32, u32)>,
    in_process: BTreeMap<u32, u32>,
    /// The thread of each track with what a profiler recorded, by process and name.
    profiled: BTreeMap<(u32, String), (u32, u32)>,
}

/// Numbers of devices are below this, as torch.profiler writes them.
const MAX_DEVICES: i64 = 512;

impl<W: Write> ChromeWriter<W> {
    /// Begins a file for viewers. Times are written from `base` on, which `is_unix` where it is from 1970. `about` are more
    /// values beside the events, each as JSON; they come after the events, because older Perfettos stop at a key before them
    /// that they do not know, and take `displayTimeUnit` for the unit of times.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W, base: i64, is_unix: bool, about: &[(&str, String)]) -> Result<Self> {
        out.write_all(b"{\"traceEvents\": [")?;
        let mut end = String::new();
        for (key, value) in head(base, is_unix, about) {
            end.push_str(&format!(",\n{}: {value}", serde_json::Value::from(key)));
        }
        Ok(Self::begun(out, base, end, false))
    }

    /// Begins a file of one process for readers of torch.profiler's traces: the values come first, and streams are tracks of
    /// their device, whose number is that of a process.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn as_profiler(mut out: W, base: i64, is_unix: bool, about: &[(&str, String)]) -> Result<Self> {
        write!(out, "{{\"displayTimeUnit\": \"ms\"")?;
        for (key, value) in head(base, is_unix, about) {
            write!(out, ",\n{}: {value}", serde_json::Value::from(key))?;
        }
        out.write_all(b",\n\"traceEvents\": [")?;
        Ok(Self::begun(out, base, String::new(), true))
    }

    fn begun(out: W, base: i64, end: String, as_profiler: bool) -> Self {
        Self {
            out,
            base,
            end,
            is_first: true,
            as_profiler,
            processes: Vec::new(),
            devices: Vec::new(),
            threads: Vec::new(),
            in_process: BTreeMap::new(),
            profiled: BTreeMap::new(),
        }
    }

    fn pid(&self, process: ProcessId) -> u32 {
        self.processes.get(process.0 as usize).copied().unwrap_or_default()
    }

    /// The process and thread number of a track.
    fn thread(&self, track: TrackId) -> (u32, u32) {
        self.threads.get(track.0 as usize).copied().unwrap_or_default()
    }

    /// The number of the device that a track is of, where it stands for a process.
    fn device(&mut self, track: &Track) -> Result<Option<u32>> {
        let device = track.device.filter(|device| self.as_profiler && (0..MAX_DEVICES).contains(device));
        let Some(device) = device.and_then(|device| u32::try_from(device).ok()) else { return Ok(None) };
        if !self.devices.contains(&device) {
            self.devices.push(device);
            let name = track.group.clone().unwrap_or_else(|| format!("device {device}"));
            self.metadata("process_name", (device, 0), ("name", ArgumentValue::Text(&name)))?;
            let order = ArgumentValue::Int(5_000_000 + i64::from(device));
            self.metadata("process_sort_index", (device, 0), ("sort_index", order))?;
        }
        Ok(Some(device))
    }

    /// Begins an event of the given phase.
    fn event(&mut self, phase: &str) -> Result<()> {
        self.out.write_all(if self.is_first { b"\n" } else { b",\n" })?;
        self.is_first = false;
        write!(self.out, "{{\"ph\":\"{phase}\"")
    }

    fn text(&mut self, key: &str, value: &str) -> Result<()> {
        write!(self.out, ",\"{key}\":")?;
        string(&mut self.out, value)
    }

    fn at(&mut self, (pid, tid): (u32, u32), ts: i64) -> Result<()> {
        write!(self.out, ",\"pid\":{pid},\"tid\":{tid},\"ts\":")?;
        microseconds(&mut self.out, ts.saturating_sub(self.base))
    }

    fn arguments(&mut self, arguments: &[Argument<'_>]) -> Result<()> {
        self.out.write_all(b",\"args\":{")?;
        for (index, (name, value)) in arguments.iter().enumerate() {
            if index > 0 {
                self.out.write_all(b",")?;
            }
            string(&mut self.out, name)?;
            self.out.write_all(b":")?;
            self.value(*value)?;
        }
        self.out.write_all(b"}}")
    }

    fn value(&mut self, value: ArgumentValue<'_>) -> Result<()> {
        match value {
            ArgumentValue::Json(text) if serde_json::from_str::<&RawValue>(text).is_ok() && !text.contains('\n') => {
                self.out.write_all(text.as_bytes())
            }
            ArgumentValue::Text(text) | ArgumentValue::Json(text) => string(&mut self.out, text),
            ArgumentValue::Int(number) => write!(self.out, "{number}"),
            // JSON has no NaN.
            ArgumentValue::Float(number) if !number.is_finite() => self.out.write_all(b"null"),
            ArgumentValue::Float(number) => write!(self.out, "{number}"),
            ArgumentValue::Bool(truth) => write!(self.out, "{truth}"),
        }
    }

    /// Writes metadata of a process or track: the name that viewers show, or the order.
    fn metadata(&mut self, name: &str, (pid, tid): (u32, u32), argument: Argument<'_>) -> Result<()> {
        self.event("M")?;
        write!(self.out, ",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{tid},\"ts\":0")?;
        self.arguments(&[argument])
    }

    fn arrow(&mut self, phase: &str, kind: FlowKind, id: u64, from: TrackPoint) -> Result<()> {
        let name = match kind {
            FlowKind::Launch => "ac2g",
            FlowKind::Backward => "fwdbwd",
            FlowKind::Collective => "collective",
        };
        self.event(phase)?;
        write!(self.out, ",\"id\":\"0x{id:x}\",\"cat\":\"{name}\",\"name\":\"{name}\"")?;
        if phase != "s" {
            self.out.write_all(b",\"bp\":\"e\"")?;
        }
        let thread = self.thread(from.track);
        self.at(thread, from.ts)?;
        self.out.write_all(b"}")
    }

    fn flow(&mut self, flow: Flow, here: TrackPoint) -> Result<()> {
        match flow {
            Flow::Begin(kind, id) => self.arrow("s", kind, id, here),
            Flow::Through(kind, id) => self.arrow("t", kind, id, here),
            Flow::End(kind, id) => self.arrow("f", kind, id, here),
            Flow::Possible(_) => Ok(()),
            Flow::From { kind, pair, from, .. } => {
                // An arrow goes forward in time, whichever of the two was written first.
                let (from, to) = if from.ts <= here.ts { (from, here) } else { (here, from) };
                self.arrow("s", kind, pair, from)?;
                self.arrow("f", kind, pair, to)
            }
        }
    }
}

impl<W: Write> TraceFormat for ChromeWriter<W> {
    fn process(&mut self, id: ProcessId, process: &TraceProcess) -> Result<()> {
        let own =
            process.pid.filter(|pid| self.as_profiler && *pid >= MAX_DEVICES).and_then(|pid| i32::try_from(pid).ok());
        let pid = match own {
            Some(pid) => pid as u32,
            None if self.as_profiler => 1_000_000 + id.0,
            None => id.0 + 1,
        };
        self.processes.push(pid);
        let thread = (pid, 0);
        self.metadata("process_name", thread, ("name", ArgumentValue::Text(&process.name)))?;
        self.metadata("process_sort_index", thread, ("sort_index", ArgumentValue::Int(i64::from(id.0))))
    }

    fn track(&mut self, id: TrackId, track: &Track, lane: usize) -> Result<()> {
        let pid = match self.device(track)? {
            Some(device) => device,
            None => self.pid(track.process),
        };
        debug_assert_eq!(self.threads.len(), id.0 as usize);
        if self.as_profiler && track.profiled {
            // Readers of torch.profiler's traces take what it recorded of a thread as one thread.
            let key = (pid, track.name.clone());
            if let Some(thread) = self.profiled.get(&key).filter(|_| lane > 0) {
                self.threads.push(*thread);
                return Ok(());
            }
            self.profiled.insert(key, (pid, self.in_process.get(&pid).copied().unwrap_or_default() + 1));
        }
        let count = self.in_process.entry(pid).or_default();
        *count += 1;
        let thread = (pid, *count);
        self.threads.push(thread);
        let group = track.group.as_ref().map(|group| format!("{group} ")).unwrap_or_default();
        let more = if lane > 0 { format!(" ({})", lane + 1) } else { String::new() };
        self.metadata("thread_name", thread, ("name", ArgumentValue::Text(&format!("{group}{}{more}", track.name))))?;
        self.metadata("thread_sort_index", thread, ("sort_index", ArgumentValue::Int(i64::from(track.order))))
    }

    fn counter(&mut self, _: CounterId, _: &Counter) -> Result<()> {
        Ok(())
    }

    fn begin(&mut self, slice: &Slice<'_>, _: ProcessId) -> Result<()> {
        let thread = self.thread(slice.track);
        self.event("X")?;
        self.text("cat", slice.category)?;
        self.text("name", slice.name)?;
        self.at(thread, slice.ts)?;
        self.out.write_all(b",\"dur\":")?;
        microseconds(&mut self.out, slice.duration)?;
        self.arguments(slice.arguments)?;
        let here = TrackPoint { track: slice.track, ts: slice.ts };
        slice.flows.iter().try_for_each(|flow| self.flow(*flow, here))
    }

    fn end(&mut self, _: TrackId, _: i64) -> Result<()> {
        Ok(())
    }

    fn instant(&mut self, instant: &InstantEvent<'_>, _: ProcessId) -> Result<()> {
        let thread = self.thread(instant.track);
        self.event("i")?;
        self.out.write_all(b",\"s\":\"t\"")?;
        self.text("cat", instant.category)?;
        self.text("name", instant.name)?;
        self.at(thread, instant.ts)?;
        self.arguments(instant.arguments)
    }

    fn count(&mut self, _: CounterId, counter: &Counter, ts: i64, value: f64) -> Result<()> {
        self.event("C")?;
        self.text("name", &counter.name)?;
        self.at((self.pid(counter.process), 0), ts)?;
        let unit = if counter.unit.is_empty() { "value" } else { counter.unit };
        self.arguments(&[(unit, ArgumentValue::Float(value))])
    }

    fn finish(&mut self) -> Result<()> {
        write!(self.out, "\n]{}}}\n", self.end)?;
        self.out.flush()
    }
}

/// The values beside the events.
fn head<'a>(base: i64, is_unix: bool, about: &[(&'a str, String)]) -> Vec<(&'a str, String)> {
    let mut values = vec![("schemaVersion", "1".to_owned())];
    values.extend(is_unix.then(|| ("baseTimeNanoseconds", base.to_string())));
    values.extend(about.iter().cloned());
    values
}

/// Writes a JSON string on one line.
fn string(out: &mut impl Write, text: &str) -> Result<()> {
    serde_json::to_writer(out, text).map_err(Into::into)
}

/// Writes nanoseconds as microseconds, without loss of digits.
fn microseconds(out: &mut impl Write, nanoseconds: i64) -> Result<()> {
    let (whole, rest) = (nanoseconds.unsigned_abs() / 1000, nanoseconds.unsigned_abs() % 1000);
    let sign = if nanoseconds < 0 { "-" } else { "" };
    if rest == 0 { write!(out, "{sign}{whole}") } else { write!(out, "{sign}{whole}.{rest:03}") }
}
