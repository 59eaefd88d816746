//! Finds the rows of a scan that satisfy the conditions of a query, before columns are decoded: a condition on a text is
//! evaluated once for each distinct text, and the other columns are decoded for the remaining rows only.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, StringViewArray, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::prep_null_mask_filter;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::util::bit_util;
use datafusion::common::Result;
use datafusion::common::cast::as_boolean_array;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::{is_volatile, snapshot_generation};
use probe_store::{PackedColumn, PackedRows};

use super::id_bits;
use super::narrowed::NarrowedColumns;

/// Rows after which a dynamic condition (of ORDER BY … LIMIT, of a join) is judged by the share of rows that it keeps.
const TRIED_ROWS: usize = 64 << 10;
/// A dynamic condition that keeps more than this percentage of rows is left out until it changes: rows are complete without it.
const KEPT_PERCENT: usize = 75;

/// Whether a scan can apply this condition exactly, so that the plan above need not.
pub(super) fn is_exact(condition: &Arc<dyn PhysicalExpr>) -> bool {
    !is_volatile(condition) && !is_made_on_the_way(condition)
}

/// Whether this condition is dynamic: the query sets and changes it while it runs.
pub(super) fn is_made_on_the_way(condition: &Arc<dyn PhysicalExpr>) -> bool {
    snapshot_generation(condition) != 0
}

/// All conditions of one scan, as one partition applies them.
pub(super) struct RowFilter {
    conditions: Vec<FilterCondition>,
}

struct FilterCondition {
    /// The condition, over the columns of `narrowed`.
    expression: Arc<dyn PhysicalExpr>,
    narrowed: NarrowedColumns,
    /// Whether the condition is dynamic: it may be left out, and changes.
    made_on_the_way: bool,
    tried: FilterTrial,
    /// The results for the texts for which it was evaluated last.
    of_texts: Option<ResultsByText>,
}

/// How many rows a condition that may be left out has seen and kept since it changed.
#[derive(Default)]
struct FilterTrial {
    generation: u64,
    rows: usize,
    kept: usize,
}

/// The results of a condition for each distinct text.
struct ResultsByText {
    values: Arc<StringViewArray>,
    /// Whether each text is kept, and whether NULL is; None where the condition fails for a text, which perhaps no row has.
    kept: Option<(Vec<bool>, bool)>,
}

/// The rows that a condition keeps.
enum FilteredRows {
    All,
    Some(BooleanBuffer),
}

impl RowFilter {
    /// The filter of `conditions`, which are over the columns of `read`.
    ///
    /// # Errors
    /// A condition names another column.
    pub(super) fn new(conditions: &[Arc<dyn PhysicalExpr>], read: &SchemaRef) -> Result<Self> {
        let applied = conditions.iter().filter(|condition| !is_volatile(condition));
        Ok(Self { conditions: applied.map(|one| FilterCondition::new(one, read)).collect::<Result<_>>()? })
    }

    /// The rows that satisfy all conditions (None for all rows), and their number.
    pub(super) fn wanted(&mut self, rows: &PackedRows) -> Result<(Option<BooleanArray>, usize)> {
        let (mut wanted, mut count) = (None, rows.rows);
        self.conditions.sort_by_key(FilterCondition::cost);
        for condition in &mut self.conditions {
            if count == 0 {
                break;
            }
            if condition.is_useless() {
                continue;
            }
            let left = condition.left(rows, wanted.as_ref())?;
            let before = count;
            if let FilteredRows::Some(kept) = left {
                let next: BooleanBuffer = wanted.map_or_else(|| kept.clone(), |wanted| &wanted & &kept);
                count = next.count_set_bits();
                wanted = Some(next);
            }
            condition.count(before, count);
        }
        Ok((wanted.filter(|_| count < rows.rows).map(|wanted| BooleanArray::new(wanted, None)), count))
    }
}

impl FilterCondition {
    fn new(expression: &Arc<dyn PhysicalExpr>, read: &SchemaRef) -> Result<Self> {
        let narrowed = NarrowedColumns::of(std::iter::once(expression), read)?;
        Ok(Self {
            expression: narrowed.expression(expression)?,
            narrowed,
            made_on_the_way: is_made_on_the_way(expression),
            tried: FilterTrial::default(),
            of_texts: None,
        })
    }

    fn is_of_one_text(&self) -> bool {
        !self.made_on_the_way
            && self.narrowed.columns.len() == 1
            && self.narrowed.schema.field(0).data_type() == &DataType::Utf8View
    }

    /// A key by which conditions are ordered: those on one text come first, the one that keeps the fewest texts before others.
    fn cost(&self) -> (bool, usize) {
        let texts = self.of_texts.as_ref().and_then(|known| known.kept.as_ref());
        let kept = texts.map_or(usize::MAX, |(kept, _)| kept.iter().filter(|kept| **kept).count());
        (!self.is_of_one_text(), kept)
    }

    /// Whether the condition has kept so many rows that evaluating it costs more than it saves.
    fn is_useless(&mut self) -> bool {
        if !self.made_on_the_way {
            return false;
        }
        let generation = snapshot_generation(&self.expression);
        if self.tried.generation != generation {
            self.tried = FilterTrial { generation, ..FilterTrial::default() };
        }
        self.tried.rows >= TRIED_ROWS && self.tried.kept * 100 > self.tried.rows * KEPT_PERCENT
    }

    fn count(&mut self, rows: usize, kept: usize) {
        self.tried.rows += rows;
        self.tried.kept += kept;
    }

    /// The rows that the condition keeps of those still `wanted`; the bits of other rows may have any value.
    fn left(&mut self, rows: &PackedRows, wanted: Option<&BooleanBuffer>) -> Result<FilteredRows> {
        if self.is_of_one_text()
            && let PackedColumn::Text { ids, values } = &rows.columns[self.narrowed.columns[0]]
            && let Some((kept, null)) = self.of_texts(values, rows.rows)?
        {
            return Ok(FilteredRows::Some(id_bits::kept_rows(ids, kept, *null, wanted)));
        }
        let columns = rows.project(&self.narrowed.columns);
        if columns.columns.iter().all(|column| matches!(column, PackedColumn::Constant(_))) {
            let one = PackedRows { rows: 1, ..columns }.record_batch(&self.narrowed.schema)?;
            let kept = self.evaluate(&one)?.value(0);
            return Ok(if kept { FilteredRows::All } else { FilteredRows::Some(BooleanBuffer::new_unset(rows.rows)) });
        }
        let Some(wanted) = wanted else {
            return Ok(FilteredRows::Some(self.evaluate(&columns.record_batch(&self.narrowed.schema)?)?));
        };
        let columns = columns.filter(&BooleanArray::new(wanted.clone(), None))?;
        let kept = self.evaluate(&columns.record_batch(&self.narrowed.schema)?)?;
        Ok(FilteredRows::Some(spread(wanted, &kept)))
    }

    /// Whether the condition keeps each of `values`, and NULL: evaluated once for as long as the texts are the same.
    fn of_texts(&mut self, values: &Arc<StringViewArray>, rows: usize) -> Result<Option<&(Vec<bool>, bool)>> {
        let known = self.of_texts.as_ref().is_some_and(|known| Arc::ptr_eq(&known.values, values));
        if !known {
            // Where there are more texts than rows, the rows are fewer to look at.
            if values.len() > 4 * rows {
                return Ok(None);
            }
            let kept = self.say(Arc::clone(values) as ArrayRef).and_then(|kept| {
                let null = self.say(new_null_array(&DataType::Utf8View, 1))?;
                Ok((kept.iter().collect(), null.value(0)))
            });
            self.of_texts = Some(ResultsByText { values: Arc::clone(values), kept: kept.ok() });
        }
        Ok(self.of_texts.as_ref().and_then(|known| known.kept.as_ref()))
    }

    fn say(&self, texts: ArrayRef) -> Result<BooleanBuffer> {
        let field = self.narrowed.schema.field(0).clone().with_nullable(true);
        let schema = Arc::new(Schema::new(vec![field]));
        self.evaluate(&RecordBatch::try_new(schema, vec![texts])?)
    }

    /// The rows for which the condition is true, and not NULL.
    fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanBuffer> {
        let result = self.expression.evaluate(batch)?.into_array(batch.num_rows())?;
        let result = as_boolean_array(&result)?;
        Ok(if result.null_count() > 0 {
            prep_null_mask_filter(result).values().clone()
        } else {
            result.values().clone()
        })
    }
}

/// The rows of `wanted` that are kept: `kept` has a bit for each row that is set in `wanted`, in their order.
fn spread(wanted: &BooleanBuffer, kept: &BooleanBuffer) -> BooleanBuffer {
    let mut bits = vec![0u8; wanted.len().div_ceil(8)];
    for (index, row) in wanted.set_indices().enumerate() {
        if kept.value(index) {
            bit_util::set_bit(&mut bits, row);
        }
    }
    BooleanBuffer::new(bits.into(), 0, wanted.len())
}
