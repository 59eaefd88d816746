//! The source of a table's parts as DataFusion plans and opens it: what it tells of itself, and the filters, limits and orders that
//! it takes over.

use std::any::Any;
use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{Field, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::datasource::source::{DataSource, OpenArgs};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::filter_pushdown::{FilterPushdownPropagation, PushedDown};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayFormatType, SortOrderPushdownResult};

use super::queue::ScanQueue;
use super::row_filter;
use super::scan::ScanBatches;
use super::scan_unit::{ScanUnit, UnitStatistics, statistics};
use super::source::PartsSource;

/// The share of rows that filters are assumed to keep, where nothing better is known: DataFusion's default.
const WANTED: f64 = 0.2;

impl DataSource for PartsSource {
    fn open(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.open_with_args(OpenArgs::new(partition, context))
    }

    /// DataFusion calls this once an execution, when the first partition is opened: by then subqueries have their values.
    fn create_sibling_state(&self, _: &ConfigOptions) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.queue())
    }

    fn open_with_args(&self, args: OpenArgs) -> Result<SendableRecordBatchStream> {
        let shared = args.sibling_state.and_then(|state| state.downcast::<ScanQueue>().ok());
        let queue = match shared {
            Some(queue) => queue,
            // Where partitions are opened without the shared queue, the first of them reads everything.
            None if args.partition == 0 => self.queue(),
            None => {
                let empty = futures::stream::empty();
                return Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.projected), empty)));
            }
        };
        let batches = ScanBatches::new(self.scan(args.partition, queue, &args.context)?, Arc::clone(&self.projected));
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.projected), futures::stream::iter(batches))))
    }

    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.parts.iter().filter(|part| part.file().is_some()).count();
        write!(f, "segments={}, row_groups={groups}, partitions={}", self.parts.len() - groups, self.partitions)?;
        if !self.filters.is_empty() {
            let filters: Vec<String> = self.filters.iter().map(ToString::to_string).collect();
            write!(f, ", filter=[{}]", filters.join(" AND "))?;
        }
        Ok(())
    }

    fn output_partitioning(&self) -> Partitioning {
        Partitioning::UnknownPartitioning(self.partitions)
    }

    fn eq_properties(&self) -> EquivalenceProperties {
        EquivalenceProperties::new(Arc::clone(&self.projected))
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        if partition.is_some() {
            // The parts of a partition are known only while it runs: it takes them from the queue.
            return Ok(Arc::new(Statistics::new_unknown(&self.projected)));
        }
        let known =
            self.known.get_or_init(|| statistics(&self.parts, self.table, &self.output_table_columns())).clone();
        let mut known = if self.filters.is_empty() { known } else { known.to_inexact() };
        if self.has_conditions() {
            known.num_rows = known.num_rows.with_estimated_selectivity(WANTED);
            known.total_byte_size = known.total_byte_size.with_estimated_selectivity(WANTED);
        }
        Ok(Arc::new(known.with_fetch(self.fetch, 0, self.partitions)?))
    }

    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn DataSource>> {
        Some(Arc::new(Self { fetch, ..self.clone() }))
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }

    fn metrics(&self) -> ExecutionPlanMetricsSet {
        self.metrics.clone()
    }

    fn try_swapping_with_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn DataSource>>> {
        let column = |one: &ProjectionExpr| {
            let column = one.expr.downcast_ref::<Column>()?.index();
            Some((self.output[column], self.projected.field(column).clone().with_name(&one.alias)))
        };
        let Some(columns) = projection.iter().map(column).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let (output, fields): (Vec<usize>, Vec<Field>) = columns.into_iter().unzip();
        // The node of a projection says that two columns are the same. A plan may rely on that: sorted by one, rows are sorted by both.
        if output.iter().enumerate().any(|(index, column)| output[..index].contains(column)) {
            return Ok(None);
        }
        let projected = Arc::new(Schema::new(fields));
        Ok(Some(Arc::new(Self { output, projected, known: Arc::default(), ..self.clone() })))
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn DataSource>>> {
        // Filters that are not exact are applied as far as possible, and the plan above filters by them once more.
        let answer = |filter| if row_filter::is_exact(filter) { PushedDown::Yes } else { PushedDown::No };
        let answers = filters.iter().map(answer).collect();
        let mut with_filters = self.clone();
        for filter in filters {
            with_filters.filters.push(self.over_read(filter)?);
        }
        let updated: Arc<dyn DataSource> = Arc::new(with_filters);
        Ok(FilterPushdownPropagation::with_parent_pushdown_result(answers).with_updated_node(updated))
    }

    /// For ORDER BY … LIMIT: the parts that come first in that order are read first, so that what the query has found
    /// by then rules the others out.
    fn try_pushdown_sort(&self, order: &[PhysicalSortExpr]) -> Result<SortOrderPushdownResult<Arc<dyn DataSource>>> {
        let first = order.first().and_then(|sort| Some((sort.expr.downcast_ref::<Column>()?.index(), sort.options)));
        let Some((column, SortOptions { descending, .. })) = first else {
            return Ok(SortOrderPushdownResult::Unsupported);
        };
        let index = self.table_columns[self.output[column]];
        let range = |part: &ScanUnit| part.range(self.table, index).0;
        let mut parts = self.parts.to_vec();
        // A part whose values are not known may have the first ones: it is read first.
        if descending {
            parts.sort_by_cached_key(|part| {
                let high = range(part).map(|(_, high)| OrderedBound(high));
                (high.is_some(), Reverse(high))
            });
        } else {
            parts.sort_by_cached_key(|part| range(part).map(|(low, _)| OrderedBound(low)));
        }
        let overlaps = |part: &ScanUnit, other: &ScanUnit| match (range(part), range(other)) {
            (Some((_, high)), Some((low, _))) if descending => OrderedBound(high) >= OrderedBound(low),
            (Some((low, _)), Some((_, high))) => OrderedBound(low) <= OrderedBound(high),
            _ => true,
        };
        let parts = memory_first(parts, overlaps);
        let inner = Arc::new(Self { parts: Arc::new(parts), ..self.clone() });
        Ok(SortOrderPushdownResult::Inexact { inner })
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for filter in &self.filters {
            if visit(filter)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }
}

impl fmt::Debug for PartsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as(DisplayFormatType::Default, f)
    }
}

/// Moves parts in memory before the first one in a file, if they may have values that come before some of that part's: they are
/// read in less time, and what is found in them rules out more of the pages.
fn memory_first(mut parts: Vec<ScanUnit>, overlaps: impl Fn(&ScanUnit, &ScanUnit) -> bool) -> Vec<ScanUnit> {
    let Some(index) = parts.iter().position(|part| part.file().is_some()) else { return parts };
    let rest = parts.split_off(index);
    let may_move = |part: &ScanUnit| part.file().is_none() && overlaps(part, &rest[0]);
    let (memory, others): (Vec<_>, Vec<_>) = rest.iter().cloned().partition(may_move);
    parts.extend(memory);
    parts.extend(others);
    parts
}

/// A bound of a column, ordered: bounds of one column are of one type, which always compare.
#[derive(PartialEq, Eq)]
struct OrderedBound(ScalarValue);

impl PartialOrd for OrderedBound {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrderedBound {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.partial_cmp(&other.0).unwrap_or(Ordering::Equal)
    }
}
