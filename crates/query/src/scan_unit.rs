//! The unit that a scan reads or skips as a whole: rows in memory, or a row group of a file.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics};
use probe_proto::table::Table;
use probe_store::{ParquetFile, ProcessIdentity, RowBlock, RowGroup, RowLocation, SealedRows, Segment, StoredBatch};

/// Smallest and largest value, where they are known and the column has values; and the number of values that are NULL.
pub(super) type ColumnBounds = (Option<(ScalarValue, ScalarValue)>, usize);

/// A unit of a scan: rows in memory or a row group of a file.
#[derive(Debug, Clone)]
pub(super) enum ScanUnit {
    /// Rows in memory that still grow, or rows of the collector itself.
    Segment(Arc<Segment>),
    /// Rows that were in memory when the query began. They may be in a file only when they are read.
    Sealed(Arc<SealedRows>),
    /// The row group of this number.
    Group(Arc<ParquetFile>, usize),
}

impl ScanUnit {
    /// All row groups of a file.
    pub(super) fn of_file(file: &Arc<ParquetFile>) -> impl Iterator<Item = Self> {
        (0..file.groups.len()).map(|number| Self::Group(Arc::clone(file), number))
    }

    /// The process that all rows of the unit came from, where it is one process and known.
    pub(super) fn identity(&self) -> Option<&Arc<ProcessIdentity>> {
        match self {
            Self::Segment(segment) => segment.identity.as_ref(),
            Self::Sealed(sealed) => sealed.identity.as_ref(),
            Self::Group(file, number) => file.groups[*number].identity.as_ref(),
        }
    }

    /// The sum of the float column at `index` in the table, where it is known and exact.
    pub(super) fn sum(&self, table: &Table, index: usize) -> Option<f64> {
        match self {
            Self::Segment(segment) => segment.sum(index),
            Self::Sealed(sealed) => match &*sealed.location() {
                RowLocation::Memory(segments) => segments.iter().map(|segment| segment.sum(index)).sum(),
                RowLocation::File(file, number) => file.groups[*number].sum(table, index),
            },
            Self::Group(file, number) => file.groups[*number].sum(table, index),
        }
    }

    /// The file of the unit, where it was not in memory when the query began.
    pub(super) fn file(&self) -> Option<&Arc<ParquetFile>> {
        match self {
            Self::Segment(_) | Self::Sealed(_) => None,
            Self::Group(file, _) => Some(file),
        }
    }
}

/// Statistics of rows that are known without reading the rows.
pub(super) trait UnitStatistics {
    /// Number of rows.
    fn rows(&self) -> usize;
    /// Bytes that the rows take in memory or in their file.
    fn bytes(&self) -> usize;
    /// Bounds and NULLs of the column at `index` in the table, whose first columns are the identity.
    fn range(&self, table: &Table, index: usize) -> ColumnBounds;
}

impl UnitStatistics for RowGroup {
    fn rows(&self) -> usize {
        self.rows
    }
    fn bytes(&self) -> usize {
        self.column_bytes.iter().sum::<u64>() as usize
    }
    fn range(&self, table: &Table, index: usize) -> ColumnBounds {
        Self::range(self, table, index)
    }
}

impl UnitStatistics for ScanUnit {
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
            Self::Sealed(sealed) => match &*sealed.location() {
                RowLocation::Memory(segments) => segments.iter().map(|segment| segment.bytes).sum(),
                RowLocation::File(file, number) => UnitStatistics::bytes(&file.groups[*number]),
            },
            Self::Group(file, number) => UnitStatistics::bytes(&file.groups[*number]),
        }
    }
    fn range(&self, table: &Table, index: usize) -> ColumnBounds {
        match self {
            Self::Segment(segment) => segment.range(index),
            Self::Sealed(sealed) => match &*sealed.location() {
                RowLocation::Memory(segments) => {
                    together(segments.iter().map(|segment| (segment.range(index), segment.rows)))
                }
                RowLocation::File(file, number) => UnitStatistics::range(&file.groups[*number], table, index),
            },
            Self::Group(file, number) => UnitStatistics::range(&file.groups[*number], table, index),
        }
    }
}

/// What decides whether rows are skipped.
pub(super) trait RowBounds {
    /// Number of rows.
    fn row_count(&self) -> usize;
    /// Smallest and largest value of the column at `index` in the table, where they are known and it has values.
    fn bounds(&self, table: &Table, index: usize) -> Option<(ScalarValue, ScalarValue)>;
    /// Number of values of the column that are NULL, where it is known.
    fn nulls(&self, table: &Table, index: usize) -> Option<usize>;
}

impl<Unit: UnitStatistics> RowBounds for Unit {
    fn row_count(&self) -> usize {
        UnitStatistics::rows(self)
    }
    fn bounds(&self, table: &Table, index: usize) -> Option<(ScalarValue, ScalarValue)> {
        self.range(table, index).0
    }
    fn nulls(&self, table: &Table, index: usize) -> Option<usize> {
        Some(self.range(table, index).1)
    }
}

/// A block of rows of a row group.
pub(super) struct RowGroupBlock<'a>(pub(super) &'a RowGroup, pub(super) &'a RowBlock);

impl RowBounds for RowGroupBlock<'_> {
    fn row_count(&self) -> usize {
        self.1.rows
    }
    fn bounds(&self, table: &Table, index: usize) -> Option<(ScalarValue, ScalarValue)> {
        self.1.range(self.0, table, index).0
    }
    fn nulls(&self, table: &Table, index: usize) -> Option<usize> {
        self.1.range(self.0, table, index).1
    }
}

/// A batch of a segment. Batches are too many to be parts, but a scan skips them when it reads their segment.
pub(super) struct SegmentBatch<'a>(pub(super) &'a Segment, pub(super) &'a StoredBatch);

impl UnitStatistics for SegmentBatch<'_> {
    fn rows(&self) -> usize {
        self.1.rows
    }
    fn bytes(&self) -> usize {
        self.1.bytes
    }
    fn range(&self, _: &Table, index: usize) -> ColumnBounds {
        self.0.batch_range(self.1, index)
    }
}

/// Statistics of all `parts` together, for the columns at `table_columns`: exact wherever each part's are.
pub(super) fn statistics(parts: &[ScanUnit], table: &Table, table_columns: &[usize]) -> Statistics {
    let rows = parts.iter().map(UnitStatistics::rows).sum();
    Statistics {
        num_rows: Precision::Exact(rows),
        total_byte_size: Precision::Inexact(parts.iter().map(UnitStatistics::bytes).sum()),
        column_statistics: table_columns.iter().map(|index| column(parts, table, *index, rows)).collect(),
    }
}

fn column(parts: &[ScanUnit], table: &Table, index: usize, rows: usize) -> ColumnStatistics {
    let (bounds, nulls) = together(parts.iter().map(|part| (part.range(table, index), part.rows())));
    let unknown = ColumnStatistics { null_count: Precision::Exact(nulls), ..ColumnStatistics::new_unknown() };
    match bounds {
        Some((low, high)) if nulls < rows => {
            ColumnStatistics { min_value: Precision::Exact(low), max_value: Precision::Exact(high), ..unknown }
        }
        _ => unknown,
    }
}

/// The combined range of several units, from the range and number of rows of each. There are bounds only where they are known of
/// each unit that has values.
fn together(ranges: impl Iterator<Item = (ColumnBounds, usize)>) -> ColumnBounds {
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
