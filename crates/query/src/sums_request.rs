//! What a question needs so that grouped sums answer it: the columns by which it groups and filters, and the times that it adds up.

use std::sync::Arc;

use arrow::array::BooleanArray;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use probe_proto::table::{ColumnType, Table};
use probe_store::{GroupReader, Identity, PackedColumn, PackedRows, identity_columns};

use super::group_keys;
use super::grouped_sums::{Builder, GroupedSums, WantedSum};
use super::question;
use super::queue::{NextPart, Queue};
use super::row_filter::RowFilter;
use super::sums_cache::{KnownSums, SumsCache};

/// The most columns by which sums are kept.
const MAX_KEYS: usize = 4;

/// The columns of a scan, as [`super::source::PartsSource`] has them.
pub(super) struct ScanColumns<'a> {
    pub(super) table: &'static Table,
    pub(super) read: &'a SchemaRef,
    /// The indices in the table of the columns that are read.
    pub(super) table_columns: &'a [usize],
    /// The indices in `read` of the columns that come out.
    pub(super) output: &'a [usize],
}

/// What one question asks of the sums of parts, as one partition asks it.
pub(super) struct SumsRequest {
    cache: Arc<SumsCache>,
    /// The indices in the table of the key columns, ascending, none of them of the identity.
    keys: Vec<usize>,
    types: Vec<DataType>,
    kinds: Vec<ColumnType>,
    sums: Vec<WantedSum>,
    /// The filter, over all columns that are read.
    filter: RowFilter,
    filters_rows: bool,
    /// The indices in the table of the columns that are read.
    table_columns: Vec<usize>,
    read: SchemaRef,
    output: Vec<usize>,
    /// The schema of the whole table.
    table: SchemaRef,
    identity_columns: usize,
}

/// The cells of a part that are kept.
pub(super) struct KeptCells {
    /// A row for each cell, with the columns that come out. Those that are no key are NULL.
    pub(super) cells: PackedRows,
    pub(super) sums: Arc<GroupedSums>,
    /// The cells that the filters keep; None for all.
    pub(super) keep: Option<BooleanArray>,
}

impl SumsRequest {
    /// The request of a question whose scan has these `conditions`, which groups by and looks at the output columns `keys`, and
    /// adds up `sums`. None where sums can't answer it.
    ///
    /// # Errors
    /// A condition names another column.
    pub(super) fn new(
        columns: &ScanColumns<'_>,
        conditions: &[Arc<dyn PhysicalExpr>],
        keys: impl Iterator<Item = usize>,
        sums: Vec<WantedSum>,
        cache: &Arc<SumsCache>,
    ) -> Result<Option<Self>> {
        let table = probe_store::arrow_schema(columns.table);
        let identity_columns = identity_columns(columns.table);
        let filtered = conditions.iter().flat_map(collect_columns).map(|column| column.index());
        let read = keys.map(|key| columns.output[key]).chain(filtered);
        let mut keys: Vec<usize> = read.map(|read| columns.table_columns[read]).collect();
        keys.retain(|key| *key >= identity_columns);
        keys.sort_unstable();
        keys.dedup();
        let types: Vec<DataType> = keys.iter().map(|key| table.field(*key).data_type().clone()).collect();
        let all: Vec<ColumnType> = columns.table.all_columns().map(|column| column.kind).collect();
        let possible = identity_columns > 0
            && keys.len() <= MAX_KEYS
            && types.iter().all(|kind| group_keys::is_supported(kind) && !matches!(kind, DataType::Timestamp(..)));
        if !possible {
            return Ok(None);
        }
        Ok(Some(Self {
            cache: Arc::clone(cache),
            kinds: keys.iter().map(|key| all[*key]).collect(),
            keys,
            types,
            sums,
            filter: RowFilter::new(conditions, columns.read)?,
            filters_rows: !conditions.is_empty(),
            table_columns: columns.table_columns.to_vec(),
            read: Arc::clone(columns.read),
            output: columns.output.to_vec(),
            table,
            identity_columns,
        }))
    }

    /// The cells of a part, where its sums are known or are found now; None where its rows have to be read.
    ///
    /// # Errors
    /// The part can't be read; the question is over.
    pub(super) fn answer(&mut self, part: &NextPart, batch_rows: usize, queue: &Queue) -> Result<Option<KeptCells>> {
        let (Some(fixed), Some(identity)) = (part.fixed(), part.identity()) else { return Ok(None) };
        let sums = match self.cache.find(&fixed, &self.keys) {
            Some(KnownSums::Sums(sums)) if sums.has(&self.sums) => sums,
            Some(KnownSums::Impossible) => return Ok(None),
            // With a filter the rows themselves are faster, unless the question comes again.
            None if self.filters_rows => {
                self.cache.keep(&fixed, &self.keys, KnownSums::Asked);
                return Ok(None);
            }
            known => {
                let mut wanted = self.sums.clone();
                if let Some(KnownSums::Sums(sums)) = known {
                    add_wanted(&mut wanted, sums.wanted());
                }
                let sums = self.build(part, &wanted, batch_rows, queue)?;
                let sums = sums.map(Arc::new);
                let known = sums.clone().map_or(KnownSums::Impossible, KnownSums::Sums);
                self.cache.keep(&fixed, &self.keys, known);
                let Some(sums) = sums else { return Ok(None) };
                question::hand_over(sums.bytes());
                sums
            }
        };
        self.kept(sums, &identity).map(Some)
    }

    fn build(
        &self,
        part: &NextPart,
        wanted: &[WantedSum],
        batch_rows: usize,
        queue: &Queue,
    ) -> Result<Option<GroupedSums>> {
        let columns: Vec<usize> = self.keys.iter().copied().chain(wanted.iter().map(|wanted| wanted.column)).collect();
        let mut builder = Builder::new(&self.types, wanted, part.rows());
        match part {
            NextPart::Segments { segments, .. } => {
                for (segment, _) in segments {
                    let pieces = segment.batches.iter().flat_map(|batch| {
                        let offsets = (0..batch.rows).step_by(batch_rows);
                        offsets.map(move |offset| (batch, offset, (batch.rows - offset).min(batch_rows)))
                    });
                    for (batch, offset, rows) in pieces {
                        question::check()?;
                        if !builder.add(&segment.packed(batch, offset, rows, &columns)?)? {
                            return Ok(None);
                        }
                    }
                }
            }
            NextPart::Group { file, number, counted } => {
                let schema = Arc::new(self.table.project(&columns)?);
                let read = |bytes| queue.read(bytes, *counted);
                let reader = GroupReader::open(file, *number, &columns, &schema, batch_rows, read);
                let mut reader = reader.map_err(external)?;
                while let Some(rows) = reader.packed() {
                    question::check()?;
                    if !builder.add(&rows.map_err(external)?)? {
                        return Ok(None);
                    }
                }
            }
        }
        builder.finish(&self.kinds).map(Some)
    }

    fn kept(&mut self, sums: Arc<GroupedSums>, identity: &Identity) -> Result<KeptCells> {
        let column = |(read, index): (usize, &usize)| -> Result<PackedColumn> {
            if *index < self.identity_columns {
                return Ok(PackedColumn::Constant(identity.value(*index)));
            }
            Ok(match self.keys.binary_search(index) {
                Ok(key) => sums.keys[key].clone(),
                Err(_) => PackedColumn::Constant(ScalarValue::try_from(self.read.field(read).data_type())?),
            })
        };
        let columns = self.table_columns.iter().enumerate().map(column).collect::<Result<_>>()?;
        let cells = PackedRows { rows: sums.cells, columns };
        let (keep, _) = self.filter.wanted(&cells)?;
        Ok(KeptCells { cells: cells.project(&self.output), sums, keep })
    }
}

/// Adds what is wanted of one column to what is wanted of others.
pub(super) fn add_wanted(all: &mut Vec<WantedSum>, more: impl Iterator<Item = WantedSum>) {
    for wanted in more {
        match all.iter_mut().find(|known| known.column == wanted.column) {
            Some(known) => known.bounds |= wanted.bounds,
            None => all.push(wanted),
        }
    }
}

fn external(error: probe_common::error::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
