//! A segment: rows of one table from one process, which a query reads or skips as a whole.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use datafusion::common::ScalarValue;
use probe_proto::table::Table;

use super::cells::ColumnCells;
use super::column_range::ColumnRange;
use super::identity::{BatchOrigin, ProcessIdentity};
use super::packed::{PackedColumn, PackedRows};
use super::rows::{BatchRows, StoredBatch};
use super::schema::identity_columns;
use super::strings::StringDictionary;
use super::sums::{self, ExactSums};

/// A batch with fewer rows than this is merged with its neighbours: a scan has a cost for each batch, and agents that send
/// ten times a second send small ones. Each merge about doubles a batch, so that a row is copied a handful of times at most.
const MAX_SMALL_ROWS: usize = 2048;

/// Rows of one table from one process and one connection, immutable.
#[derive(Debug, Clone)]
pub struct Segment {
    pub table: &'static Table,
    /// None for tables that the collector itself fills.
    pub identity: Option<Arc<ProcessIdentity>>,
    /// None for tables that the collector itself fills, too.
    pub origin: Option<BatchOrigin>,
    pub batches: Vec<Arc<StoredBatch>>,
    pub rows: usize,
    /// Bytes of the rows in memory, without the strings, which belong to the connection.
    pub bytes: usize,
    /// Number of the segment's first append, which stays the same while it grows.
    pub id: u64,
    /// When the first append was.
    pub began: Instant,
    /// Number of the newest append in it.
    pub newest: u64,
    ranges: Vec<ColumnRange>,
    /// The exact sums of float columns.
    pub(super) sums: ExactSums,
    strings: StringDictionary,
}

impl Segment {
    /// A segment of `rows`.
    pub fn new(
        identity: Option<Arc<ProcessIdentity>>,
        origin: Option<BatchOrigin>,
        rows: BatchRows,
        number: u64,
    ) -> Self {
        let table = rows.table();
        let last_seq = origin.as_ref().map_or(0, |origin| origin.last_seq);
        let empty = Self {
            table,
            identity,
            origin,
            batches: Vec::new(),
            rows: 0,
            bytes: 0,
            id: number,
            began: Instant::now(),
            newest: number,
            ranges: vec![ColumnRange::EMPTY; table.columns.len()],
            sums: rows.batch.sums.iter().map(|(column, _)| (*column, 0)).collect(),
            strings: rows.strings.clone(),
        };
        empty.with_rows(rows, last_seq, number)
    }

    /// This segment with more rows at its end, which must fit ([`Segment::takes`]).
    pub fn with_rows(&self, rows: BatchRows, last_seq: u64, number: u64) -> Self {
        let mut batches = Vec::with_capacity(self.batches.len() + 1);
        let sums = sums::add(&self.sums, &rows.batch.sums);
        batches.extend(self.batches.iter().cloned());
        batches.push(Arc::new(rows.batch));
        merge_small(self.table, &mut batches);
        Self {
            table: self.table,
            identity: self.identity.clone(),
            origin: self.origin.clone().map(|origin| BatchOrigin { last_seq, ..origin }),
            rows: batches.iter().map(|batch| batch.rows).sum(),
            bytes: batches.iter().map(|batch| batch.bytes).sum(),
            batches,
            id: self.id,
            began: self.began,
            newest: number,
            ranges: self.ranges.iter().zip(rows.ranges).map(|(range, more)| range.union(more)).collect(),
            sums,
            strings: self.strings.clone(),
        }
    }

    /// Whether rows of this process and connection belong here.
    pub fn takes(&self, identity: &ProcessIdentity, rows: &BatchRows) -> bool {
        self.identity.as_deref() == Some(identity) && self.strings.is_same(&rows.strings)
    }

    /// Ranges of the table's own columns.
    pub fn ranges(&self) -> &[ColumnRange] {
        &self.ranges
    }

    /// What is known of the column with this index (identity first): smallest and largest value, and number of NULLs.
    pub fn range(&self, index: usize) -> (Option<(ScalarValue, ScalarValue)>, usize) {
        self.range_of(&self.ranges, self.rows, index)
    }

    /// The bounds and the number of NULLs of the column with this index (identity first) in one batch of the segment.
    pub fn batch_range(&self, batch: &StoredBatch, index: usize) -> (Option<(ScalarValue, ScalarValue)>, usize) {
        self.range_of(&batch.ranges, batch.rows, index)
    }

    /// The sum of the float column with this index (identity first), where it is exact in any order of adding.
    pub fn sum(&self, index: usize) -> Option<f64> {
        sums::value(&self.sums, index.checked_sub(identity_columns(self.table))?)
    }

    fn range_of(
        &self,
        ranges: &[ColumnRange],
        rows: usize,
        index: usize,
    ) -> (Option<(ScalarValue, ScalarValue)>, usize) {
        match index.checked_sub(identity_columns(self.table)) {
            Some(own) => (ranges[own].bounds(self.table.columns[own].kind), ranges[own].nulls),
            None => match self.identity_value(index) {
                value if value.is_null() => (None, rows),
                value => (Some((value.clone(), value)), 0),
            },
        }
    }

    /// `length` rows of a batch from `offset` on, with the columns of these indices.
    pub fn packed(
        &self,
        batch: &StoredBatch,
        offset: usize,
        length: usize,
        indices: &[usize],
    ) -> Result<PackedRows, ArrowError> {
        let column = |index: &usize| self.column(batch, offset, length, *index);
        Ok(PackedRows { rows: length, columns: indices.iter().map(column).collect::<Result<_, _>>()? })
    }

    /// `length` rows of a batch from `offset` on as SQL sees them. The columns of these indices are those of `schema`.
    pub fn record_batch(
        &self,
        batch: &StoredBatch,
        offset: usize,
        length: usize,
        indices: &[usize],
        schema: &SchemaRef,
    ) -> Result<RecordBatch, ArrowError> {
        self.packed(batch, offset, length, indices)?.record_batch(schema)
    }

    fn column(
        &self,
        batch: &StoredBatch,
        offset: usize,
        length: usize,
        index: usize,
    ) -> Result<PackedColumn, ArrowError> {
        match (index.checked_sub(identity_columns(self.table)), &self.identity) {
            (Some(own), _) => batch.cells[own].packed(self.table.columns[own].kind, offset, length, &self.strings),
            (None, Some(identity)) => Ok(PackedColumn::Constant(identity.value(index))),
            (None, None) => Err(ArrowError::ComputeError(format!("rows of {} without an agent", self.table.name))),
        }
    }

    fn identity_value(&self, index: usize) -> ScalarValue {
        self.identity.as_ref().map_or(ScalarValue::Null, |identity| identity.value(index))
    }
}

fn merge_small(table: &Table, batches: &mut Vec<Arc<StoredBatch>>) {
    while let [.., a, b] = &batches[..] {
        if b.rows >= MAX_SMALL_ROWS || a.rows >= 2 * b.rows {
            return;
        }
        let Ok(merged) = merge(table, a, b) else { return };
        batches.truncate(batches.len() - 2);
        batches.push(Arc::new(merged));
    }
}

fn merge(table: &Table, a: &StoredBatch, b: &StoredBatch) -> Result<StoredBatch, ArrowError> {
    let columns = a.cells.iter().zip(&b.cells).zip(table.columns);
    let cells = columns.map(|((x, y), column)| ColumnCells::concat(&[(x, a.rows), (y, b.rows)], column.kind));
    let ranges = a.ranges.iter().zip(&b.ranges).map(|(x, y)| x.union(*y)).collect();
    Ok(StoredBatch::new(a.rows + b.rows, cells.collect::<Result<_, _>>()?, ranges, sums::add(&a.sums, &b.sums)))
}
