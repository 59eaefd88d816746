//! Parts in memory and on disk as one source of rows for DataFusion. The source prunes when it is opened, not when it is
//! planned, and reads only the columns that the query needs.

use std::any::Any;
use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::compute::SortOptions;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::datasource::source::{DataSource, DataSourceExec, OpenArgs};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter_pushdown::{FilterPushdownPropagation, PushedDown};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan, SortOrderPushdownResult};
use probe_proto::table::Table;
use probe_store::{arrow_schema, identity_columns};

use super::grouped_sums::WantedSum;
use super::prune::Pruner;
use super::queue::Queue;
use super::row_filter::{self, RowFilter};
use super::running::Running;
use super::scan::{Batches, Scan};
use super::scan_unit::{ScanUnit, UnitStatistics, statistics};
use super::sums_cache::SumsCache;
use super::sums_request::{ScanColumns, SumsRequest};

/// The share of rows that filters are assumed to keep, where nothing better is known: DataFusion's default.
const WANTED: f64 = 0.2;

/// What the scans of an engine share.
#[derive(Debug, Clone)]
pub(super) struct SharedByScans {
    /// Counts those that are running.
    pub(super) running: Running,
    pub(super) sums: Arc<SumsCache>,
}

impl SharedByScans {
    /// Sums that are kept take at most so many bytes.
    pub(super) fn new(sums_bytes: usize) -> Self {
        Self { running: Running::default(), sums: Arc::new(SumsCache::new(sums_bytes)) }
    }
}

/// A scan of the parts of one table: some of its columns, and the rows that the filters keep.
#[derive(Clone)]
pub(super) struct PartsSource {
    table: &'static Table,
    /// The schema of the columns that are read, some of them for the filters alone.
    read: SchemaRef,
    /// The indices in the table's schema of the columns that are read.
    table_columns: Vec<usize>,
    /// The schema of the columns that come out.
    projected: SchemaRef,
    /// The indices in `read` of the columns that come out.
    output: Vec<usize>,
    parts: Arc<Vec<ScanUnit>>,
    partitions: usize,
    /// Conditions over `read`. They rule out parts, and rows where that is possible ([`row_filter::is_exact`]).
    filters: Vec<Arc<dyn PhysicalExpr>>,
    fetch: Option<usize>,
    /// Statistics of all parts, kept because planning needs them again and again.
    known: Arc<OnceLock<Statistics>>,
    metrics: ExecutionPlanMetricsSet,
    shared: SharedByScans,
}

impl PartsSource {
    /// A source that up to `partitions` tasks read at a time.
    pub(super) fn new(
        table: &'static Table,
        parts: Vec<ScanUnit>,
        projection: Option<&[usize]>,
        partitions: usize,
        shared: SharedByScans,
    ) -> Result<Self> {
        let schema = arrow_schema(table);
        let table_columns = projection.map_or_else(|| (0..schema.fields().len()).collect(), <[usize]>::to_vec);
        let read = Arc::new(schema.project(&table_columns)?);
        Ok(Self {
            table,
            projected: Arc::clone(&read),
            output: (0..table_columns.len()).collect(),
            read,
            table_columns,
            partitions: partitions.min(parts.len()).max(1),
            parts: Arc::new(parts),
            filters: Vec::new(),
            fetch: None,
            known: Arc::default(),
            metrics: ExecutionPlanMetricsSet::new(),
            shared,
        })
    }

    /// The source that `plan` reads, where `plan` is a scan and nothing else.
    pub(super) fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<&Self> {
        let scan = plan.downcast_ref::<CooperativeExec>().map_or(plan, CooperativeExec::input);
        scan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref()
    }

    /// Whether the source gives all rows that the filters keep, without a limit.
    pub(super) fn is_complete(&self) -> bool {
        self.fetch.is_none()
    }

    /// Whether the column that comes out at `column` has one value in all rows of a part, and so of a batch.
    pub(super) fn is_constant_in_parts(&self, column: usize) -> bool {
        let index = self.output.get(column).map(|read| self.table_columns[*read]);
        index.is_some_and(|index| index < identity_columns(self.table))
            && self.parts.iter().all(|part| part.identity().is_some())
    }

    /// Splits off the parts that `known` answers for: a source of the other parts, and the answers. None where the query does not
    /// need all rows, or where `known` answers for no part.
    pub(super) fn without<T>(
        &self,
        known: impl Fn(&ScanUnit, &Table, &[usize]) -> Option<T>,
    ) -> Option<(Self, Vec<T>)> {
        if !self.is_complete() || self.has_conditions() {
            return None;
        }
        let table_columns = self.output_table_columns();
        let (mut rest, mut answers) = (Vec::new(), Vec::new());
        for part in self.parts.iter() {
            match known(part, self.table, &table_columns) {
                Some(answer) => answers.push(answer),
                None => rest.push(part.clone()),
            }
        }
        let others = || Self { parts: Arc::new(rest), known: Arc::default(), ..self.clone() };
        (!answers.is_empty()).then(|| (others(), answers))
    }

    /// What a question asks of sums that looks at the output columns `keys` and adds up `sums`; None where they can't answer it.
    ///
    /// # Errors
    /// A filter names another column.
    pub(super) fn sums_request(
        &self,
        keys: impl Iterator<Item = usize>,
        sums: Vec<WantedSum>,
    ) -> Result<Option<SumsRequest>> {
        // Rows are complete without the other filters.
        let exact: Vec<_> = self.filters.iter().filter(|filter| row_filter::is_exact(filter)).cloned().collect();
        let columns = ScanColumns {
            table: self.table,
            read: &self.read,
            table_columns: &self.table_columns,
            output: &self.output,
        };
        SumsRequest::new(&columns, &exact, keys, sums, &self.shared.sums)
    }

    /// The indices in the table's schema of the columns that come out.
    pub(super) fn output_table_columns(&self) -> Vec<usize> {
        self.output.iter().map(|read| self.table_columns[*read]).collect()
    }

    /// Whether the source itself leaves out rows that a filter rejects.
    pub(super) fn has_conditions(&self) -> bool {
        self.filters.iter().any(row_filter::is_exact)
    }

    /// The queue of parts that the partitions of one execution share.
    pub(super) fn queue(&self) -> Arc<Queue> {
        let pruner = Pruner::new(&self.filters, Arc::clone(&self.read), self.table);
        Arc::new(Queue::new(self.parts.to_vec(), pruner, &self.metrics))
    }

    /// The scan of one partition.
    pub(super) fn scan(&self, partition: usize, queue: Arc<Queue>, context: &TaskContext) -> Result<Scan> {
        Ok(Scan {
            queue,
            table_columns: self.table_columns.clone(),
            read: Arc::clone(&self.read),
            output: self.output.clone(),
            filter: RowFilter::new(&self.filters, &self.read)?,
            batch_rows: context.session_config().batch_size().max(1),
            left: self.fetch.unwrap_or(usize::MAX),
            metrics: BaselineMetrics::new(&self.metrics, partition),
            current: None,
            parts: 0,
            _running: self.shared.running.begin(),
        })
    }

    /// An expression over the columns that come out, rewritten over the columns that are read.
    fn over_read(&self, expression: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let over_read = expression.transform_up(|expression| {
            let Some(column) = expression.downcast_ref::<Column>() else { return Ok(Transformed::no(expression)) };
            let read = self.output[column.index()];
            Ok(Transformed::yes(Arc::new(Column::new(self.read.field(read).name(), read)) as Arc<dyn PhysicalExpr>))
        });
        Ok(over_read?.data)
    }
}

impl DataSource for PartsSource {
    fn open(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.open_with_args(OpenArgs::new(partition, context))
    }

    /// DataFusion calls this once an execution, when the first partition is opened: by then subqueries have their values.
    fn create_sibling_state(&self, _: &ConfigOptions) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(self.queue())
    }

    fn open_with_args(&self, args: OpenArgs) -> Result<SendableRecordBatchStream> {
        let shared = args.sibling_state.and_then(|state| state.downcast::<Queue>().ok());
        let queue = match shared {
            Some(queue) => queue,
            // Where partitions are opened without the shared queue, the first of them reads everything.
            None if args.partition == 0 => self.queue(),
            None => {
                let empty = futures::stream::empty();
                return Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.projected), empty)));
            }
        };
        let batches = Batches::new(self.scan(args.partition, queue, &args.context)?, Arc::clone(&self.projected));
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
