//! GROUP BY rank, host, run …: columns that have one value in all rows of a part, so that all rows of a batch go to one group,
//! without hashing.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Accumulator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::metrics::BaselineMetrics;
use futures::StreamExt;
use futures::stream::BoxStream;

use super::aggregate_rule::AggregateRule;
use super::arguments::AggregateArguments;
use super::cell_state::CellState;
use super::known_aggregates::{self, KnownGroup};
use super::partial_aggregate::{AggregateStrategy, PartialAggregate};
use super::plain_argument::is_unordered;
use super::source::PartsSource;

/// Functions whose state between the two halves of an aggregate is the same however it is computed.
const FUNCTIONS: &[&str] = &["count", "sum", "avg", "min", "max"];

/// Replaces aggregates by [`ByProcess`] where that is possible.
pub(super) const RULE: AggregateRule = AggregateRule { name: "GroupByProcess", replacement };

/// The first half of an aggregate whose groups are constants of the batches that come in.
#[derive(Debug, Clone)]
struct ByProcess {
    /// Groups from the statistics of parts. The input does not have their rows.
    known: Arc<Vec<KnownGroup>>,
    groups: Vec<usize>,
}

/// The node that replaces `aggregate`; None where this is not possible.
fn replacement(aggregate: &AggregateExec) -> Option<Arc<dyn ExecutionPlan>> {
    let plain = |expression: &Arc<AggregateFunctionExpr>| {
        FUNCTIONS.contains(&expression.fun().name()) && !expression.is_distinct() && is_unordered(expression)
    };
    let aggregates = aggregate.aggr_expr();
    let possible = *aggregate.mode() == AggregateMode::Partial
        && aggregate.group_expr().is_single()
        && aggregate.limit_options().is_none()
        && aggregates.iter().all(plain)
        && aggregate.filter_expr().iter().all(Option::is_none);
    let input = aggregate.input();
    let source = PartsSource::of(input)?;
    let column = |(expression, _): &(Arc<dyn PhysicalExpr>, String)| {
        let column = expression.downcast_ref::<Column>()?.index();
        source.is_constant_in_parts(column).then_some(column)
    };
    let groups: Vec<usize> = aggregate.group_expr().expr().iter().map(column).collect::<Option<_>>()?;
    let (schema, table_columns) = (input.schema(), source.output_table_columns());
    let has_sums = |aggregate: &Arc<AggregateFunctionExpr>| CellState::of(aggregate, &schema, &table_columns).is_some();
    // With a filter, `GroupById` finds the rows of a question that comes again added up.
    let comes_added_up = source.has_conditions() && aggregates.iter().all(has_sums);
    if !possible || groups.is_empty() || comes_added_up {
        return None;
    }
    let split =
        source.without(|part, table, columns| known_aggregates::known_group(part, table, columns, &groups, aggregates));
    let (input, known) = match split {
        Some((rest, known)) => {
            let scan = DataSourceExec::from_data_source(rest);
            (Arc::new(CooperativeExec::new(scan)) as Arc<dyn ExecutionPlan>, known)
        }
        None => (Arc::clone(input), Vec::new()),
    };
    let way = ByProcess { known: Arc::new(known), groups };
    Some(Arc::new(PartialAggregate::new(aggregate, input, way)))
}

impl AggregateStrategy for ByProcess {
    const NAME: &'static str = "ByProcessExec";

    fn groups(&self) -> &[usize] {
        &self.groups
    }

    fn more(&self) -> String {
        if self.known.is_empty() { String::new() } else { format!(", parts_known={}", self.known.len()) }
    }

    fn states(
        node: &PartialAggregate<Self>,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let batches = node.input.execute(partition, Arc::clone(context))?;
        let states = node.clone().aggregate(batches, node.baseline(partition), partition == 0);
        Ok(futures::stream::once(states).boxed())
    }
}

impl PartialAggregate<ByProcess> {
    /// Aggregates one partition. The `first` one also adds the groups that are known from statistics.
    async fn aggregate(
        self,
        mut batches: SendableRecordBatchStream,
        metrics: BaselineMetrics,
        first: bool,
    ) -> Result<RecordBatch> {
        let mut groups = GroupAccumulators::new();
        for known in self.way.known.iter().filter(|_| first) {
            let accumulators = self.accumulators(&mut groups, &known.group)?;
            for (accumulator, state) in accumulators.iter_mut().zip(&known.states) {
                accumulator.merge_batch(state)?;
            }
        }
        let mut arguments: Vec<AggregateArguments> =
            self.aggregates.iter().map(|aggregate| AggregateArguments::new(aggregate.expressions())).collect();
        while let Some(batch) = batches.next().await {
            let (batch, _timer) = (batch?, metrics.elapsed_compute().timer());
            if batch.num_rows() == 0 {
                continue;
            }
            let group = self.way.groups.iter().map(|column| ScalarValue::try_from_array(batch.column(*column), 0));
            let group = group.collect::<Result<Vec<_>>>()?;
            let accumulators = self.accumulators(&mut groups, &group)?;
            for (accumulator, arguments) in accumulators.iter_mut().zip(&mut arguments) {
                accumulator.update_batch(&arguments.evaluate(&batch)?)?;
            }
        }
        let mut columns: Vec<Vec<ScalarValue>> = vec![Vec::with_capacity(groups.len()); self.schema.fields().len()];
        let count = groups.len();
        for (group, accumulators) in groups {
            let mut row = group;
            for (mut accumulator, aggregate) in accumulators.into_iter().zip(&self.aggregates) {
                let mut state = accumulator.state()?;
                if aggregate.fun().name() == "avg"
                    && let [count @ ScalarValue::UInt64(Some(0)), _] = &mut state[..]
                {
                    // The accumulator that merges states takes a count of 0 for a value, and AVG would be 0/0.
                    *count = ScalarValue::UInt64(None);
                }
                row.extend(state);
            }
            columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
        }
        metrics.output_rows().add(count);
        if count == 0 {
            return Ok(RecordBatch::new_empty(self.schema));
        }
        let columns = columns.into_iter().map(ScalarValue::iter_to_array).collect::<Result<Vec<ArrayRef>>>()?;
        Ok(RecordBatch::try_new(self.schema, columns)?)
    }

    /// The accumulators of a group, created where the group is new.
    fn accumulators<'a>(
        &self,
        groups: &'a mut GroupAccumulators,
        group: &[ScalarValue],
    ) -> Result<&'a mut Vec<Box<dyn Accumulator>>> {
        if !groups.contains_key(group) {
            let new = self.aggregates.iter().map(|aggregate| aggregate.create_accumulator());
            groups.insert(group.to_vec(), new.collect::<Result<_>>()?);
        }
        groups.get_mut(group).ok_or_else(|| DataFusionError::Internal("a group that was just made".into()))
    }
}

/// The accumulators of each group so far.
type GroupAccumulators = HashMap<Vec<ScalarValue>, Vec<Box<dyn Accumulator>>>;
