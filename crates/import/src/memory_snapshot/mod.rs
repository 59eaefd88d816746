//! Memory snapshots of torch's CUDA allocator, as `torch.cuda.memory._dump_snapshot()` writes them: pickles of plain data.

mod form;
mod history;
mod reckon;
mod rows;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use probe_common::error::{Error, Result};
use probe_store::ProcessIdentity;
use probe_store::row_files::RowSink;

use super::capture::{CaptureFacts, CaptureSource, ImportedCapture, RowCounts};
use super::collect::TEXT_REFUSED;
use super::head::FileHead;
use super::imported_process;
use super::input::TextInput;
use super::lenient::BoundedList;
use super::metadata::rank_in_name;
use super::pickle::{self, PartialPickle, PickleLimits, Value};
use super::records::known;
use super::rows::ProcessRows;
use super::steps::StepInterval;
use form::{HistoryEntry, MemorySnapshot, Segments, SnapshotSegment};
pub(crate) use history::AllocatorHistory;
use reckon::HeldBytes;

/// The format's name.
pub(crate) const NAME: &str = "memory-snapshot";
/// Limits of a snapshot, beside its events: a pickle by Python keeps three values of each event.
const LIMITS: PickleLimits = PickleLimits { values: 1 << 24, containers: 5 << 20, memo: 1 << 23 };
/// Most work of the visit at the end: 16 for a value, and 1 for a byte of text.
const MAX_WORK: u64 = 1 << 30;

/// The process that the rows belong to.
pub(crate) enum SnapshotOrigin<'a> {
    /// A file that a user imports.
    File { run: &'a str, capture: &'a str },
    /// A process of a live run, in which training waited `waited` seconds for the snapshot.
    Process { identity: &'a ProcessIdentity, capture: &'a str, waited: f64 },
}

/// Whether a file with this beginning is a snapshot.
pub(crate) fn recognises(head: &FileHead) -> bool {
    let says = |word: &str| memchr::memmem::find(&head.bytes, word.as_bytes()).is_some();
    pickle::is_pickle(&head.bytes) && (says("device_traces") || says("segment_type") || says("segments"))
}

/// Reads a file that a user imports, and writes its rows.
///
/// # Errors
/// The file is no snapshot, or rows can't be written.
pub(crate) fn import_file(
    reading: &CaptureSource<'_>,
    files: &mut dyn RowSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ImportedCapture> {
    import(reading.path, &SnapshotOrigin::File { run: reading.run, capture: reading.capture }, files, progress)
}

/// Reads a file and writes its rows.
///
/// # Errors
/// The file is no snapshot, or rows can't be written.
pub(crate) fn import(
    path: &Path,
    origin: &SnapshotOrigin<'_>,
    files: &mut dyn RowSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ImportedCapture> {
    let failed = |what: String| Error::failed(format!("cannot import {} as a memory snapshot: {what}", path.display()));
    let input = TextInput::open(path)?;
    let (file_bytes, consumed) = (input.file_bytes, input.consumed);
    let mut report = || progress(consumed.load(std::sync::atomic::Ordering::Relaxed), file_bytes);
    let mut history = AllocatorHistory::new(&mut report);
    let read = read(input.text, &mut history).map_err(failed)?;
    let snapshot = parse(&read).map_err(failed)?;
    let PartialPickle { stopped, text_bytes, .. } = &read;
    let (identity, capture, rank_source, waited) = match *origin {
        SnapshotOrigin::Process { identity, capture, waited } => (identity.clone(), capture, "run", Some(waited)),
        SnapshotOrigin::File { run, capture } => {
            let rank = path.file_name().and_then(|name| rank_in_name(name.to_str()?));
            let identity = imported_process::identity(run, None, None, rank, None);
            (identity, capture, if rank.is_some() { "name" } else { "none" }, None)
        }
    };
    let mut rows = ProcessRows::new(files, identity.clone());
    let is_whole = stopped.is_none() && history.more == 0 && history.unreadable == 0;
    let mut writing =
        SnapshotWriter { capture, is_whole, rows: &mut rows, counts: SnapshotCounts::default(), window: None };
    let steps = steps(&snapshot);
    writing.events(&snapshot, &mut history, &steps)?;
    writing.blocks(&snapshot)?;
    let SnapshotWriter { counts, window, .. } = writing;
    let left_out = [
        ("past the number of events", history.more),
        ("unreadable", history.unreadable),
        ("named twice", counts.named_twice),
        ("blocks past their number, or without a size or state", counts.blocks_left_out),
        ("pinned memory of the host", snapshot.host_segments.0 + snapshot.host_traces.0),
        ("annotations", snapshot.external_annotations.0),
        (TEXT_REFUSED, history.texts.refused + read.pickle.heap.texts.refused),
    ];
    let left_out: BTreeMap<Cow<'static, str>, u64> =
        left_out.into_iter().filter(|(_, count)| *count > 0).map(|(reason, count)| (reason.into(), count)).collect();
    let facts = CaptureFacts {
        tool: NAME,
        rank: identity.rank,
        rank_source,
        file: matches!(origin, SnapshotOrigin::File { .. }).then(|| path.display().to_string()),
        file_bytes,
        text_bytes: *text_bytes,
        has_date: true,
        window,
        steps: steps.len() as i64,
        first_step: steps.first().map(|step| step.number),
        last_step: steps.last().map(|step| step.number),
        events: counts.events as u64 + history.more + history.unreadable,
        rows: RowCounts { memory_events: counts.events, memory_blocks: counts.blocks, ..RowCounts::default() },
        left_out,
        problem: stopped.as_ref().map(ToString::to_string),
        waited,
        ..CaptureFacts::default()
    };
    let capture = facts.write(capture, &mut rows)?;
    rows.finish()?;
    Ok(capture)
}

/// Reads the pickle, whose events `history` takes out. A pickle that would run code is refused as a whole.
pub(crate) fn read(
    bytes: impl std::io::Read,
    history: &mut AllocatorHistory<'_>,
) -> std::result::Result<PartialPickle, String> {
    let read = pickle::read_as_far(bytes, LIMITS, history);
    match &read.stopped {
        Some(stopped) if stopped.is_code => Err(stopped.to_string()),
        _ => Ok(read),
    }
}

/// Converts a pickle to a snapshot.
pub(crate) fn parse(read: &PartialPickle) -> std::result::Result<MemorySnapshot<'_>, String> {
    let PartialPickle { pickle, stopped, .. } = read;
    let parsed = match pickle.root {
        Value::List(_) => pickle
            .heap
            .parse::<Segments<'_>>(pickle.root, MAX_WORK)
            .map(|segments| MemorySnapshot { segments: Some(segments), ..MemorySnapshot::default() }),
        root => pickle.heap.parse::<MemorySnapshot<'_>>(root, MAX_WORK),
    };
    let found = match parsed {
        Ok(found) if found.segments.is_some() || found.device_traces.is_some() => return Ok(found),
        Ok(_) => "it has neither segments nor device_traces".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(match stopped {
        Some(stopped) => stopped.to_string(),
        None => found,
    })
}

/// Steps that our agent added to a snapshot, by time.
fn steps(snapshot: &MemorySnapshot<'_>) -> Vec<StepInterval> {
    let entries = snapshot.steps.iter().flat_map(|steps| &steps.items);
    let mut steps: Vec<StepInterval> = entries.map(|&(number, ts, end)| StepInterval { ts, end, number }).collect();
    steps.sort_unstable();
    steps
}

/// Numbers of rows, and of what was left out.
#[derive(Debug, Default)]
struct SnapshotCounts {
    events: i64,
    blocks: i64,
    named_twice: u64,
    blocks_left_out: u64,
}

struct SnapshotWriter<'a, 'r, 'f> {
    capture: &'a str,
    /// Whether no event is missing.
    is_whole: bool,
    rows: &'r mut ProcessRows<'f>,
    counts: SnapshotCounts,
    window: Option<(i64, i64)>,
}

impl SnapshotWriter<'_, '_, '_> {
    fn events(
        &mut self,
        snapshot: &MemorySnapshot<'_>,
        history: &mut AllocatorHistory<'_>,
        steps: &[StepInterval],
    ) -> Result<()> {
        let Some(traces) = &snapshot.device_traces else { return Ok(()) };
        let mut seen = vec![false; history.len()];
        for (device, trace) in traces.items.iter().enumerate() {
            let mut numbers: Vec<u32> = Vec::with_capacity(trace.items.len());
            for event in &trace.items {
                match event {
                    HistoryEntry::Taken(number) => match seen.get_mut(*number as usize) {
                        Some(seen) if !*seen => {
                            *seen = true;
                            numbers.push(*number);
                        }
                        Some(_) => self.counts.named_twice += 1,
                        // The event was counted where it was dropped.
                        None => {}
                    },
                    HistoryEntry::Whole(entry) => numbers.extend(history.add(entry)),
                }
            }
            history.more += trace.more;
            let of_device = |segment: &&SnapshotSegment<'_>| segment.device.0 == Some(device as i64);
            let end = match &snapshot.segments {
                Some(BoundedList { items, more: 0 }) if self.is_whole && trace.more == 0 => {
                    reckon::at_end(items.iter().filter(of_device))
                }
                _ => HeldBytes::NOT_KNOWN,
            };
            let history = &*history;
            let records = || numbers.iter().filter_map(|number| history.get(*number));
            let held = reckon::held_after_each(records(), end);
            let events = rows::EventRows {
                capture: self.capture,
                device: &rows::device_name(device as i64),
                texts: &history.texts,
                steps,
            };
            for (record, held) in records().zip(held) {
                events.push(self.counts.events, record, held, self.rows)?;
                self.counts.events += 1;
                if let Some(ts) = known(record.ts) {
                    let window = self.window.get_or_insert((ts, ts));
                    *window = (window.0.min(ts), window.1.max(ts));
                }
            }
        }
        Ok(())
    }

    fn blocks(&mut self, snapshot: &MemorySnapshot<'_>) -> Result<()> {
        let Some(segments) = &snapshot.segments else { return Ok(()) };
        let ts = self.window.map(|(_, last)| last);
        for segment in &segments.items {
            let Some(blocks) = &segment.blocks else { continue };
            let mut next = segment.address.0.unwrap_or(0);
            for block in &blocks.items {
                let address = block.address().unwrap_or(next);
                match rows::push_block((self.capture, ts), segment, (block, address), self.rows)? {
                    true => self.counts.blocks += 1,
                    false => self.counts.blocks_left_out += 1,
                }
                next = address.saturating_add(block.size.0.unwrap_or(0));
            }
            self.counts.blocks_left_out += blocks.more;
        }
        Ok(())
    }
}
