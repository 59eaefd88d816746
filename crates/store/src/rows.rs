//! Batches from agents or from the collector itself, checked and unpacked for the store.

use arrow::array::RecordBatch;
use probe_proto::decode::{self, Malformed};
use probe_proto::table::Table;
use probe_proto::v1;

use super::cells::ColumnCells;
use super::column_mapping::ColumnMapping;
use super::column_range::ColumnRange;
use super::schema::own_schema;
use super::strings::{StringDictionary, StringReceiver};
use super::sums::{self, ExactSums};

/// The rows of one batch of one table. A column that is NULL or the same in every row costs no bytes a row.
#[derive(Debug, Clone)]
pub struct BatchRows {
    table: &'static Table,
    pub batch: StoredBatch,
    pub ranges: Vec<ColumnRange>,
    pub strings: StringDictionary,
}

/// Stored rows: cells and a range for each column of the table, identity excepted.
#[derive(Debug, Clone)]
pub struct StoredBatch {
    pub rows: usize,
    pub cells: Vec<ColumnCells>,
    /// The range of each column.
    pub ranges: Vec<ColumnRange>,
    /// The exact sums of float columns.
    pub(super) sums: ExactSums,
    pub bytes: usize,
}

impl BatchRows {
    /// Checks and unpacks a batch of the table that `mapping` is for, whose text is in `strings`.
    ///
    /// # Errors
    /// Anything that does not fit the declaration; and a batch of a table that is not known here, which the caller has to
    /// ignore and count ([`ColumnMapping::table`]).
    pub fn decode(mapping: &ColumnMapping, batch: &v1::Batch, strings: &mut StringReceiver) -> Result<Self, Malformed> {
        let Some(table) = mapping.table() else {
            return Err(Malformed::Column { column: "(all)".into(), what: "of a table that is not known here".into() });
        };
        let rows = decode::rows(batch)?;
        if batch.columns.len() != mapping.declared() {
            return Err(Malformed::Columns { got: batch.columns.len(), expected: mapping.declared() });
        }
        let known = strings.len();
        let mut cells = Vec::with_capacity(table.columns.len());
        let mut ranges = Vec::with_capacity(table.columns.len());
        for (column, source) in table.columns.iter().zip(mapping.sources()) {
            let decoded = match source.and_then(|index| batch.columns.get(index)) {
                Some(packed) => decode::column(column.name, column.kind, column.nullable, packed, rows, known)?,
                None => decode::DecodedColumn { values: decode::DecodedValues::Nulls, validity: None },
            };
            let unpacked = ColumnCells::new(decoded, column.kind, rows);
            ranges.push(ColumnRange::of(&unpacked, column.kind, rows));
            cells.push(unpacked);
        }
        let sums = sums::of_columns(&cells, table);
        Ok(Self {
            table,
            batch: StoredBatch::new(rows, cells, ranges.clone(), sums),
            ranges,
            strings: strings.dictionary(),
        })
    }

    /// The rows of a record batch with the table's own columns, unchanged; None where it has others.
    pub fn of_record_batch(table: &'static Table, batch: &RecordBatch) -> Option<Self> {
        if batch.schema_ref().fields() != own_schema(table).fields() {
            return None;
        }
        let rows = batch.num_rows();
        let cells: Vec<ColumnCells> = batch.columns().iter().map(ColumnCells::of_array).collect();
        let kinds = table.columns.iter().map(|column| column.kind);
        let ranges: Vec<ColumnRange> =
            cells.iter().zip(kinds).map(|(cells, kind)| ColumnRange::of(cells, kind, rows)).collect();
        let sums = sums::of_columns(&cells, table);
        let batch = StoredBatch::new(rows, cells, ranges.clone(), sums);
        Some(Self { table, batch, ranges, strings: StringReceiver::default().dictionary() })
    }

    /// The table of the rows.
    pub fn table(&self) -> &'static Table {
        self.table
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.batch.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.batch.rows == 0
    }
}

impl StoredBatch {
    pub(super) fn new(rows: usize, cells: Vec<ColumnCells>, ranges: Vec<ColumnRange>, sums: ExactSums) -> Self {
        let fixed =
            cells.len() * size_of::<ColumnCells>() + ranges.len() * size_of::<ColumnRange>() + size_of_val(&*sums);
        let bytes = cells.iter().map(ColumnCells::bytes).sum::<usize>() + fixed;
        Self { rows, cells, ranges, sums, bytes }
    }
}
