//! Parts in memory and on disk as one source of rows for DataFusion. The source prunes when it is opened, not when it is
//! planned, and reads only the columns that the query needs.

use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, Statistics};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use probe_proto::table::Table;
use probe_store::{arrow_schema, identity_columns};

use super::prune::Pruner;
use super::queue::ScanQueue;
use super::row_filter::{self, RowFilter};
use super::running::RunningCount;
use super::scan::PartitionScan;
use super::scan_unit::ScanUnit;
use super::sums_cache::SumsCache;

/// What the scans of an engine share.
#[derive(Debug, Clone)]
pub(super) struct SharedByScans {
    /// Counts those that are running.
    pub(super) running: RunningCount,
    pub(super) sums: Arc<SumsCache>,
}

impl SharedByScans {
    /// Sums that are kept take at most `sums_bytes`.
    pub(super) fn new(sums_bytes: usize) -> Self {
        Self { running: RunningCount::default(), sums: Arc::new(SumsCache::new(sums_bytes)) }
    }
}

/// A scan of the parts of one table: some of its columns, and the rows that the filters keep.
#[derive(Clone)]
pub(super) struct PartsSource {
    pub(super) table: &'static Table,
    /// The schema of the columns that are read, some of them for the filters alone.
    pub(super) read: SchemaRef,
    /// The indices in the table's schema of the columns that are read.
    pub(super) table_columns: Vec<usize>,
    /// The schema of the columns that come out.
    pub(super) projected: SchemaRef,
    /// The indices in `read` of the columns that come out.
    pub(super) output: Vec<usize>,
    pub(super) parts: Arc<Vec<ScanUnit>>,
    pub(super) partitions: usize,
    /// Conditions over `read`. They rule out parts, and rows where that is possible ([`row_filter::is_exact`]).
    pub(super) filters: Vec<Arc<dyn PhysicalExpr>>,
    pub(super) fetch: Option<usize>,
    /// Statistics of all parts, kept because planning needs them again and again.
    pub(super) known: Arc<OnceLock<Statistics>>,
    pub(super) metrics: ExecutionPlanMetricsSet,
    pub(super) shared: SharedByScans,
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

    /// The indices in the table's schema of the columns that come out.
    pub(super) fn output_table_columns(&self) -> Vec<usize> {
        self.output.iter().map(|read| self.table_columns[*read]).collect()
    }

    /// Whether the source itself leaves out rows that a filter rejects.
    pub(super) fn has_conditions(&self) -> bool {
        self.filters.iter().any(row_filter::is_exact)
    }

    /// The queue of parts that the partitions of one execution share.
    pub(super) fn queue(&self) -> Arc<ScanQueue> {
        let pruner = Pruner::new(&self.filters, Arc::clone(&self.read), self.table);
        Arc::new(ScanQueue::new(self.parts.to_vec(), pruner, &self.metrics))
    }

    /// The scan of one partition.
    pub(super) fn scan(&self, partition: usize, queue: Arc<ScanQueue>, context: &TaskContext) -> Result<PartitionScan> {
        Ok(PartitionScan {
            queue,
            table_columns: self.table_columns.clone(),
            read: Arc::clone(&self.read),
            output: self.output.clone(),
            filter: RowFilter::new(&self.filters, &self.read)?,
            batch_rows: context.session_config().batch_size().max(1),
            by_part: false,
            left: self.fetch.unwrap_or(usize::MAX),
            metrics: BaselineMetrics::new(&self.metrics, partition),
            current: None,
            parts: 0,
            _running: self.shared.running.begin(),
        })
    }

    /// An expression over the columns that come out, rewritten over the columns that are read.
    pub(super) fn over_read(&self, expression: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let over_read = expression.transform_up(|expression| {
            let Some(column) = expression.downcast_ref::<Column>() else { return Ok(Transformed::no(expression)) };
            let read = self.output[column.index()];
            Ok(Transformed::yes(Arc::new(Column::new(self.read.field(read).name(), read)) as Arc<dyn PhysicalExpr>))
        });
        Ok(over_read?.data)
    }
}
