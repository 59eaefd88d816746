//! What grouped sums give an aggregate: the state that its accumulator would have after the rows of each cell.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array};
use arrow::compute;
use arrow::datatypes::{DataType, Int64Type, Schema};
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;

use super::grouped_sums::{GroupedSums, WantedSum};
use super::plain_argument::{PlainArgument, is_unordered};

/// Functions whose result depends on which values there are, and not on how often.
const OF_DISTINCT_VALUES: &[&str] = &["min", "max", "bool_and", "bool_or"];

/// The state of an aggregate for each cell. A column is an index in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CellState {
    /// COUNT(*).
    Rows,
    /// COUNT of a column of times.
    Values(usize),
    Sum(usize),
    Mean(usize),
    Lowest(usize),
    Highest(usize),
    /// The aggregate is about the values of key columns, each of which counts once: it takes cells as rows.
    OfKeys,
}

impl CellState {
    /// The state of `aggregate`, whose arguments are over `input`, and whose columns are those with the indices `table_columns` in
    /// the table. None where cells don't have it.
    pub(super) fn of(aggregate: &AggregateFunctionExpr, input: &Schema, table_columns: &[usize]) -> Option<Self> {
        if !is_unordered(aggregate) {
            return None;
        }
        let name = aggregate.fun().name();
        let PlainArgument::Column(column) = PlainArgument::of(aggregate)? else {
            return (name == "count" && !aggregate.is_distinct()).then_some(Self::Rows);
        };
        let index = table_columns[column];
        let state = match (name, input.field(column).data_type()) {
            ("count", DataType::Float64) if !aggregate.is_distinct() => Self::Values(index),
            ("sum", DataType::Float64) if !aggregate.is_distinct() => Self::Sum(index),
            ("avg", DataType::Float64) if !aggregate.is_distinct() => Self::Mean(index),
            ("min", DataType::Float64) => Self::Lowest(index),
            ("max", DataType::Float64) => Self::Highest(index),
            (_, DataType::Float64) => return None,
            ("count", _) if aggregate.is_distinct() => Self::OfKeys,
            (name, _) if OF_DISTINCT_VALUES.contains(&name) => Self::OfKeys,
            _ => return None,
        };
        let fields = aggregate.state_fields().ok()?;
        let types = fields.iter().map(|field| field.data_type());
        (state == Self::OfKeys || types.eq(state.types())).then_some(state)
    }

    /// The types of the state.
    fn types(self) -> &'static [DataType] {
        match self {
            Self::Rows | Self::Values(_) => &[DataType::Int64],
            Self::Sum(_) | Self::Lowest(_) | Self::Highest(_) => &[DataType::Float64],
            Self::Mean(_) => &[DataType::UInt64, DataType::Float64],
            Self::OfKeys => &[],
        }
    }

    /// What has to be added up for it.
    pub(super) fn wanted(self) -> Option<WantedSum> {
        match self {
            Self::Rows | Self::OfKeys => None,
            Self::Values(column) | Self::Sum(column) | Self::Mean(column) => Some(WantedSum { column, bounds: false }),
            Self::Lowest(column) | Self::Highest(column) => Some(WantedSum { column, bounds: true }),
        }
    }

    /// The states of the cells that are kept (None: of all), in the form that `GroupsAccumulator::merge_batch` takes. A cell for
    /// which `filter` is not true has the state of no rows: the accumulator assumes that each group it was given has a state in
    /// every batch.
    ///
    /// # Errors
    /// The sums don't have what is wanted.
    pub(super) fn arrays(
        self,
        sums: &GroupedSums,
        keep: Option<&BooleanArray>,
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let state = |array: ArrayRef| {
            let kept = keep.map_or_else(|| Ok(Arc::clone(&array)), |keep| compute::filter(&array, keep))?;
            filter.map_or_else(|| Ok(Arc::clone(&kept)), |filter| self.of_no_rows(&kept, filter))
        };
        self.whole(sums)?.into_iter().map(state).collect()
    }

    /// The states, with that of no rows where `filter` is not true.
    fn of_no_rows(self, states: &ArrayRef, filter: &BooleanArray) -> Result<ArrayRef> {
        if let (Self::Rows | Self::Values(_), Some(counts)) = (self, states.as_primitive_opt::<Int64Type>()) {
            let counts = counts.values().iter().zip(filter);
            let counts = counts.map(|(count, kept)| if kept == Some(true) { *count } else { 0 });
            return Ok(Arc::new(Int64Array::from_iter_values(counts)));
        }
        let others: BooleanArray = filter.iter().map(|kept| Some(kept != Some(true))).collect();
        Ok(compute::nullif(states, &others)?)
    }

    /// The state of every cell.
    fn whole(self, sums: &GroupedSums) -> Result<Vec<ArrayRef>> {
        let arrays = match self {
            Self::Rows => Some(vec![sums.rows()]),
            Self::Values(column) => sums.values(column).map(|values| vec![values]),
            Self::Sum(column) => sums.sums(column).map(|sums| vec![sums]),
            Self::Mean(column) => sums.some_values(column).zip(sums.sums(column)).map(|(count, sum)| vec![count, sum]),
            Self::Lowest(column) => sums.lowest(column).map(|lowest| vec![lowest]),
            Self::Highest(column) => sums.highest(column).map(|highest| vec![highest]),
            Self::OfKeys => None,
        };
        arrays.ok_or_else(|| DataFusionError::Internal("a sum that was not added up".into()))
    }
}

/// The column of the input that the aggregate of this state looks at as a key.
pub(super) fn key_of(state: CellState, aggregate: &AggregateFunctionExpr) -> Option<usize> {
    match PlainArgument::of(aggregate)? {
        PlainArgument::Column(column) => (state == CellState::OfKeys).then_some(column),
        PlainArgument::Constant => None,
    }
}
