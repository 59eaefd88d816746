//! Decides which parts a scan can skip, by the statistics of their columns: files first, then the row groups of the files that
//! stay.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::conjunction;
use datafusion::physical_expr::expressions::{CastExpr, Literal, TryCastExpr};
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr_common::physical_expr::{snapshot_generation, snapshot_physical_expr};
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};
use probe_proto::table::Table;
use probe_store::{ParquetFile, RowBlock, RowGroup, Segment, arrow_schema};

use super::scan_unit::{RowBounds, RowGroupBlock, ScanUnit, SegmentBatch};

/// Decides which parts a scan skips, again whenever its filters have become narrower.
#[derive(Debug, Clone)]
pub(super) struct Pruner {
    /// Conditions that a row must satisfy, over the columns of `scanned`; None without such conditions.
    filter: Option<Arc<dyn PhysicalExpr>>,
    scanned: SchemaRef,
    table: &'static Table,
    /// The schema of the table.
    schema: SchemaRef,
    /// The generation of the filter when it was last applied.
    generation: u64,
    /// The condition that the filter sets on bounds; None if bounds can't rule out rows.
    predicate: Option<Arc<PruningPredicate>>,
}

impl Pruner {
    pub(super) fn new(filters: &[Arc<dyn PhysicalExpr>], scanned: SchemaRef, table: &'static Table) -> Self {
        let filters: Vec<_> = filters.iter().filter(|filter| keeps_order(filter)).cloned().collect();
        let filter = (!filters.is_empty()).then(|| conjunction(filters));
        Self { filter, scanned, table, schema: arrow_schema(table), generation: 0, predicate: None }
    }

    /// Decides by one condition, with the values that its subqueries have now.
    pub(super) fn learned(condition: Arc<dyn PhysicalExpr>, scanned: SchemaRef, table: &'static Table) -> Self {
        let mut learned = Self::new(&[condition], scanned, table);
        learned.learn();
        learned
    }

    /// Whether a part has no row for which the filter holds, by what was learned of the filter last.
    pub(super) fn rules_out(&self, part: &ScanUnit) -> bool {
        let Some(predicate) = &self.predicate else { return false };
        self.decide(predicate, &[part]).is_some_and(|keep| keep == [false])
    }

    /// Whether the filter is another than when it was last applied: a dynamic filter (of ORDER BY … LIMIT, MIN, MAX, a
    /// join) that has grown narrower.
    pub(super) fn has_news(&self) -> bool {
        self.filter.as_ref().is_some_and(|filter| snapshot_generation(filter) != self.generation)
    }

    /// Keeps the parts that may have rows for the query. Pruning is never needed for a right answer, so what can't be
    /// decided is kept.
    pub(super) fn prune(&mut self, parts: &mut Vec<ScanUnit>) {
        self.learn();
        let Some(predicate) = self.predicate.clone() else { return };
        let mut files: Vec<&Arc<ParquetFile>> = Vec::new();
        for file in parts.iter().filter_map(ScanUnit::file) {
            // The groups of a file are neighbours, unless they were sorted.
            if !files.last().is_some_and(|last| Arc::ptr_eq(last, file)) {
                files.push(file);
            }
        }
        let whole: Vec<_> = files.iter().map(|file| file.whole()).collect();
        if let Some(keep) = self.decide(&predicate, &whole) {
            let skipped: HashSet<*const ParquetFile> =
                files.iter().zip(keep).filter(|(_, keep)| !keep).map(|(file, _)| Arc::as_ptr(file)).collect();
            parts.retain(|part| part.file().is_none_or(|file| !skipped.contains(&Arc::as_ptr(file))));
        }
        let left: Vec<&ScanUnit> = parts.iter().collect();
        if let Some(keep) = self.decide(&predicate, &left) {
            let mut keep = keep.into_iter();
            parts.retain(|_| keep.next().unwrap_or(true));
        }
    }

    /// Which batches of a segment may have rows for the query; None where all of them may.
    pub(super) fn batches(&self, segment: &Segment) -> Option<Vec<bool>> {
        let predicate = self.predicate.as_ref()?;
        let batches: Vec<SegmentBatch<'_>> = segment.batches.iter().map(|batch| SegmentBatch(segment, batch)).collect();
        self.decide(predicate, &batches.iter().collect::<Vec<_>>())
    }

    /// Which blocks of a row group may have rows for the query; None where all of them may.
    pub(super) fn blocks(&self, group: &RowGroup, blocks: &[RowBlock]) -> Option<Vec<bool>> {
        let predicate = self.predicate.as_ref()?;
        let blocks: Vec<RowGroupBlock<'_>> = blocks.iter().map(|block| RowGroupBlock(group, block)).collect();
        self.decide(predicate, &blocks.iter().collect::<Vec<_>>())
    }

    /// Updates the predicate to the filter as it is now.
    fn learn(&mut self) {
        let Some(filter) = &self.filter else { return };
        self.generation = snapshot_generation(filter);
        let predicate = literal(Arc::clone(filter), &self.scanned).and_then(|filter| {
            PruningPredicateBuilder::new().with_file_schema(Arc::clone(&self.scanned)).try_build(filter)
        });
        self.predicate = predicate.ok().filter(|predicate| !predicate.always_true()).map(Arc::new);
    }

    /// Which of `containers` may have rows; None where that cannot be decided.
    fn decide<K: RowBounds>(&self, predicate: &PruningPredicate, containers: &[&K]) -> Option<Vec<bool>> {
        if containers.is_empty() {
            return None;
        }
        let known = ContainerStatistics { table: self.table, schema: &self.schema, containers };
        predicate.prune(&known).ok()
    }
}

/// Whether every cast within a condition keeps the order of values, so that the bounds of what is cast are those of the result.
/// The time of a day and booleans do not, which DataFusion takes for granted.
fn keeps_order(condition: &Arc<dyn PhysicalExpr>) -> bool {
    let is_ordered = |kind: &DataType| !matches!(kind, DataType::Time32(_) | DataType::Time64(_) | DataType::Boolean);
    let mut keeps = true;
    let looked = condition.apply(|expression| {
        let cast = expression.downcast_ref::<CastExpr>().map(CastExpr::cast_type);
        let cast = cast.or_else(|| expression.downcast_ref::<TryCastExpr>().map(TryCastExpr::cast_type));
        keeps &= cast.is_none_or(is_ordered);
        Ok(if keeps { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    looked.is_ok() && keeps
}

/// The filter with its dynamic filters as they are now, and with the values of its subqueries, which have run before the scan is
/// opened.
fn literal(filter: Arc<dyn PhysicalExpr>, scanned: &SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
    let nothing = RecordBatch::new_empty(Arc::clone(scanned));
    let filter = snapshot_physical_expr(filter)?;
    let filter = filter.transform_up(|expression| {
        if expression.downcast_ref::<ScalarSubqueryExpr>().is_some()
            && let Ok(ColumnarValue::Scalar(value)) = expression.evaluate(&nothing)
        {
            return Ok(Transformed::yes(Arc::new(Literal::new(value)) as Arc<dyn PhysicalExpr>));
        }
        Ok(Transformed::no(expression))
    })?;
    Ok(filter.data)
}

/// Statistics of parts or files in the form that DataFusion needs.
struct ContainerStatistics<'a, K> {
    table: &'static Table,
    schema: &'a Schema,
    containers: &'a [&'a K],
}

impl<K: RowBounds> ContainerStatistics<'_, K> {
    fn bounds(&self, column: &Column, pick: impl Fn((ScalarValue, ScalarValue)) -> ScalarValue) -> Option<ArrayRef> {
        let (index, field) = self.schema.column_with_name(&column.name)?;
        let unknown = ScalarValue::try_from(field.data_type()).ok()?;
        let bound = |known: &&K| known.bounds(self.table, index).map_or_else(|| unknown.clone(), &pick);
        ScalarValue::iter_to_array(self.containers.iter().map(bound)).ok()
    }
}

impl<K: RowBounds> PruningStatistics for ContainerStatistics<'_, K> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.bounds(column, |(low, _)| low)
    }
    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.bounds(column, |(_, high)| high)
    }
    fn num_containers(&self) -> usize {
        self.containers.len()
    }
    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let (index, _) = self.schema.column_with_name(&column.name)?;
        let nulls = self.containers.iter().map(|known| known.nulls(self.table, index).map(|nulls| nulls as u64));
        Some(Arc::new(UInt64Array::from_iter(nulls)))
    }
    fn row_counts(&self) -> Option<ArrayRef> {
        Some(Arc::new(UInt64Array::from_iter_values(self.containers.iter().map(|known| known.row_count() as u64))))
    }
    fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
