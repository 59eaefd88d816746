//! COUNT, SUM and AVG without GROUP BY: the first half of such an aggregate, next to the scan. Times are added up as the integers
//! that they are stored as, under the bits of the filter, without an array of the rows that it keeps.
//!
//! The sum of times is exact, so it is that of any other order of adding. Other floats are added in the order of the rows.

use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float64Type, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use probe_proto::TIMES_PER_SECOND;
use probe_proto::table::ColumnType;
use probe_store::PackedColumn;

use super::aggregate_rule::AggregateRule;
use super::kept_sum;
use super::queue::Queue;
use super::scan::{KeptRows, Scan};
use super::source::PartsSource;

/// Replaces aggregates by [`TotalsExec`] where that is possible.
pub(super) const RULE: AggregateRule = AggregateRule {
    name: "Totals",
    replacement: |aggregate| Some(Arc::new(TotalsExec::of(aggregate)?) as Arc<dyn ExecutionPlan>),
};

/// What is added up for one aggregate. A column is an index in the input.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    Rows,
    Values(usize),
    Sum(usize),
    Mean(usize),
}

impl Wanted {
    /// What `aggregate` needs of the columns of `input`; None where it is not one of these.
    fn of(aggregate: &AggregateFunctionExpr, input: &SchemaRef) -> Option<Self> {
        let is_plain = !aggregate.is_distinct() && !aggregate.ignore_nulls() && aggregate.order_bys().is_empty();
        let [argument] = &aggregate.expressions()[..] else { return None };
        let column = argument.downcast_ref::<Column>().map(Column::index);
        let is_float = |column: &usize| input.field(*column).data_type() == &DataType::Float64;
        let is_value = argument.downcast_ref::<Literal>().is_some_and(|literal| !literal.value().is_null());
        let wanted = match (aggregate.fun().name(), column) {
            ("count", Some(column)) => Self::Values(column),
            ("count", None) if is_value => Self::Rows,
            ("sum", Some(column)) if is_float(&column) => Self::Sum(column),
            ("avg", Some(column)) if is_float(&column) => Self::Mean(column),
            _ => return None,
        };
        is_plain.then_some(wanted)
    }

    /// The types of the state that the other half of the aggregate takes.
    fn types(self) -> &'static [DataType] {
        match self {
            Self::Rows | Self::Values(_) => &[DataType::Int64],
            Self::Sum(_) => &[DataType::Float64],
            Self::Mean(_) => &[DataType::UInt64, DataType::Float64],
        }
    }

    fn state(self, total: &Total) -> Vec<ScalarValue> {
        match self {
            Self::Rows | Self::Values(_) => vec![ScalarValue::Int64(Some(total.values as i64))],
            Self::Sum(_) => vec![ScalarValue::Float64(total.sum())],
            Self::Mean(_) => vec![ScalarValue::UInt64(Some(total.values)), ScalarValue::Float64(total.sum())],
        }
    }
}

/// The rows of one aggregate so far.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    values: u64,
    /// Times, in multiples of 1/[`TIMES_PER_SECOND`].
    multiples: i128,
    /// Other floats.
    floats: f64,
}

impl Total {
    fn add(&mut self, wanted: Wanted, rows: &KeptRows) -> Result<()> {
        match wanted {
            Wanted::Rows => self.values += rows.count() as u64,
            Wanted::Values(column) => self.values += count(&rows.rows.columns[column], rows) as u64,
            Wanted::Sum(column) | Wanted::Mean(column) => self.add_values(column, rows)?,
        }
        Ok(())
    }

    fn add_values(&mut self, column: usize, rows: &KeptRows) -> Result<()> {
        if let PackedColumn::Offsets { base, offsets, kind: ColumnType::Float64 } = &rows.rows.columns[column]
            && let Some((sum, values)) = kept_sum::sum(offsets, rows.bits())
        {
            self.values += values as u64;
            self.multiples += i128::from(*base) * values as i128 + i128::from(sum);
            return Ok(());
        }
        let kept = rows.rows.project(&[column]);
        let kept = rows.keep.as_ref().map_or_else(|| Ok(kept.clone()), |keep| kept.filter(keep))?;
        let array = kept.columns[0].array(kept.rows)?;
        let floats = array.as_primitive_opt::<Float64Type>();
        let floats = floats.ok_or_else(|| DataFusionError::Internal("a sum of what is no float".into()))?;
        self.values += (floats.len() - floats.null_count()) as u64;
        self.floats += arrow::compute::sum(floats).unwrap_or_default();
        Ok(())
    }

    /// The sum; NULL where there are no values.
    fn sum(&self) -> Option<f64> {
        (self.values > 0).then(|| self.multiples as f64 / TIMES_PER_SECOND as f64 + self.floats)
    }
}

/// The number of rows that are kept and have a value.
fn count(column: &PackedColumn, rows: &KeptRows) -> usize {
    match column {
        PackedColumn::Constant(value) if value.is_null() => 0,
        PackedColumn::Constant(_) => rows.count(),
        PackedColumn::Offsets { offsets: values, .. }
        | PackedColumn::Text { ids: values, .. }
        | PackedColumn::Array(values) => kept_sum::count(values, rows.bits()),
    }
}

/// The first half of an aggregate over a scan.
#[derive(Debug, Clone)]
struct TotalsExec {
    /// The scan.
    input: Arc<dyn ExecutionPlan>,
    wanted: Vec<Wanted>,
    aggregates: Vec<Arc<AggregateFunctionExpr>>,
    /// The state of each aggregate.
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// The queue of parts that the partitions of one execution share.
    queue: Arc<OnceLock<Arc<Queue>>>,
}

impl TotalsExec {
    /// The replacement of `aggregate`; None where this is not possible.
    fn of(aggregate: &AggregateExec) -> Option<Self> {
        let input = aggregate.input();
        let source = PartsSource::of(input)?;
        let schema = input.schema();
        let aggregates = aggregate.aggr_expr();
        let wanted = aggregates.iter().map(|one| Wanted::of(one, &schema)).collect::<Option<Vec<_>>>()?;
        let fields = aggregate.schema();
        let types = wanted.iter().flat_map(|wanted| wanted.types());
        let possible = *aggregate.mode() == AggregateMode::Partial
            && aggregate.group_expr().is_empty()
            && aggregate.limit_options().is_none()
            && aggregate.filter_expr().iter().all(Option::is_none)
            && source.is_complete()
            && fields.fields().iter().map(|field| field.data_type()).eq(types);
        possible.then(|| Self {
            input: Arc::clone(input),
            wanted,
            aggregates: aggregates.to_vec(),
            schema: fields,
            properties: Arc::clone(aggregate.properties()),
            metrics: ExecutionPlanMetricsSet::new(),
            queue: Arc::default(),
        })
    }

    fn scan(&self, partition: usize, context: &TaskContext) -> Result<Scan> {
        let source = PartsSource::of(&self.input);
        let source = source.ok_or_else(|| DataFusionError::Internal("TotalsExec is not over a scan".into()))?;
        source.scan(partition, Arc::clone(self.queue.get_or_init(|| source.queue())), context)
    }

    /// The states of one partition's rows.
    async fn total(self, mut scan: Scan, metrics: BaselineMetrics) -> Result<RecordBatch> {
        let mut totals = vec![Total::default(); self.wanted.len()];
        while let Some(rows) = scan.next_kept() {
            let rows = rows?;
            scan.metrics.output_rows().add(rows.count());
            let timer = metrics.elapsed_compute().timer();
            for (total, wanted) in totals.iter_mut().zip(&self.wanted) {
                total.add(*wanted, &rows)?;
            }
            timer.done();
            // Other tasks have their turn, and an abandoned query ends here.
            tokio::task::coop::consume_budget().await;
        }
        let states = self.wanted.iter().zip(&totals).flat_map(|(wanted, total)| wanted.state(total));
        let columns = states.map(|state| state.to_array()).collect::<Result<Vec<ArrayRef>>>()?;
        metrics.output_rows().add(1);
        Ok(RecordBatch::try_new(self.schema, columns)?)
    }
}

impl DisplayAs for TotalsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let aggregates: Vec<&str> = self.aggregates.iter().map(|aggregate| aggregate.name()).collect();
        write!(f, "TotalsExec: aggr=[{}]", aggregates.join(", "))
    }
}

impl ExecutionPlan for TotalsExec {
    fn name(&self) -> &'static str {
        "TotalsExec"
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
        for expression in self.aggregates.iter().flat_map(|aggregate| aggregate.expressions()) {
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
        let scan = self.scan(partition, &context)?;
        let totals = self.clone().total(scan, BaselineMetrics::new(&self.metrics, partition));
        let batches = futures::stream::once(totals);
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
