//! GROUP BY module, stage, step …: the first half of an aggregate, next to the scan, which finds the groups of rows by
//! the ids of their texts and not by the texts ([`super::group_keys`]), and decodes only the arguments.

use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::array::{BooleanArray, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, aggregate_expressions};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use probe_store::PackedRows;

use super::aggregate_rule::AggregateRule;
use super::arguments::Arguments;
use super::group_keys::{self, GroupKeys};
use super::narrowed::NarrowedColumns;
use super::queue::Queue;
use super::scan::Scan;
use super::source::PartsSource;

/// Groups that a partition holds before it passes on their states. The other half of the aggregate combines groups anyway.
const MAX_GROUPS: usize = 64 << 10;

/// Replaces aggregates by [`GroupByIdExec`] where that is possible.
pub(super) const RULE: AggregateRule = AggregateRule {
    name: "GroupById",
    replacement: |aggregate| Some(Arc::new(GroupByIdExec::of(aggregate)?) as Arc<dyn ExecutionPlan>),
};

/// The first half of an aggregate over a scan.
#[derive(Debug, Clone)]
struct GroupByIdExec {
    /// The scan.
    input: Arc<dyn ExecutionPlan>,
    /// The indices in the input of the columns that rows are grouped by.
    groups: Vec<usize>,
    aggregates: Vec<Arc<AggregateFunctionExpr>>,
    /// The condition of each aggregate (FILTER); None for all rows.
    filters: Vec<Option<Arc<dyn PhysicalExpr>>>,
    /// The columns of the groups, and then the state of each aggregate.
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// The queue of parts that the partitions of one execution share.
    queue: Arc<OnceLock<Arc<Queue>>>,
}

impl GroupByIdExec {
    /// The replacement of `aggregate`; None where this is not possible.
    fn of(aggregate: &AggregateExec) -> Option<Self> {
        let input = aggregate.input();
        let source = PartsSource::of(input)?;
        let schema = input.schema();
        let group = |(expression, _): &(Arc<dyn PhysicalExpr>, String)| {
            let column = expression.downcast_ref::<Column>()?.index();
            group_keys::is_supported(schema.field(column).data_type()).then_some(column)
        };
        let groups: Vec<usize> = aggregate.group_expr().expr().iter().map(group).collect::<Option<_>>()?;
        let possible = *aggregate.mode() == AggregateMode::Partial
            && aggregate.group_expr().is_single()
            && aggregate.limit_options().is_none()
            && aggregate.aggr_expr().iter().all(|one| one.groups_accumulator_supported())
            && !groups.is_empty()
            // A group's key has a word of bits for its columns.
            && groups.len() <= 64
            && source.is_complete();
        possible.then(|| Self {
            input: Arc::clone(input),
            groups,
            aggregates: aggregate.aggr_expr().to_vec(),
            filters: aggregate.filter_expr().to_vec(),
            schema: aggregate.schema(),
            properties: Arc::clone(aggregate.properties()),
            metrics: ExecutionPlanMetricsSet::new(),
            queue: Arc::default(),
        })
    }

    fn partition(&self, partition: usize, context: &TaskContext) -> Result<Partition> {
        let source = PartsSource::of(&self.input);
        let source = source.ok_or_else(|| DataFusionError::Internal("GroupByIdExec is not over a scan".into()))?;
        let queue = Arc::clone(self.queue.get_or_init(|| source.queue()));
        let schema = self.input.schema();
        let arguments = aggregate_expressions(&self.aggregates, &AggregateMode::Partial, self.groups.len())?;
        let narrowed = NarrowedColumns::of(arguments.iter().flatten().chain(self.filters.iter().flatten()), &schema)?;
        let argument = |expressions: Vec<Arc<dyn PhysicalExpr>>| {
            let expressions = expressions.iter().map(|expression| narrowed.expression(expression));
            Ok(Arguments::new(expressions.collect::<Result<_>>()?))
        };
        let filter = |filter: &Option<_>| filter.as_ref().map(|filter| narrowed.expression(filter)).transpose();
        let columns = self.groups.iter().map(|column| (*column, schema.field(*column).data_type().clone())).collect();
        Ok(Partition {
            scan: source.scan(partition, queue, context)?,
            keys: GroupKeys::new(columns),
            groups: Vec::new(),
            arguments: arguments.into_iter().map(argument).collect::<Result<_>>()?,
            filters: self.filters.iter().map(filter).collect::<Result<_>>()?,
            narrowed,
            accumulators: self.accumulators()?,
            aggregates: self.clone(),
            schema: Arc::clone(&self.schema),
            reservation: MemoryConsumer::new("GroupByIdExec").register(context.memory_pool()),
            metrics: BaselineMetrics::new(&self.metrics, partition),
            ended: false,
        })
    }

    fn accumulators(&self) -> Result<Vec<Box<dyn GroupsAccumulator>>> {
        self.aggregates.iter().map(|aggregate| aggregate.create_groups_accumulator()).collect()
    }
}

/// One partition, as far as it has been read.
struct Partition {
    scan: Scan,
    keys: GroupKeys,
    /// The groups of the rows that were read last.
    groups: Vec<usize>,
    /// The arguments of each aggregate, over the columns of `narrowed`.
    arguments: Vec<Arguments>,
    filters: Vec<Option<Arc<dyn PhysicalExpr>>>,
    narrowed: NarrowedColumns,
    accumulators: Vec<Box<dyn GroupsAccumulator>>,
    aggregates: GroupByIdExec,
    schema: SchemaRef,
    reservation: MemoryReservation,
    metrics: BaselineMetrics,
    ended: bool,
}

impl Partition {
    /// The states of the next groups, which may come again.
    async fn next(mut self) -> Result<Option<(RecordBatch, Self)>> {
        while !self.ended {
            // Other tasks have their turn, and an abandoned query ends here.
            tokio::task::coop::consume_budget().await;
            let Some(rows) = self.scan.next_rows() else {
                self.ended = true;
                break;
            };
            let is_enough = self.add(&rows?)?;
            if is_enough {
                break;
            }
        }
        if self.ended && self.keys.len() == 0 {
            return Ok(None);
        }
        let batch = self.take()?;
        Ok(Some((batch, self)))
    }

    /// Adds rows, and returns whether the groups so far are to be passed on.
    fn add(&mut self, rows: &PackedRows) -> Result<bool> {
        let time = self.metrics.elapsed_compute().clone();
        let _timer = time.timer();
        if rows.rows == 0 {
            return Ok(false);
        }
        self.keys.of_rows(rows, &mut self.groups)?;
        let batch = self.narrowed.record_batch(rows)?;
        let groups = self.keys.len();
        for ((accumulator, arguments), filter) in
            self.accumulators.iter_mut().zip(&mut self.arguments).zip(&self.filters)
        {
            let filter = filter.as_ref().map(|filter| filter.evaluate(&batch)?.into_array(batch.num_rows()));
            let filter = filter.transpose()?;
            let filter = filter.as_ref().and_then(|filter| filter.as_any().downcast_ref::<BooleanArray>());
            accumulator.update_batch(&arguments.evaluate(&batch)?, &self.groups, filter, groups)?;
        }
        let bytes = self.keys.bytes() + self.accumulators.iter().map(|one| one.size()).sum::<usize>();
        // Groups for which no memory is left are passed on.
        Ok(groups >= MAX_GROUPS || self.reservation.try_resize(bytes).is_err())
    }

    fn take(&mut self) -> Result<RecordBatch> {
        let mut columns = self.keys.take()?;
        for accumulator in &mut self.accumulators {
            columns.extend(accumulator.state(EmitTo::All)?);
        }
        self.accumulators = self.aggregates.accumulators()?;
        self.reservation.free();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        self.metrics.output_rows().add(batch.num_rows());
        Ok(batch)
    }
}

impl DisplayAs for GroupByIdExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let input = self.input.schema();
        let groups: Vec<&str> = self.groups.iter().map(|column| input.field(*column).name().as_str()).collect();
        let aggregates: Vec<&str> = self.aggregates.iter().map(|aggregate| aggregate.name()).collect();
        write!(f, "GroupByIdExec: gby=[{}], aggr=[{}]", groups.join(", "), aggregates.join(", "))
    }
}

impl ExecutionPlan for GroupByIdExec {
    fn name(&self) -> &'static str {
        "GroupByIdExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let arguments = self.aggregates.iter().flat_map(|aggregate| aggregate.expressions());
        for expression in arguments.chain(self.filters.iter().flatten().cloned()) {
            if visit(&expression)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut changed = Self::clone(&self);
        changed.metrics = ExecutionPlanMetricsSet::new();
        changed.queue = Arc::default();
        if let Some(input) = children.into_iter().next() {
            changed.input = input;
        }
        Ok(Arc::new(changed))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self { queue: Arc::default(), ..Self::clone(&self) }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let partition = self.partition(partition, &context)?;
        let batches = futures::stream::try_unfold(partition, Partition::next);
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
