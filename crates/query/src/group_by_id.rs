//! GROUP BY module, stage, step …: the first half of an aggregate, next to the scan, which finds the groups of rows by
//! the ids of their texts and not by the texts ([`super::group_keys`]), and decodes only the arguments.

use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, aggregate_expressions};
use datafusion::physical_plan::metrics::BaselineMetrics;
use futures::StreamExt;
use futures::stream::BoxStream;
use probe_store::PackedRows;

use super::aggregate_rule::AggregateRule;
use super::arguments::AggregateArguments;
use super::cell_state::CellState;
use super::group_keys::{self, GroupKeys};
use super::narrowed::NarrowedColumns;
use super::partial_aggregate::{AggregateStrategy, PartialAggregate};
use super::partition_sums::PartitionSums;
use super::scan::PartitionScan;
use super::source::PartsSource;
use super::sums_request::KeptCells;

/// Groups that a partition holds before it passes on their states. The other half of the aggregate combines groups anyway.
const MAX_GROUPS: usize = 64 << 10;

/// Replaces aggregates by [`GroupById`] where that is possible.
pub(super) const RULE: AggregateRule = AggregateRule { name: "GroupById", replacement };

/// The first half of an aggregate over a scan.
#[derive(Debug, Clone)]
struct GroupById {
    groups: Vec<usize>,
    filters: Vec<Option<Arc<dyn PhysicalExpr>>>,
}

/// The node that replaces `aggregate`; None where this is not possible.
fn replacement(aggregate: &AggregateExec) -> Option<Arc<dyn ExecutionPlan>> {
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
    let way = GroupById { groups, filters: aggregate.filter_expr().to_vec() };
    possible.then(|| Arc::new(PartialAggregate::new(aggregate, Arc::clone(input), way)) as Arc<dyn ExecutionPlan>)
}

impl AggregateStrategy for GroupById {
    const NAME: &'static str = "GroupByIdExec";

    fn groups(&self) -> &[usize] {
        &self.groups
    }

    fn filters(&self) -> &[Option<Arc<dyn PhysicalExpr>>] {
        &self.filters
    }

    fn states(
        node: &PartialAggregate<Self>,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let partition = GroupedPartition::new(node, partition, context)?;
        Ok(futures::stream::try_unfold(partition, GroupedPartition::next).boxed())
    }
}

fn accumulators(aggregates: &[Arc<AggregateFunctionExpr>]) -> Result<Vec<Box<dyn GroupsAccumulator>>> {
    aggregates.iter().map(|aggregate| aggregate.create_groups_accumulator()).collect()
}

/// The rows for which the condition of an aggregate is true; None if the aggregate has no condition.
fn kept_by(filter: Option<&Arc<dyn PhysicalExpr>>, batch: &RecordBatch) -> Result<Option<BooleanArray>> {
    let Some(filter) = filter else { return Ok(None) };
    Ok(filter.evaluate(batch)?.into_array(batch.num_rows())?.as_boolean_opt().cloned())
}

/// One partition, as far as it has been read.
struct GroupedPartition {
    scan: PartitionScan,
    keys: GroupKeys,
    /// The groups of the rows that were read last.
    groups: Vec<usize>,
    /// The arguments of each aggregate, over the columns of `narrowed`.
    arguments: Vec<AggregateArguments>,
    filters: Vec<Option<Arc<dyn PhysicalExpr>>>,
    narrowed: NarrowedColumns,
    /// The columns of `narrowed` for cells, in which columns that are no keys are NULL.
    nullable: NarrowedColumns,
    accumulators: Vec<Box<dyn GroupsAccumulator>>,
    aggregates: Vec<Arc<AggregateFunctionExpr>>,
    schema: SchemaRef,
    reservation: MemoryReservation,
    metrics: BaselineMetrics,
    ended: bool,
    /// What sums answer, where they can.
    from_sums: Option<PartitionSums>,
}

impl GroupedPartition {
    fn new(node: &PartialAggregate<GroupById>, partition: usize, context: &TaskContext) -> Result<Self> {
        let (schema, GroupById { groups, filters }) = (node.input.schema(), &node.way);
        let arguments = aggregate_expressions(&node.aggregates, &AggregateMode::Partial, groups.len())?;
        let narrowed = NarrowedColumns::of(arguments.iter().flatten().chain(filters.iter().flatten()), &schema)?;
        let argument = |expressions: Vec<Arc<dyn PhysicalExpr>>| {
            let expressions = expressions.iter().map(|expression| narrowed.expression(expression));
            Ok(AggregateArguments::new(expressions.collect::<Result<_>>()?))
        };
        let filter = |filter: &Option<_>| filter.as_ref().map(|filter| narrowed.expression(filter)).transpose();
        let columns = groups.iter().map(|column| (*column, schema.field(*column).data_type().clone())).collect();
        Ok(Self {
            scan: node.scan(partition, context)?,
            keys: GroupKeys::new(columns),
            groups: Vec::new(),
            arguments: arguments.into_iter().map(argument).collect::<Result<_>>()?,
            filters: filters.iter().map(filter).collect::<Result<_>>()?,
            nullable: narrowed.nullable(),
            narrowed,
            accumulators: accumulators(&node.aggregates)?,
            aggregates: node.aggregates.clone(),
            schema: Arc::clone(&node.schema),
            reservation: MemoryConsumer::new(GroupById::NAME).register(context.memory_pool()),
            metrics: node.baseline(partition),
            ended: false,
            from_sums: PartitionSums::new(node, partition),
        })
    }

    /// The states of the next groups, which may come again.
    async fn next(mut self) -> Result<Option<(RecordBatch, Self)>> {
        while !self.ended {
            // Other tasks have their turn, and an abandoned query ends here.
            tokio::task::coop::consume_budget().await;
            let is_enough = if let Some(cells) = PartitionSums::next(&mut self.from_sums, &mut self.scan) {
                self.add_cells(cells?)?
            } else if let Some(rows) = self.scan.next_rows() {
                self.add(&rows?)?
            } else {
                self.ended = self.scan.has_ended();
                self.ended
            };
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
            // With a filter, an accumulator looks at each row.
            let filter = kept_by(filter.as_ref(), &batch)?.filter(|kept| kept.true_count() < kept.len());
            accumulator.update_batch(&arguments.evaluate(&batch)?, &self.groups, filter.as_ref(), groups)?;
        }
        Ok(self.is_enough())
    }

    /// Adds the cells of a part in place of its rows, and returns whether the groups so far are to be passed on.
    fn add_cells(&mut self, KeptCells { cells, sums, keep }: KeptCells) -> Result<bool> {
        let time = self.metrics.elapsed_compute().clone();
        let _timer = time.timer();
        let cells = keep.as_ref().map_or_else(|| Ok(cells.clone()), |keep| cells.filter(keep))?;
        if cells.rows == 0 {
            return Ok(false);
        }
        self.keys.of_rows(&cells, &mut self.groups)?;
        let batch = self.nullable.record_batch(&cells)?;
        let groups = self.keys.len();
        let states = self.from_sums.iter().flat_map(|from_sums| &from_sums.states);
        for (((accumulator, arguments), filter), state) in
            self.accumulators.iter_mut().zip(&mut self.arguments).zip(&self.filters).zip(states)
        {
            let filter = kept_by(filter.as_ref(), &batch)?;
            if *state == CellState::OfKeys {
                accumulator.update_batch(&arguments.evaluate(&batch)?, &self.groups, filter.as_ref(), groups)?;
                continue;
            }
            let arrays = state.arrays(&sums, keep.as_ref(), filter.as_ref())?;
            accumulator.merge_batch(&arrays, &self.groups, groups)?;
        }
        Ok(self.is_enough())
    }

    /// Whether the groups so far are to be passed on: there are many, or no memory is left for them.
    fn is_enough(&mut self) -> bool {
        let bytes = self.keys.bytes() + self.accumulators.iter().map(|one| one.size()).sum::<usize>();
        self.keys.len() >= MAX_GROUPS || self.reservation.try_resize(bytes).is_err()
    }

    fn take(&mut self) -> Result<RecordBatch> {
        let mut columns = self.keys.take_groups()?;
        for accumulator in &mut self.accumulators {
            columns.extend(accumulator.state(EmitTo::All)?);
        }
        self.accumulators = accumulators(&self.aggregates)?;
        self.reservation.free();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        self.metrics.output_rows().add(batch.num_rows());
        Ok(batch)
    }
}
