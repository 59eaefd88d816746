//! What a question needs so that grouped sums answer it: the columns by which it groups and filters, and the times that it adds up.

use std::sync::Arc;

use arrow::array::BooleanArray;
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use probe_proto::table::ColumnType;
use probe_store::{GroupReader, PackedColumn, PackedRows, ProcessIdentity, arrow_schema, identity_columns};

use super::group_keys;
use super::grouped_sums::{GroupedSums, GroupedSumsBuilder, WantedSum};
use super::held_conditions::HeldConditions;
use super::query_task;
use super::queue::{NextPart, ScanQueue};
use super::row_filter::{self, RowFilter};
use super::scan::external;
use super::scan_unit::{ScanUnit, UnitStatistics};
use super::source::PartsSource;
use super::sums_cache::{FixedPart, KnownSums, SumsSelection};

/// The most columns by which sums are kept.
const MAX_KEYS: usize = 4;

/// What one question asks of the sums of parts, as one partition asks it.
pub(super) struct SumsRequest {
    /// The key columns with all conditions; None where sums can't answer the question then.
    whole: Option<KeyColumns>,
    /// The conditions that may hold for all rows of a part, and the key columns without them. None if no condition can be one.
    narrow: Option<(HeldConditions, Option<KeyColumns>)>,
    source: PartsSource,
}

/// The columns by which parts are added up, and what filters the cells.
struct KeyColumns {
    of: SumsSelection,
    types: Vec<DataType>,
    kinds: Vec<ColumnType>,
    /// The filter, over all columns that are read.
    filter: RowFilter,
    filters_rows: bool,
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
    /// The request of a question over `source` that groups by and looks at the output columns `keys`, and adds up `sums`. None
    /// where sums can't answer it.
    ///
    /// # Errors
    /// A filter names another column.
    pub(super) fn new(source: &PartsSource, keys: &[usize], sums: &[WantedSum]) -> Result<Option<Self>> {
        if identity_columns(source.table) == 0 {
            return Ok(None);
        }
        // Rows are complete without the other filters.
        let exact: Vec<_> = source.filters.iter().filter(|filter| row_filter::is_exact(filter)).cloned().collect();
        let whole = KeyColumns::new(source, &exact, keys, sums)?;
        let narrow = match HeldConditions::split(&exact, &source.read, &source.table_columns, source.table) {
            Some((held, others)) => Some((held, KeyColumns::new(source, &others, keys, sums)?)),
            None => None,
        };
        let possible = whole.is_some() || matches!(narrow, Some((_, Some(_))));
        Ok(possible.then(|| Self { whole, narrow, source: source.clone() }))
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
        queue: &ScanQueue,
    ) -> Result<Option<KeptCells>> {
        let (Some(fixed), Some(identity)) = (FixedPart::of(unit), unit.identity()) else { return Ok(None) };
        let by = match &mut self.narrow {
            Some((held, narrow)) if held.hold_in(unit) => narrow.as_mut(),
            _ => self.whole.as_mut(),
        };
        let Some(by) = by else { return Ok(None) };
        let cache = &self.source.shared.sums;
        let sums = match cache.find(&fixed, &by.of) {
            Some(KnownSums::Sums(sums)) => sums,
            Some(KnownSums::Impossible) => return Ok(None),
            // With a filter the rows themselves are faster, unless the question comes again.
            None if by.filters_rows => {
                query_task::for_nobody(|| cache.insert(&fixed, &by.of, KnownSums::Asked));
                return Ok(None);
            }
            None | Some(KnownSums::Asked) => {
                let builder = GroupedSumsBuilder::new(&by.types, &by.of.sums, unit.rows(), cache.max_bytes);
                let sums = by.build(builder, part, &self.source, batch_rows, queue)?;
                let sums = sums.filter(|sums| sums.bytes() <= cache.max_bytes).map(Arc::new);
                let known = sums.clone().map_or(KnownSums::Impossible, KnownSums::Sums);
                // What other questions left may have to go for it.
                query_task::for_nobody(|| cache.insert(&fixed, &by.of, known));
                let Some(sums) = sums else { return Ok(None) };
                query_task::hand_over(sums.bytes());
                sums
            }
        };
        by.kept(sums, &self.source, identity).map(Some)
    }
}

impl KeyColumns {
    /// The key columns of a question that has these `conditions` and looks at the output columns `keys`. None where parts can't be
    /// added up by them.
    fn new(
        source: &PartsSource,
        conditions: &[Arc<dyn PhysicalExpr>],
        keys: &[usize],
        sums: &[WantedSum],
    ) -> Result<Option<Self>> {
        let filtered = conditions.iter().flat_map(collect_columns).map(|column| column.index());
        let read = keys.iter().map(|key| source.output[*key]).chain(filtered);
        let mut keys: Vec<usize> = read.map(|read| source.table_columns[read]).collect();
        keys.retain(|key| *key >= identity_columns(source.table));
        keys.sort_unstable();
        keys.dedup();
        let table = arrow_schema(source.table);
        let types: Vec<DataType> = keys.iter().map(|key| table.field(*key).data_type().clone()).collect();
        let possible = keys.len() <= MAX_KEYS
            && types.iter().all(|kind| group_keys::is_supported(kind) && !matches!(kind, DataType::Timestamp(..)));
        if !possible {
            return Ok(None);
        }
        let all: Vec<ColumnType> = source.table.all_columns().map(|column| column.kind).collect();
        Ok(Some(Self {
            kinds: keys.iter().map(|key| all[*key]).collect(),
            of: SumsSelection { keys: keys.into(), sums: sums.into() },
            types,
            filter: RowFilter::new(conditions, &source.read)?,
            filters_rows: !conditions.is_empty(),
        }))
    }

    /// Adds up all rows of a part; None where its sums can't be kept.
    fn build(
        &self,
        mut builder: GroupedSumsBuilder,
        part: &NextPart,
        source: &PartsSource,
        batch_rows: usize,
        queue: &ScanQueue,
    ) -> Result<Option<GroupedSums>> {
        let sums = self.of.sums.iter().map(|wanted| wanted.column);
        let columns: Vec<usize> = self.of.keys.iter().copied().chain(sums).collect();
        match part {
            NextPart::Segments { segments, .. } => {
                for (segment, _) in segments {
                    let pieces = segment.batches.iter().flat_map(|batch| {
                        let offsets = (0..batch.rows).step_by(batch_rows);
                        offsets.map(move |offset| (batch, offset, (batch.rows - offset).min(batch_rows)))
                    });
                    for (batch, offset, rows) in pieces {
                        query_task::check()?;
                        if !builder.add(&segment.packed(batch, offset, rows, &columns)?)? {
                            return Ok(None);
                        }
                    }
                }
            }
            NextPart::Group { file, number, counted, .. } => {
                let schema = Arc::new(arrow_schema(source.table).project(&columns)?);
                let mut bytes = 0;
                let read = |more| bytes += more;
                let reader = GroupReader::open(file, *number, &columns, &schema, batch_rows, |_| None, read);
                let mut reader = reader.map_err(external)?;
                let mut fits = true;
                while fits && let Some(rows) = reader.packed() {
                    query_task::check()?;
                    fits = builder.add(&rows.map_err(external)?)?;
                }
                // Where the rows have to be read after all, their columns are read again.
                queue.read(bytes, *counted && fits);
                if !fits {
                    return Ok(None);
                }
            }
        }
        builder.finish(&self.kinds).map(Some)
    }

    /// The cells that the filter keeps, as rows of `source`.
    fn kept(&mut self, sums: Arc<GroupedSums>, source: &PartsSource, identity: &ProcessIdentity) -> Result<KeptCells> {
        let column = |(read, index): (usize, &usize)| -> Result<PackedColumn> {
            if *index < identity_columns(source.table) {
                return Ok(PackedColumn::Constant(identity.value(*index)));
            }
            Ok(match self.of.keys.binary_search(index) {
                Ok(key) => sums.keys[key].clone(),
                Err(_) => PackedColumn::Constant(ScalarValue::try_from(source.read.field(read).data_type())?),
            })
        };
        let columns = source.table_columns.iter().enumerate().map(column).collect::<Result<_>>()?;
        let cells = PackedRows { rows: sums.cells, columns };
        let (keep, _) = self.filter.wanted(&cells)?;
        Ok(KeptCells { cells: cells.project(&source.output), sums, keep })
    }
}
