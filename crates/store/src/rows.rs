//! Batches from agents or from the collector itself, checked and unpacked for the store.

use arrow::array::RecordBatch;
use probe_proto::decode::{self, Malformed};
use probe_proto::table::Table;
use probe_proto::v1;

use super::cells::Cells;
use super::column_mapping::ColumnMapping;
use super::range::Range;
use super::schema::own_schema;
use super::strings::{Dictionary, Strings};
use super::sums::{self, Sums};

/// The rows of one batch of one table. A column that is NULL or the same in every row costs no bytes a row.
#[derive(Debug, Clone)]
pub struct Rows {
    table: &'static Table,
    pub batch: Batch,
    pub ranges: Vec<Range>,
    pub strings: Dictionary,
}

/// Stored rows: cells and a range for each column of the table, identity excepted.
#[derive(Debug, Clone)]
pub struct Batch {
    pub rows: usize,
    pub cells: Vec<Cells>,
    /// The range of each column.
    pub ranges: Vec<Range>,
    /// The exact sums of float columns.
    pub(super) sums: Sums,
    pub bytes: usize,
}

impl Rows {
    /// Checks and unpacks a batch of the table that `mapping` is for, whose text is in `strings`.
    ///
    /// # Errors
    /// Anything that does not fit the declaration; and a batch of a table that is not known here, which the caller has to
    /// ignore and count ([`ColumnMapping::table`]).
    pub fn decode(mapping: &ColumnMapping, batch: &v1::Batch, strings: &mut Strings) -> Result<Self, Malformed> {
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
                None => decode::Decoded { values: decode::Values::Nulls, validity: None },
            };
            let unpacked = Cells::new(decoded, column.kind, rows);
            ranges.push(Range::of(&unpacked, column.kind, rows));
            cells.push(unpacked);
        }
        let sums = sums::of_columns(&cells, table);
        Ok(Self { table, batch: Batch::new(rows, cells, ranges.clone(), sums), ranges, strings: strings.dictionary() })
    }

    /// The rows of a record batch with the table's own columns, unchanged; None where it has others.
    pub fn of_record_batch(table: &'static Table, batch: &RecordBatch) -> Option<Self> {
        if batch.schema_ref().fields() != own_schema(table).fields() {
            return None;
        }
        let rows = batch.num_rows();
        let cells: Vec<Cells> = batch.columns().iter().map(Cells::of_array).collect();
        let kinds = table.columns.iter().map(|column| column.kind);
        let ranges: Vec<Range> = cells.iter().zip(kinds).map(|(cells, kind)| Range::of(cells, kind, rows)).collect();
        let sums = sums::of_columns(&cells, table);
        let batch = Batch::new(rows, cells, ranges.clone(), sums);
        Some(Self { table, batch, ranges, strings: Strings::default().dictionary() })
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

impl Batch {
    pub(super) fn new(rows: usize, cells: Vec<Cells>, ranges: Vec<Range>, sums: Sums) -> Self {
        let fixed = cells.len() * size_of::<Cells>() + ranges.len() * size_of::<Range>() + size_of_val(&*sums);
        let bytes = cells.iter().map(Cells::bytes).sum::<usize>() + fixed;
        Self { rows, cells, ranges, sums, bytes }
    }
}
