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
use super::held_conditions::HeldConditions;
use super::question;
use super::queue::{NextPart, Queue};
use super::row_filter::RowFilter;
use super::scan_unit::{ScanUnit, UnitStatistics};
use super::sums_cache::{FixedPart, KnownSums, SumsCache, SumsOf};

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
    /// With all conditions; None where sums can't answer the question then.
    whole: Option<KeyColumns>,
    /// Without the conditions that hold for all rows of a part, and those; None where there are none.
    narrow: Option<(HeldConditions, Option<KeyColumns>)>,
    /// The indices in the table of the columns that are read.
    table_columns: Vec<usize>,
    read: SchemaRef,
    output: Vec<usize>,
    /// The schema of the whole table.
    table: SchemaRef,
    identity_columns: usize,
}

/// The columns by which parts are added up, and what filters the cells.
struct KeyColumns {
    of: SumsOf,
    types: Vec<DataType>,
    kinds: Vec<ColumnType>,
    /// The filter, over all columns that are read.
    filter: RowFilter,
    filters_rows: bool,
}

impl KeyColumns {
    /// The key columns of a question that has these `conditions` and looks at the output columns `keys`. None where parts can't be
    /// added up by them.
    fn new(
        columns: &ScanColumns<'_>,
        conditions: &[Arc<dyn PhysicalExpr>],
        keys: &[usize],
        sums: &[WantedSum],
        table: &SchemaRef,
    ) -> Result<Option<Self>> {
        let identity_columns = identity_columns(columns.table);
        let filtered = conditions.iter().flat_map(collect_columns).map(|column| column.index());
        let read = keys.iter().map(|key| columns.output[*key]).chain(filtered);
        let mut keys: Vec<usize> = read.map(|read| columns.table_columns[read]).collect();
        keys.retain(|key| *key >= identity_columns);
        keys.sort_unstable();
        keys.dedup();
        let types: Vec<DataType> = keys.iter().map(|key| table.field(*key).data_type().clone()).collect();
        let possible = keys.len() <= MAX_KEYS
            && types.iter().all(|kind| group_keys::is_supported(kind) && !matches!(kind, DataType::Timestamp(..)));
        if !possible {
            return Ok(None);
        }
        let all: Vec<ColumnType> = columns.table.all_columns().map(|column| column.kind).collect();
        Ok(Some(Self {
            kinds: keys.iter().map(|key| all[*key]).collect(),
            of: SumsOf { keys: keys.into(), sums: sums.into() },
            types,
            filter: RowFilter::new(conditions, columns.read)?,
            filters_rows: !conditions.is_empty(),
        }))
    }
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
        sums: &[WantedSum],
        cache: &Arc<SumsCache>,
    ) -> Result<Option<Self>> {
        let table = probe_store::arrow_schema(columns.table);
        let identity_columns = identity_columns(columns.table);
        if identity_columns == 0 {
            return Ok(None);
        }
        let keys: Vec<usize> = keys.collect();
        let whole = KeyColumns::new(columns, conditions, &keys, sums, &table)?;
        let held = HeldConditions::split(conditions, columns.read, columns.table_columns, columns.table);
        let narrow = match held {
            Some((held, others)) => Some((held, KeyColumns::new(columns, &others, &keys, sums, &table)?)),
            None => None,
        };
        if whole.is_none() && !matches!(narrow, Some((_, Some(_)))) {
            return Ok(None);
        }
        Ok(Some(Self {
            cache: Arc::clone(cache),
            whole,
            narrow,
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
    pub(super) fn answer(
        &mut self,
        part: &NextPart,
        unit: &ScanUnit,
        batch_rows: usize,
        queue: &Queue,
    ) -> Result<Option<KeptCells>> {
        let (Some(fixed), Some(identity)) = (FixedPart::of(unit), unit.identity()) else { return Ok(None) };
        let held = matches!(&self.narrow, Some((held, _)) if held.hold_in(unit));
        let columns =
            if held { self.narrow.as_ref().and_then(|(_, narrow)| narrow.as_ref()) } else { self.whole.as_ref() };
        let Some(columns) = columns else { return Ok(None) };
        let sums = match self.cache.find(&fixed, &columns.of) {
            Some(KnownSums::Sums(sums)) => sums,
            Some(KnownSums::Impossible) => return Ok(None),
            // With a filter the rows themselves are faster, unless the question comes again.
            None if columns.filters_rows => {
                question::for_nobody(|| self.cache.keep(&fixed, &columns.of, KnownSums::Asked));
                return Ok(None);
            }
            None | Some(KnownSums::Asked) => {
                let sums = self.build((part, unit.rows()), columns, batch_rows, queue)?;
                let sums = sums.filter(|sums| sums.bytes() <= self.cache.max_bytes).map(Arc::new);
                let known = sums.clone().map_or(KnownSums::Impossible, KnownSums::Sums);
                // What other questions left may have to go for it.
                question::for_nobody(|| self.cache.keep(&fixed, &columns.of, known));
                let Some(sums) = sums else { return Ok(None) };
                question::hand_over(sums.bytes());
                sums
            }
        };
        self.kept(sums, held, identity).map(Some)
    }

    fn build(
        &self,
        (part, rows): (&NextPart, usize),
        by: &KeyColumns,
        batch_rows: usize,
        queue: &Queue,
    ) -> Result<Option<GroupedSums>> {
        let columns: Vec<usize> =
            by.of.keys.iter().copied().chain(by.of.sums.iter().map(|wanted| wanted.column)).collect();
        let mut builder = Builder::new(&by.types, &by.of.sums, rows, self.cache.max_bytes);
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
                let mut bytes = 0;
                let reader = GroupReader::open(file, *number, &columns, &schema, batch_rows, |more| bytes += more);
                let mut reader = reader.map_err(external)?;
                let mut fits = true;
                while fits && let Some(rows) = reader.packed() {
                    question::check()?;
                    fits = builder.add(&rows.map_err(external)?)?;
                }
                // Where the rows have to be read after all, their columns are read again.
                queue.read(bytes, *counted && fits);
                if !fits {
                    return Ok(None);
                }
            }
        }
        builder.finish(&by.kinds).map(Some)
    }

    /// The cells that the conditions keep, without those that are `held` in the part.
    fn kept(&mut self, sums: Arc<GroupedSums>, held: bool, identity: &Identity) -> Result<KeptCells> {
        let narrow = self.narrow.as_mut().filter(|_| held).and_then(|(_, narrow)| narrow.as_mut());
        let by = narrow.or(self.whole.as_mut());
        let by = by.ok_or_else(|| DataFusionError::Internal("sums by no columns".into()))?;
        let column = |(read, index): (usize, &usize)| -> Result<PackedColumn> {
            if *index < self.identity_columns {
                return Ok(PackedColumn::Constant(identity.value(*index)));
            }
            Ok(match by.of.keys.binary_search(index) {
                Ok(key) => sums.keys[key].clone(),
                Err(_) => PackedColumn::Constant(ScalarValue::try_from(self.read.field(read).data_type())?),
            })
        };
        let columns = self.table_columns.iter().enumerate().map(column).collect::<Result<_>>()?;
        let cells = PackedRows { rows: sums.cells, columns };
        let (keep, _) = by.filter.wanted(&cells)?;
        Ok(KeptCells { cells: cells.project(&self.output), sums, keep })
    }
}

fn external(error: probe_common::error::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
