//! [`Timeline`]: takes slices, instants and values in order of time, and gives them to a format so that slices nest.

use std::io::Result;

use super::format::TraceFormat;
use super::lanes::TrackLanes;
use super::model::{
    Counter, CounterId, Flow, InstantEvent, ProcessId, Slice, TraceProcess, Track, TrackId, TrackPoint,
};

/// Numbers of what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WrittenCounts {
    /// Slices.
    pub slices: u64,
    /// Values of counters.
    pub values: u64,
    /// Instants.
    pub instants: u64,
    /// Ends of arrows that come from another slice.
    pub arrows: u64,
    /// Slices that were not drawn, because too many of their track overlap.
    pub left_out: u64,
}

struct TrackRow {
    track: Track,
    lanes: TrackLanes,
    /// The track of each lane in the file; the first is the row's own.
    ids: Vec<TrackId>,
}

/// A file that is being written.
pub struct Timeline<'a> {
    format: Box<dyn TraceFormat + 'a>,
    processes: u32,
    /// By the number of the track: None for tracks of lanes beyond the first.
    rows: Vec<Option<TrackRow>>,
    counters: Vec<Counter>,
    /// Numbers of what was written so far.
    pub written: WrittenCounts,
}

impl<'a> Timeline<'a> {
    /// Writes `format`.
    pub fn new(format: Box<dyn TraceFormat + 'a>) -> Self {
        Self { format, processes: 0, rows: Vec::new(), counters: Vec::new(), written: WrittenCounts::default() }
    }

    /// Adds a process.
    ///
    /// # Errors
    /// Those of the output; likewise for the other methods.
    pub fn process(&mut self, process: &TraceProcess) -> Result<ProcessId> {
        let id = ProcessId(self.processes);
        self.processes += 1;
        self.format.process(id, process)?;
        Ok(id)
    }

    /// Adds a track.
    pub fn track(&mut self, track: Track) -> Result<TrackId> {
        let id = TrackId(self.rows.len() as u32);
        self.format.track(id, &track, 0)?;
        self.rows.push(Some(TrackRow { track, lanes: TrackLanes::default(), ids: vec![id] }));
        Ok(id)
    }

    /// Adds a counter.
    pub fn counter(&mut self, counter: Counter) -> Result<CounterId> {
        let id = CounterId(self.counters.len() as u32);
        self.format.counter(id, &counter)?;
        self.counters.push(counter);
        Ok(id)
    }

    /// Draws a slice. Those of a track have to come in order of `ts`, longer ones first. Returns where it was drawn; None where
    /// it was not, because too many of the track overlap, or there is no such track.
    pub fn slice(&mut self, slice: &Slice<'_>) -> Result<Option<TrackPoint>> {
        let Some(Some(row)) = self.rows.get_mut(slice.track.0 as usize) else { return Ok(None) };
        let end = slice.ts.saturating_add(slice.duration.max(0));
        let Some(placed) = row.lanes.find(slice.ts, end) else {
            self.written.left_out += 1;
            return Ok(None);
        };
        let process = row.track.process;
        if placed.lane >= row.ids.len() {
            let id = TrackId(self.rows.len() as u32);
            self.rows.push(None);
            let Some(Some(row)) = self.rows.get_mut(slice.track.0 as usize) else { return Ok(None) };
            row.ids.push(id);
            self.format.track(id, &row.track, placed.lane)?;
        }
        let Some(Some(row)) = self.rows.get_mut(slice.track.0 as usize) else { return Ok(None) };
        let track = row.ids[placed.lane];
        let mut ended = Ok(());
        row.lanes.end_before(placed.lane, placed.ts, |end| {
            if ended.is_ok() {
                ended = self.format.end(track, end);
            }
        });
        ended?;
        row.lanes.open(placed);
        let drawn = Slice { track, ts: placed.ts, duration: placed.end - placed.ts, ..*slice };
        self.format.begin(&drawn, process)?;
        self.written.slices += 1;
        let is_end = |flow: &&Flow| !matches!(flow, Flow::Begin(..) | Flow::Possible(_));
        self.written.arrows += slice.flows.iter().filter(is_end).count() as u64;
        Ok(Some(TrackPoint { track, ts: placed.ts }))
    }

    /// Draws an instant.
    pub fn instant(&mut self, instant: &InstantEvent<'_>) -> Result<()> {
        let Some(Some(row)) = self.rows.get(instant.track.0 as usize) else { return Ok(()) };
        self.written.instants += 1;
        self.format.instant(instant, row.track.process)
    }

    /// Draws the value of a counter from `ts` on.
    pub fn count(&mut self, id: CounterId, ts: i64, value: f64) -> Result<()> {
        let Some(counter) = self.counters.get(id.0 as usize) else { return Ok(()) };
        if !value.is_finite() {
            return Ok(());
        }
        self.written.values += 1;
        self.format.count(id, counter, ts, value)
    }

    /// Ends the open slices, and the file.
    pub fn finish(mut self) -> Result<WrittenCounts> {
        for row in self.rows.iter_mut().flatten() {
            for lane in 0..row.lanes.count() {
                let mut ended = Ok(());
                row.lanes.end_before(lane, i64::MAX, |end| {
                    if ended.is_ok() {
                        ended = self.format.end(row.ids[lane], end);
                    }
                });
                ended?;
            }
        }
        self.format.finish()?;
        Ok(self.written)
    }
}
