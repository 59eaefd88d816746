//! What a scan reads or skips as a whole: rows in memory, or a row group of a file.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics};
use probe_proto::table::Table;
use probe_store::{Batch, Identity, ParquetFile, Place, RowGroup, Sealed, Segment};

/// Smallest and largest value, where they are known and there are any; and how many values are NULL.
pub(super) type Range = (Option<(ScalarValue, ScalarValue)>, usize);

/// A unit of a scan: rows in memory or a row group of a file.
#[derive(Debug, Clone)]
pub(super) enum ScanUnit {
    /// In memory, and still growing there, or the collector's own.
    Segment(Arc<Segment>),
    /// In memory when the query began; it may be in a file alone when it is read.
    Sealed(Arc<Sealed>),
    /// The row group of this number.
    Group(Arc<ParquetFile>, usize),
}

impl ScanUnit {
    /// All row groups of a file.
    pub(super) fn of_file(file: &Arc<ParquetFile>) -> impl Iterator<Item = Self> {
        (0..file.groups.len()).map(|number| Self::Group(Arc::clone(file), number))
    }

    /// The process that all of its rows came from, where it is one and known.
    pub(super) fn identity(&self) -> Option<&Arc<Identity>> {
        match self {
            Self::Segment(segment) => segment.identity.as_ref(),
            Self::Sealed(sealed) => sealed.identity.as_ref(),
            Self::Group(file, number) => file.groups[*number].identity.as_ref(),
        }
    }

    /// The sum of the float column at `place`, where it is known and exact.
    pub(super) fn sum(&self, table: &Table, place: usize) -> Option<f64> {
        match self {
            Self::Segment(_) | Self::Sealed(_) => None,
            Self::Group(file, number) => file.groups[*number].sum(table, place),
        }
    }

    /// The file that it was in when the query began, and not in memory.
    pub(super) fn file(&self) -> Option<&Arc<ParquetFile>> {
        match self {
            Self::Segment(_) | Self::Sealed(_) => None,
            Self::Group(file, _) => Some(file),
        }
    }
}

/// What is known of rows without looking at them.
pub(super) trait Known {
    /// How many.
    fn rows(&self) -> usize;
    /// What they take where they are.
    fn bytes(&self) -> usize;
    /// What is known of the column at `place`, identity first.
    fn range(&self, table: &Table, place: usize) -> Range;
}

impl Known for RowGroup {
    fn rows(&self) -> usize {
        self.rows
    }
    fn bytes(&self) -> usize {
        self.column_bytes.iter().sum::<u64>() as usize
    }
    fn range(&self, table: &Table, place: usize) -> Range {
        Self::range(self, table, place)
    }
}

impl Known for ScanUnit {
    fn rows(&self) -> usize {
        match self {
            Self::Segment(segment) => segment.rows,
            Self::Sealed(sealed) => sealed.rows,
            Self::Group(file, number) => file.groups[*number].rows,
        }
    }
    fn bytes(&self) -> usize {
        match self {
            Self::Segment(segment) => segment.bytes,
            Self::Sealed(sealed) => match &*sealed.place() {
                Place::Memory(segments) => segments.iter().map(|segment| segment.bytes).sum(),
                Place::File(file, number) => Known::bytes(&file.groups[*number]),
            },
            Self::Group(file, number) => Known::bytes(&file.groups[*number]),
        }
    }
    fn range(&self, table: &Table, place: usize) -> Range {
        match self {
            Self::Segment(segment) => segment.range(place),
            Self::Sealed(sealed) => match &*sealed.place() {
                Place::Memory(segments) => {
                    together(segments.iter().map(|segment| (segment.range(place), segment.rows)))
                }
                Place::File(file, number) => Known::range(&file.groups[*number], table, place),
            },
            Self::Group(file, number) => Known::range(&file.groups[*number], table, place),
        }
    }
}

/// A batch of a segment: not a part, for they are many, but what is skipped when its segment is read.
pub(super) struct OfSegment<'a>(pub(super) &'a Segment, pub(super) &'a Batch);

impl Known for OfSegment<'_> {
    fn rows(&self) -> usize {
        self.1.rows
    }
    fn bytes(&self) -> usize {
        self.1.bytes
    }
    fn range(&self, _: &Table, place: usize) -> Range {
        self.0.batch_range(self.1, place)
    }
}

/// What is known of all `parts` together, of the columns at `places`: exact wherever each part's is.
pub(super) fn statistics(parts: &[ScanUnit], table: &Table, places: &[usize]) -> Statistics {
    let rows = parts.iter().map(Known::rows).sum();
    Statistics {
        num_rows: Precision::Exact(rows),
        total_byte_size: Precision::Inexact(parts.iter().map(Known::bytes).sum()),
        column_statistics: places.iter().map(|place| column(parts, table, *place, rows)).collect(),
    }
}

fn column(parts: &[ScanUnit], table: &Table, place: usize, rows: usize) -> ColumnStatistics {
    let (bounds, nulls) = together(parts.iter().map(|part| (part.range(table, place), part.rows())));
    let unknown = ColumnStatistics { null_count: Precision::Exact(nulls), ..ColumnStatistics::new_unknown() };
    match bounds {
        Some((low, high)) if nulls < rows => {
            ColumnStatistics { min_value: Precision::Exact(low), max_value: Precision::Exact(high), ..unknown }
        }
        _ => unknown,
    }
}

/// What is known of several together, given the number of rows of each: the bounds only where those of each are known
/// that has values.
fn together(ranges: impl Iterator<Item = (Range, usize)>) -> Range {
    let mut bounds: Option<(ScalarValue, ScalarValue)> = None;
    let mut nulls = 0;
    let mut known = true;
    for ((range, more), rows) in ranges {
        nulls += more;
        known &= range.is_some() || more == rows;
        bounds = match (bounds, range) {
            (None, range) => range,
            (bounds, None) => bounds,
            (Some((low, high)), Some((lower, higher))) => {
                Some((if lower < low { lower } else { low }, if higher > high { higher } else { high }))
            }
        };
    }
    (bounds.filter(|_| known), nulls)
}
