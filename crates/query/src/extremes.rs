//! MIN and MAX of floats by group, in the order in which a NaN is larger than any number, as without GROUP BY. DataFusion's own
//! replace a NaN by whatever value comes next, and miss an infinite number that is the only value.

use arrow::array::ArrowNativeTypeOp;
use arrow::datatypes::{ArrowNumericType, DataType, FieldRef, Float32Type, Float64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::min_max::{Max, Min};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Documentation, GroupsAccumulator, ReversedUDAF, SetMonotonicity, Signature,
    StatisticsArgs,
};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

/// The function `min` or `max`.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Extreme<Function>(Function);

/// The function `min`.
pub(super) type Smallest = Extreme<Min>;
/// The function `max`.
pub(super) type Largest = Extreme<Max>;

impl<Function: AggregateUDFImpl + Eq + std::hash::Hash> AggregateUDFImpl for Extreme<Function> {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn signature(&self) -> &Signature {
        self.0.signature()
    }
    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.0.return_type(arguments)
    }
    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        self.0.coerce_types(arguments)
    }
    fn state_fields(&self, arguments: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.0.state_fields(arguments)
    }
    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.0.accumulator(arguments)
    }
    fn create_sliding_accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.0.create_sliding_accumulator(arguments)
    }
    fn groups_accumulator_supported(&self, arguments: AccumulatorArgs<'_>) -> bool {
        self.0.groups_accumulator_supported(arguments)
    }
    fn create_groups_accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        let is_largest = self.0.is_descending() == Some(true);
        match arguments.return_field.data_type() {
            DataType::Float64 => Ok(by_group::<Float64Type>(is_largest)),
            DataType::Float32 => Ok(by_group::<Float32Type>(is_largest)),
            _ => self.0.create_groups_accumulator(arguments),
        }
    }
    fn is_descending(&self) -> Option<bool> {
        self.0.is_descending()
    }
    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.0.order_sensitivity()
    }
    fn reverse_expr(&self) -> ReversedUDAF {
        self.0.reverse_expr()
    }
    fn documentation(&self) -> Option<&Documentation> {
        self.0.documentation()
    }
    fn set_monotonicity(&self, kind: &DataType) -> SetMonotonicity {
        self.0.set_monotonicity(kind)
    }
    fn value_from_stats(&self, statistics: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        self.0.value_from_stats(statistics)
    }
}

/// The largest or smallest float of each group.
fn by_group<T: ArrowNumericType + Send + Sync>(is_largest: bool) -> Box<dyn GroupsAccumulator> {
    let take = move |extreme: &mut T::Native, value: T::Native| {
        if if is_largest { value.is_gt(*extreme) } else { value.is_lt(*extreme) } {
            *extreme = value;
        }
    };
    let first = if is_largest { T::Native::MIN_TOTAL_ORDER } else { T::Native::MAX_TOTAL_ORDER };
    Box::new(PrimitiveGroupsAccumulator::<T, _>::new(&T::DATA_TYPE, take).with_starting_value(first))
}
