//! The parts of a timeline that rows are drawn on: processes, tracks and counters, which are made when a row needs one.

use std::collections::HashMap;
use std::io::Result;

use probe_export::{
    Argument, Counter, CounterId, Flow, InstantEvent, ProcessId, Slice, Timeline, TraceProcess, Track, TrackId,
    TrackPoint,
};

use super::choice::ExportChoice;
use super::pending_flows::PendingFlows;
use super::row::{CAPTURE, ExportRow, HOST, PID};

/// Which track of a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum TrackKey {
    Steps,
    Events,
    /// Records of the agent on a thread.
    Thread(i64),
    /// Modules of a thread that were timed on a device.
    DeviceTimed(i64),
    /// Rows of a capture on a thread.
    Captured(i64),
    /// A process group's collectives.
    Collectives(String),
    /// A stream of a device, or waits on it.
    Stream {
        device: Option<i64>,
        stream: Option<i64>,
        waits: bool,
    },
}

/// A process that is drawn.
struct DrawnProcess {
    id: ProcessId,
    host: String,
    /// None for the run itself and for a machine, which are no processes.
    pid: Option<i64>,
    capture: Option<String>,
    /// Added to the times of the process (ns).
    shift: i64,
    threads: Vec<i64>,
}

/// A timeline that rows are drawn on.
pub(super) struct TimelineDrawing<'a> {
    pub(crate) timeline: Timeline<'a>,
    pub(crate) links: PendingFlows,
    /// Whether steps are called as torch.profiler calls them.
    pub(crate) as_profiler: bool,
    shown: Vec<DrawnProcess>,
    /// Indexes into `shown` by process id.
    by_pid: HashMap<i64, Vec<usize>>,
    last: usize,
    tracks: HashMap<(usize, TrackKey), TrackId>,
    counters: HashMap<(usize, String), CounterId>,
}

impl<'a> TimelineDrawing<'a> {
    pub(super) fn new(mut timeline: Timeline<'a>, choice: &ExportChoice, as_profiler: bool) -> Result<Self> {
        let mut shown = Vec::new();
        for process in &choice.processes {
            shown.push(DrawnProcess {
                id: timeline.process(&TraceProcess { name: process.name(), pid: Some(process.pid) })?,
                host: process.host.clone(),
                pid: Some(process.pid),
                capture: process.capture.clone(),
                shift: process.shift,
                threads: Vec::new(),
            });
        }
        let mut by_pid: HashMap<i64, Vec<usize>> = HashMap::new();
        for (index, process) in choice.processes.iter().enumerate() {
            by_pid.entry(process.pid).or_default().push(index);
        }
        let (tracks, counters) = (HashMap::new(), HashMap::new());
        Ok(Self { timeline, links: PendingFlows::default(), as_profiler, shown, by_pid, last: 0, tracks, counters })
    }

    /// The process of a row; None for one that was not chosen.
    pub(super) fn process(&mut self, row: &ExportRow<'_>) -> Option<usize> {
        let (host, pid, capture) = (row.text(HOST)?, row.int(PID)?, row.text(CAPTURE));
        let is = |shown: &DrawnProcess| {
            let same = shown.pid == Some(pid) && shown.host == host;
            same && shown.capture.as_deref().is_none_or(|drawn| capture == Some(drawn))
        };
        if self.shown.get(self.last).is_some_and(is) {
            return Some(self.last);
        }
        self.last = self.by_pid.get(&pid)?.iter().copied().find(|index| is(&self.shown[*index]))?;
        Some(self.last)
    }

    /// The entry for the run itself or for a machine, which have rows and are no processes.
    pub(super) fn entry_without_process(&mut self, host: &str, name: &str) -> Result<usize> {
        if let Some(index) = self.shown.iter().position(|shown| shown.pid.is_none() && shown.host == host) {
            return Ok(index);
        }
        let shift = self.shown.iter().find(|shown| shown.host == host).map_or(0, |shown| shown.shift);
        let id = self.timeline.process(&TraceProcess { name: name.to_owned(), pid: None })?;
        self.shown.push(DrawnProcess {
            id,
            host: host.to_owned(),
            pid: None,
            capture: None,
            shift,
            threads: Vec::new(),
        });
        Ok(self.shown.len() - 1)
    }

    /// The time of `ts` on the common axis.
    pub(super) fn time(&self, process: usize, ts: i64) -> i64 {
        ts.saturating_add(self.shown[process].shift)
    }

    pub(super) fn slice(
        &mut self,
        process: usize,
        key: TrackKey,
        row: &ExportRow<'_>,
        (category, name): (&str, &str),
        arguments: &[Argument<'_>],
        flows: &[Flow],
    ) -> Result<Option<TrackPoint>> {
        let track = self.track(process, key)?;
        let (ts, duration) = (self.time(process, row.ts()), row.duration().unwrap_or_default());
        self.timeline.slice(&Slice { track, ts, duration, name, category, arguments, flows })
    }

    pub(super) fn instant(
        &mut self,
        process: usize,
        key: TrackKey,
        row: &ExportRow<'_>,
        (category, name): (&str, &str),
        arguments: &[Argument<'_>],
    ) -> Result<()> {
        let track = self.track(process, key)?;
        let ts = self.time(process, row.ts());
        self.timeline.instant(&InstantEvent { track, ts, name, category, arguments })
    }

    pub(super) fn count(
        &mut self,
        process: usize,
        row: &ExportRow<'_>,
        (name, unit): (&str, &'static str),
        value: Option<f64>,
    ) -> Result<()> {
        let Some(value) = value else { return Ok(()) };
        let key = (process, name.to_owned());
        let counter = match self.counters.get(&key) {
            Some(counter) => *counter,
            None => {
                let counter = Counter { process: self.shown[process].id, name: name.to_owned(), unit };
                let id = self.timeline.counter(counter)?;
                self.counters.insert(key, id);
                id
            }
        };
        self.timeline.count(counter, self.time(process, row.ts()), value)
    }

    fn track(&mut self, process: usize, key: TrackKey) -> Result<TrackId> {
        if let Some(track) = self.tracks.get(&(process, key.clone())) {
            return Ok(*track);
        }
        let shown = &mut self.shown[process];
        let mut thread = |thread: i64, more: &str, order: i32| {
            let number = shown.threads.iter().position(|known| *known == thread).unwrap_or_else(|| {
                shown.threads.push(thread);
                shown.threads.len() - 1
            });
            let name = if shown.pid == Some(thread) { "main thread".to_owned() } else { format!("thread {thread}") };
            (None, format!("{name}{more}"), 100 + 4 * number as i32 + order)
        };
        let (group, name, order) = match &key {
            TrackKey::Steps => (None, "steps".to_owned(), 0),
            TrackKey::Events => (None, "events".to_owned(), 1),
            TrackKey::Thread(number) => thread(*number, "", 0),
            TrackKey::DeviceTimed(number) => thread(*number, ", modules as long as on the device", 1),
            TrackKey::Captured(number) => thread(*number, ", captured", 2),
            TrackKey::Collectives(group) => (None, format!("collectives {group}"), 1_000_000),
            TrackKey::Stream { device, stream, waits } => {
                let device = device.map_or("device".to_owned(), |device| format!("GPU {device}"));
                let waits = if *waits { " waits" } else { "" };
                let stream = match stream {
                    Some(stream) if *stream >= 0 => format!("stream {stream}{waits}"),
                    Some(_) => format!("context{waits}"),
                    None => format!("no stream{waits}"),
                };
                (Some(device), stream, 2_000_000)
            }
        };
        let device = if let TrackKey::Stream { device, .. } = key { device } else { None };
        let profiled = matches!(key, TrackKey::Captured(_));
        let id = self.timeline.track(Track { process: shown.id, group, device, name, profiled, order })?;
        self.tracks.insert((process, key), id);
        Ok(id)
    }
}
