//! The parts that one scan still has to read, shared by all of its partitions: a free partition takes the next part, and
//! filters that have become narrower meanwhile rule out others.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder};
use probe_store::{FileFooter, ParquetFile, RowBlock, RowLocation, SealedRows, Segment};

use super::prune::Pruner;
use super::scan_unit::{ScanUnit, UnitStatistics};

/// Footers that a scan keeps, for the other row groups of these files. One of a large file takes some hundred kilobytes.
const MAX_FOOTERS: usize = 4;

/// The part to read next.
pub(super) enum NextPart {
    /// Segments in memory, each with which of its batches may have rows for the query, where not all may.
    Segments {
        segments: Vec<(Arc<Segment>, Option<Vec<bool>>)>,
        /// The rows as a whole, where they do not grow any more.
        sealed: Option<Arc<SealedRows>>,
    },
    /// A row group.
    Group {
        file: Arc<ParquetFile>,
        number: usize,
        /// Whether it was on disk when the query began.
        counted: bool,
        /// What decides which of its rows are skipped.
        pruner: Pruner,
    },
}

impl NextPart {
    /// The part as a unit; None where its rows still grow.
    pub(super) fn unit(&self) -> Option<ScanUnit> {
        match self {
            Self::Segments { sealed, .. } => sealed.clone().map(ScanUnit::Sealed),
            Self::Group { file, number, .. } => Some(ScanUnit::Group(Arc::clone(file), *number)),
        }
    }
}

/// The queue of one scan.
#[derive(Debug)]
pub(super) struct ScanQueue {
    left: Mutex<RemainingParts>,
    /// Footers of the files that were opened last.
    footers: Mutex<VecDeque<FileFooter>>,
    counts: PartCounts,
}

#[derive(Debug)]
struct RemainingParts {
    /// Parts in reverse order: the next one is last.
    parts: Vec<ScanUnit>,
    pruner: Pruner,
    /// Files of which a row group has been read, by their addresses, which `files` keeps from being reused.
    opened: HashSet<usize>,
    files: Vec<Arc<ParquetFile>>,
}

/// The counts that EXPLAIN ANALYZE shows. Parts that are neither scanned nor pruned were not needed any more.
#[derive(Debug)]
struct PartCounts {
    segments_scanned: Count,
    segments_pruned: Count,
    files_scanned: Count,
    row_groups_scanned: Count,
    row_groups_pruned: Count,
    /// Rows of scanned row groups whose pages were not read.
    rows_skipped: Count,
    bytes_read: Count,
    /// Bytes of columns in files that were not read: of row groups that were skipped, and of columns that the query does not
    /// need.
    bytes_skipped: Gauge,
}

impl ScanQueue {
    /// A queue of `parts`, in this order, without those that the pruner rules out.
    pub(super) fn new(mut parts: Vec<ScanUnit>, mut pruner: Pruner, metrics: &ExecutionPlanMetricsSet) -> Self {
        let counter = |name: &'static str| MetricBuilder::new(metrics).global_counter(name);
        let files: HashSet<usize> = parts.iter().filter_map(ScanUnit::file).map(address).collect();
        let groups = parts.iter().filter(|part| part.file().is_some());
        let (groups, bytes) = (groups.clone().count(), groups.map(UnitStatistics::bytes).sum());
        counter("segments_total").add(parts.len() - groups);
        counter("files_total").add(files.len());
        counter("row_groups_total").add(groups);
        let counts = PartCounts {
            segments_scanned: counter("segments_scanned"),
            segments_pruned: counter("segments_pruned"),
            files_scanned: counter("files_scanned"),
            row_groups_scanned: counter("row_groups_scanned"),
            row_groups_pruned: counter("row_groups_pruned"),
            rows_skipped: counter("rows_skipped"),
            bytes_read: counter("bytes_read"),
            bytes_skipped: MetricBuilder::new(metrics).global_gauge("bytes_skipped"),
        };
        counts.bytes_skipped.add(bytes);
        counts.prune(&mut pruner, &mut parts);
        parts.reverse();
        let left = RemainingParts { parts, pruner, opened: HashSet::new(), files: Vec::new() };
        Self { left: Mutex::new(left), footers: Mutex::default(), counts }
    }

    /// Takes the next part.
    pub(super) fn next(&self) -> Option<NextPart> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let RemainingParts { parts, pruner, opened, files } = &mut *left;
        if pruner.has_news() {
            self.counts.prune(pruner, parts);
        }
        let part = parts.pop()?;
        let pruner = pruner.clone();
        let (segments, sealed) = match part {
            ScanUnit::Segment(segment) => (vec![segment], None),
            ScanUnit::Sealed(sealed) => match &*sealed.location() {
                RowLocation::Memory(segments) => (segments.clone(), Some(Arc::clone(&sealed))),
                RowLocation::File(file, number) => {
                    self.counts.segments_scanned.add(1);
                    return Some(NextPart::Group { file: Arc::clone(file), number: *number, counted: false, pruner });
                }
            },
            ScanUnit::Group(file, number) => {
                self.counts.row_groups_scanned.add(1);
                if opened.insert(address(&file)) {
                    files.push(Arc::clone(&file));
                    self.counts.files_scanned.add(1);
                }
                return Some(NextPart::Group { file, number, counted: true, pruner });
            }
        };
        self.counts.segments_scanned.add(1);
        drop(left);
        let needed = |segment: Arc<Segment>| {
            let needed = pruner.batches(&segment);
            (segment, needed)
        };
        Some(NextPart::Segments { segments: segments.into_iter().map(needed).collect(), sealed })
    }

    /// Counts the rows of the blocks that are not kept.
    pub(super) fn skip(&self, blocks: &[RowBlock], keep: &[bool]) {
        let skipped = blocks.iter().zip(keep).filter(|(_, keep)| !**keep).map(|(block, _)| block.rows);
        self.counts.rows_skipped.add(skipped.sum());
    }

    /// Keeps the footer of a file, of which more row groups may be read.
    pub(super) fn keep_footer(&self, footer: &FileFooter) {
        let mut footers = self.footers.lock().unwrap_or_else(PoisonError::into_inner);
        if !footers.contains(footer) {
            footers.push_back(footer.clone());
            if footers.len() > MAX_FOOTERS {
                footers.pop_front();
            }
        }
    }

    /// Counts bytes of columns that were read from a file. `counted`: the row group was on disk when the query began.
    pub(super) fn read(&self, bytes: usize, counted: bool) {
        self.counts.bytes_read.add(bytes);
        if counted {
            self.counts.bytes_skipped.sub(bytes);
        }
    }
}

impl PartCounts {
    fn prune(&self, pruner: &mut Pruner, parts: &mut Vec<ScanUnit>) {
        let count = |parts: &[ScanUnit]| {
            let groups = parts.iter().filter(|part| part.file().is_some()).count();
            (parts.len() - groups, groups)
        };
        let before = count(parts);
        pruner.prune(parts);
        let after = count(parts);
        self.segments_pruned.add(before.0 - after.0);
        self.row_groups_pruned.add(before.1 - after.1);
    }
}

fn address(file: &Arc<ParquetFile>) -> usize {
    Arc::as_ptr(file) as usize
}
