//! COUNT, SUM and AVG without GROUP BY: the first half of such an aggregate, next to the scan. Times are added up as the integers
//! that they are stored as, under the bits of the filter, without an array of the rows that it keeps.
//!
//! The sum of times is exact, so it is that of any other order of adding. Other floats are added in the order of the rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float64Type, SchemaRef};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::metrics::BaselineMetrics;
use futures::StreamExt;
use futures::stream::BoxStream;
use probe_proto::TIMES_PER_SECOND;
use probe_proto::table::ColumnType;
use probe_store::PackedColumn;

use super::aggregate_rule::AggregateRule;
use super::cell_state::CellState;
use super::kept_sum;
use super::partial_aggregate::{AggregateStrategy, PartialAggregate};
use super::partition_sums::PartitionSums;
use super::plain_argument::{PlainArgument, is_unordered};
use super::scan::{PartitionScan, ScannedRows};
use super::source::PartsSource;
use super::sums_request::KeptCells;

/// Replaces aggregates by [`ScanTotals`] where that is possible.
pub(super) const RULE: AggregateRule = AggregateRule { name: "Totals", replacement };

/// What is added up for one aggregate. A column is an index in the input.
#[derive(Debug, Clone, Copy)]
enum WantedTotal {
    Rows,
    Values(usize),
    Sum(usize),
    Mean(usize),
}

impl WantedTotal {
    /// What `aggregate` needs of the columns of `input`; None where it is not one of these.
    fn of(aggregate: &AggregateFunctionExpr, input: &SchemaRef) -> Option<Self> {
        let is_float = |column: usize| input.field(column).data_type() == &DataType::Float64;
        let wanted = match (aggregate.fun().name(), PlainArgument::of(aggregate)?) {
            ("count", PlainArgument::Column(column)) => Self::Values(column),
            ("count", PlainArgument::Constant) => Self::Rows,
            ("sum", PlainArgument::Column(column)) if is_float(column) => Self::Sum(column),
            ("avg", PlainArgument::Column(column)) if is_float(column) => Self::Mean(column),
            _ => return None,
        };
        (!aggregate.is_distinct() && is_unordered(aggregate)).then_some(wanted)
    }

    /// The types of the state that the other half of the aggregate takes.
    fn types(self) -> &'static [DataType] {
        match self {
            Self::Rows | Self::Values(_) => &[DataType::Int64],
            Self::Sum(_) => &[DataType::Float64],
            Self::Mean(_) => &[DataType::UInt64, DataType::Float64],
        }
    }

    fn state(self, total: &RunningTotal) -> Vec<ScalarValue> {
        match self {
            Self::Rows | Self::Values(_) => vec![ScalarValue::Int64(Some(total.values as i64))],
            Self::Sum(_) => vec![ScalarValue::Float64(total.sum())],
            Self::Mean(_) => vec![ScalarValue::UInt64(Some(total.values)), ScalarValue::Float64(total.sum())],
        }
    }
}

/// The rows of one aggregate so far.
#[derive(Debug, Clone, Copy, Default)]
struct RunningTotal {
    values: u64,
    /// Times, in multiples of 1/[`TIMES_PER_SECOND`].
    multiples: i128,
    /// Other floats.
    floats: f64,
}

impl RunningTotal {
    fn add(&mut self, wanted: WantedTotal, rows: &ScannedRows) -> Result<()> {
        match wanted {
            WantedTotal::Rows => self.values += rows.count as u64,
            WantedTotal::Values(column) => self.values += count(&rows.rows.columns[column], rows) as u64,
            WantedTotal::Sum(column) | WantedTotal::Mean(column) => self.add_values(column, rows)?,
        }
        Ok(())
    }

    /// Adds the cells of a part in place of its rows.
    fn add_cells(&mut self, state: CellState, cells: &KeptCells) -> Result<()> {
        for cell in (0..cells.sums.cells).filter(|cell| cells.keep.as_ref().is_none_or(|keep| keep.value(*cell))) {
            match state {
                CellState::Rows => self.values += cells.sums.rows_of(cell),
                CellState::Values(column) | CellState::Sum(column) | CellState::Mean(column) => {
                    let total = cells.sums.total(column, cell);
                    let (values, sum) = total.ok_or_else(|| DataFusionError::Internal("no sum of a column".into()))?;
                    self.values += values;
                    self.multiples += i128::from(sum);
                }
                state => return Err(DataFusionError::Internal(format!("a total of {state:?}"))),
            }
        }
        Ok(())
    }

    fn add_values(&mut self, column: usize, rows: &ScannedRows) -> Result<()> {
        if let PackedColumn::Offsets { base, offsets, kind: ColumnType::Float64 } = &rows.rows.columns[column]
            && let Some(sum) = kept_sum::sum(offsets, rows.bits())
        {
            let values = kept_sum::count(offsets, rows.bits(), rows.count);
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
fn count(column: &PackedColumn, rows: &ScannedRows) -> usize {
    match column {
        PackedColumn::Constant(value) if value.is_null() => 0,
        PackedColumn::Constant(_) => rows.count,
        PackedColumn::Offsets { offsets: values, .. }
        | PackedColumn::Text { ids: values, .. }
        | PackedColumn::Array(values) => kept_sum::count(values, rows.bits(), rows.count),
    }
}

/// The first half of an aggregate over a scan: what each aggregate needs.
#[derive(Debug, Clone)]
struct ScanTotals {
    wanted: Vec<WantedTotal>,
}

/// The node that replaces `aggregate`; None where this is not possible.
fn replacement(aggregate: &AggregateExec) -> Option<Arc<dyn ExecutionPlan>> {
    let input = aggregate.input();
    let (source, schema) = (PartsSource::of(input)?, input.schema());
    let wanted = aggregate.aggr_expr().iter().map(|one| WantedTotal::of(one, &schema)).collect::<Option<Vec<_>>>()?;
    let states = aggregate.schema();
    let types = wanted.iter().flat_map(|wanted| wanted.types());
    let possible = *aggregate.mode() == AggregateMode::Partial
        && aggregate.group_expr().is_empty()
        && aggregate.limit_options().is_none()
        && aggregate.filter_expr().iter().all(Option::is_none)
        && source.is_complete()
        && states.fields().iter().map(|field| field.data_type()).eq(types);
    let way = ScanTotals { wanted };
    possible.then(|| Arc::new(PartialAggregate::new(aggregate, Arc::clone(input), way)) as Arc<dyn ExecutionPlan>)
}

impl AggregateStrategy for ScanTotals {
    const NAME: &'static str = "TotalsExec";

    fn states(
        node: &PartialAggregate<Self>,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let scan = node.scan(partition, context)?;
        let from_sums = PartitionSums::new(node, partition);
        let totals = node.way.clone().of_rows(scan, from_sums, Arc::clone(&node.schema), node.baseline(partition));
        Ok(futures::stream::once(totals).boxed())
    }
}

impl ScanTotals {
    /// The states of the rows of one partition.
    async fn of_rows(
        self,
        mut scan: PartitionScan,
        mut from_sums: Option<PartitionSums>,
        schema: SchemaRef,
        metrics: BaselineMetrics,
    ) -> Result<RecordBatch> {
        let mut totals = vec![RunningTotal::default(); self.wanted.len()];
        loop {
            if let Some(cells) = PartitionSums::next(&mut from_sums, &mut scan) {
                let (cells, _timer) = (cells?, metrics.elapsed_compute().timer());
                let states = from_sums.iter().flat_map(|from_sums| &from_sums.states);
                totals.iter_mut().zip(states).try_for_each(|(total, state)| total.add_cells(*state, &cells))?;
            } else if let Some(rows) = scan.next_kept() {
                let (rows, _timer) = (rows?, metrics.elapsed_compute().timer());
                scan.metrics.output_rows().add(rows.count);
                for (total, wanted) in totals.iter_mut().zip(&self.wanted) {
                    total.add(*wanted, &rows)?;
                }
            } else if scan.has_ended() {
                break;
            }
            // Other tasks have their turn, and an abandoned query ends here.
            tokio::task::coop::consume_budget().await;
        }
        let states = self.wanted.iter().zip(&totals).flat_map(|(wanted, total)| wanted.state(total));
        let columns = states.map(|state| state.to_array()).collect::<Result<Vec<ArrayRef>>>()?;
        metrics.output_rows().add(1);
        Ok(RecordBatch::try_new(schema, columns)?)
    }
}
