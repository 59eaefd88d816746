//! Parts in memory and on disk as one source of rows for DataFusion: prunes when it is opened, not when it is planned,
//! and reads only the columns that are asked for.

use std::any::Any;
use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::compute::SortOptions;
use arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::datasource::source::{DataSource, OpenArgs};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::filter_pushdown::{FilterPushdownPropagation, PushedDown};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayFormatType, SortOrderPushdownResult};
use probe_proto::table::Table;
use probe_store::{arrow_schema, identity_columns};

use super::prune::Pruner;
use super::queue::Queue;
use super::running::Running;
use super::scan::Scan;
use super::scan_unit::{Known, ScanUnit, statistics};

/// Parts of one table, some of its columns.
#[derive(Clone)]
pub(super) struct PartsSource {
    table: &'static Table,
    /// Of what comes out.
    projected: SchemaRef,
    /// The places in the table's schema of the columns that come out.
    places: Vec<usize>,
    parts: Arc<Vec<ScanUnit>>,
    partitions: usize,
    /// Over `projected`; for pruning only, rows are filtered above.
    filters: Vec<Arc<dyn PhysicalExpr>>,
    fetch: Option<usize>,
    /// Of all parts; planning asks for them again and again.
    known: Arc<OnceLock<Statistics>>,
    metrics: ExecutionPlanMetricsSet,
    running: Running,
}

impl PartsSource {
    /// One that is read by up to `partitions` at a time, each counted in `running`.
    pub(super) fn new(
        table: &'static Table,
        parts: Vec<ScanUnit>,
        projection: Option<&[usize]>,
        partitions: usize,
        running: Running,
    ) -> Result<Self> {
        let schema = arrow_schema(table);
        let places = projection.map_or_else(|| (0..schema.fields().len()).collect(), <[usize]>::to_vec);
        Ok(Self {
            table,
            projected: Arc::new(schema.project(&places)?),
            places,
            partitions: partitions.min(parts.len()).max(1),
            parts: Arc::new(parts),
            filters: Vec::new(),
            fetch: None,
            known: Arc::default(),
            metrics: ExecutionPlanMetricsSet::new(),
            running,
        })
    }

    /// Whether the column that comes out at `column` has one value in all rows of a part, and so of a batch.
    pub(super) fn is_constant_in_parts(&self, column: usize) -> bool {
        self.places.get(column).is_some_and(|place| *place < identity_columns(self.table))
            && self.parts.iter().all(|part| part.identity().is_some())
    }

    /// Takes out the parts that `known` answers for: what it says of them, and a source of the others. None where not
    /// all rows are wanted, or where nothing is known.
    pub(super) fn without<T>(
        &self,
        known: impl Fn(&ScanUnit, &Table, &[usize]) -> Option<T>,
    ) -> Option<(Self, Vec<T>)> {
        if self.fetch.is_some() {
            return None;
        }
        let (mut rest, mut answers) = (Vec::new(), Vec::new());
        for part in self.parts.iter() {
            match known(part, self.table, &self.places) {
                Some(answer) => answers.push(answer),
                None => rest.push(part.clone()),
            }
        }
        let others = || Self { parts: Arc::new(rest), known: Arc::default(), ..self.clone() };
        (!answers.is_empty()).then(|| (others(), answers))
    }

    fn queue(&self) -> Arc<Queue> {
        let pruner = Pruner::new(&self.filters, Arc::clone(&self.projected), self.table);
        Arc::new(Queue::new(self.parts.to_vec(), pruner, &self.metrics))
    }

    fn read(&self, partition: usize, queue: Arc<Queue>, context: &TaskContext) -> SendableRecordBatchStream {
        let scan = Scan {
            queue,
            places: self.places.clone(),
            projected: Arc::clone(&self.projected),
            batch_rows: context.session_config().batch_size().max(1),
            left: self.fetch.unwrap_or(usize::MAX),
            metrics: BaselineMetrics::new(&self.metrics, partition),
            current: None,
            _running: self.running.begin(),
        };
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.projected), futures::stream::iter(scan)))
    }
}

impl DataSource for PartsSource {
    fn open(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.open_with_args(OpenArgs::new(partition, context))
    }

    /// Once an execution, by the first partition that is opened: by then subqueries have their values.
    fn create_sibling_state(&self, _: &ConfigOptions) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.queue())
    }

    fn open_with_args(&self, args: OpenArgs) -> Result<SendableRecordBatchStream> {
        let shared = args.sibling_state.and_then(|state| state.downcast::<Queue>().ok());
        let queue = match shared {
            Some(queue) => queue,
            // Whoever opens partitions without what they share reads everything with the first of them.
            None if args.partition == 0 => self.queue(),
            None => {
                let empty = futures::stream::empty();
                return Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.projected), empty)));
            }
        };
        Ok(self.read(args.partition, queue, &args.context))
    }

    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.parts.iter().filter(|part| part.file().is_some()).count();
        write!(f, "segments={}, row_groups={groups}, partitions={}", self.parts.len() - groups, self.partitions)?;
        if !self.filters.is_empty() {
            let filters: Vec<String> = self.filters.iter().map(ToString::to_string).collect();
            write!(f, ", prune=[{}]", filters.join(" AND "))?;
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
            // Which rows a partition gets is decided while they are read.
            return Ok(Arc::new(Statistics::new_unknown(&self.projected)));
        }
        let known = self.known.get_or_init(|| statistics(&self.parts, self.table, &self.places)).clone();
        let known = if self.filters.is_empty() { known } else { known.to_inexact() };
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

    fn try_swapping_with_projection(&self, _: &ProjectionExprs) -> Result<Option<Arc<dyn DataSource>>> {
        Ok(None)
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn DataSource>>> {
        // No: rows are still to be filtered above. What is learned here is which parts can be skipped.
        let answers = vec![PushedDown::No; filters.len()];
        let mut with_filters = self.clone();
        with_filters.filters.extend(filters);
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
        let place = self.places[column];
        let range = |part: &ScanUnit| part.range(self.table, place).0;
        let mut parts = self.parts.to_vec();
        // A part whose values are not known may have the first ones: it is read first.
        if descending {
            parts.sort_by_cached_key(|part| {
                let high = range(part).map(|(_, high)| Bound(high));
                (high.is_some(), Reverse(high))
            });
        } else {
            parts.sort_by_cached_key(|part| range(part).map(|(low, _)| Bound(low)));
        }
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

/// A bound of a column, ordered: bounds of one column are of one type, which always compare.
#[derive(PartialEq, Eq)]
struct Bound(ScalarValue);

impl PartialOrd for Bound {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bound {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.partial_cmp(&other.0).unwrap_or(Ordering::Equal)
    }
}
