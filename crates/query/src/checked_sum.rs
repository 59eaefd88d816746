//! SUM of integers that fails where the sum does not fit its type. DataFusion's own goes on from the other end of the range, so
//! that a sum of positive numbers may come out negative.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{ArrayRef, ArrowNativeTypeOp, ArrowNumericType, AsArray, BooleanArray};
use arrow::datatypes::{DataType, FieldRef, Int64Type, UInt64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Documentation, EmitTo, Expr, GroupsAccumulator, Operator, ReversedUDAF,
    SetMonotonicity, Signature, StatisticsArgs,
};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

use crate::checked_arithmetic::does_not_fit;

/// The function `sum`.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CheckedSum(Sum);

impl AggregateUDFImpl for CheckedSum {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn signature(&self) -> &Signature {
        self.0.signature()
    }
    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.0.return_type(arguments)
    }
    fn state_fields(&self, arguments: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.0.state_fields(arguments)
    }
    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        checked(arguments, |arguments| self.0.accumulator(arguments))
    }
    fn create_sliding_accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        checked(arguments, |arguments| self.0.create_sliding_accumulator(arguments))
    }
    fn groups_accumulator_supported(&self, arguments: AccumulatorArgs<'_>) -> bool {
        self.0.groups_accumulator_supported(arguments)
    }
    fn create_groups_accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        match arguments.return_field.data_type() {
            DataType::Int64 => Ok(CheckedGroupSums::over::<Int64Type>(DataType::Int64)),
            DataType::UInt64 => Ok(CheckedGroupSums::over::<UInt64Type>(DataType::UInt64)),
            _ => self.0.create_groups_accumulator(arguments),
        }
    }
    fn reverse_expr(&self) -> ReversedUDAF {
        self.0.reverse_expr()
    }
    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.0.order_sensitivity()
    }
    fn documentation(&self) -> Option<&Documentation> {
        self.0.documentation()
    }
    fn set_monotonicity(&self, kind: &DataType) -> SetMonotonicity {
        self.0.set_monotonicity(kind)
    }
    fn simplify_expr_op_literal(
        &self,
        function: &AggregateFunction,
        argument: &Expr,
        operator: Operator,
        literal: &Expr,
        argument_is_left: bool,
    ) -> Result<Option<Expr>> {
        self.0.simplify_expr_op_literal(function, argument, operator, literal, argument_is_left)
    }
    fn value_from_stats(&self, statistics: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        self.0.value_from_stats(statistics)
    }
}

/// An accumulator that checks the sum of integers; for other types what `unchecked` makes.
fn checked(
    arguments: AccumulatorArgs<'_>,
    unchecked: impl FnOnce(AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>>,
) -> Result<Box<dyn Accumulator>> {
    let kind = arguments.return_field.data_type().clone();
    if !matches!(kind, DataType::Int64 | DataType::UInt64) {
        return unchecked(arguments);
    }
    Ok(match arguments.is_distinct {
        true => Box::new(DistinctIntegers { values: unchecked(arguments)?, kind }),
        false => Box::new(IntegerSum { sum: 0, count: 0, kind }),
    })
}

/// The sum of the integers of an array, and their number.
fn total(array: &ArrayRef) -> (i128, i128) {
    let sum = match array.data_type() {
        DataType::UInt64 => array.as_primitive::<UInt64Type>().iter().flatten().map(i128::from).sum(),
        _ => array.as_primitive::<Int64Type>().iter().flatten().map(i128::from).sum(),
    };
    (sum, (array.len() - array.null_count()) as i128)
}

/// A sum as a value of its type; NULL where there were no values.
///
/// # Errors
/// The type has no such value.
fn value(sum: i128, count: i128, kind: &DataType) -> Result<ScalarValue> {
    let sum = (count > 0).then_some(sum);
    let fits = match kind {
        DataType::UInt64 => sum.map(u64::try_from).transpose().map(ScalarValue::UInt64),
        _ => sum.map(i64::try_from).transpose().map(ScalarValue::Int64),
    };
    fits.map_err(|_| does_not_fit(&format!("the sum {}", sum.unwrap_or_default()), kind))
}

/// The sum of integers, of all rows or of those in a window.
#[derive(Debug)]
struct IntegerSum {
    sum: i128,
    /// Number of values in the sum. Merged states count as one value each: it only matters whether there are any.
    count: i128,
    kind: DataType,
}

impl Accumulator for IntegerSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (sum, count) = total(&values[0]);
        self.sum += sum;
        self.count += count;
        Ok(())
    }
    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (sum, count) = total(&values[0]);
        self.sum -= sum;
        self.count -= count;
        Ok(())
    }
    fn supports_retract_batch(&self) -> bool {
        true
    }
    fn evaluate(&mut self) -> Result<ScalarValue> {
        value(self.sum, self.count, &self.kind)
    }
    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }
    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The sum of the distinct integers that an accumulator of DataFusion has collected.
#[derive(Debug)]
struct DistinctIntegers {
    values: Box<dyn Accumulator>,
    kind: DataType,
}

impl Accumulator for DistinctIntegers {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.update_batch(values)
    }
    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.values.merge_batch(states)
    }
    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.retract_batch(values)
    }
    fn supports_retract_batch(&self) -> bool {
        self.values.supports_retract_batch()
    }
    fn evaluate(&mut self) -> Result<ScalarValue> {
        let state = self.values.state()?;
        let Some(ScalarValue::List(list)) = state.first() else { return self.values.evaluate() };
        let (sum, count) = total(list.values());
        value(sum, count, &self.kind)
    }
    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.values.state()
    }
    fn size(&self) -> usize {
        size_of_val(self) + self.values.size()
    }
}

/// Sums of integers by group.
struct CheckedGroupSums {
    sums: Box<dyn GroupsAccumulator>,
    kind: DataType,
    /// Whether a sum did not fit.
    has_overflowed: Arc<AtomicBool>,
}

impl CheckedGroupSums {
    fn over<T: ArrowNumericType + Send + Sync>(kind: DataType) -> Box<dyn GroupsAccumulator> {
        let has_overflowed = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&has_overflowed);
        let add = move |sum: &mut T::Native, value: T::Native| match sum.add_checked(value) {
            Ok(total) => *sum = total,
            Err(_) => noted.store(true, Ordering::Relaxed),
        };
        Box::new(Self { sums: Box::new(PrimitiveGroupsAccumulator::<T, _>::new(&kind, add)), kind, has_overflowed })
    }

    fn check(&self) -> Result<()> {
        match self.has_overflowed.load(Ordering::Relaxed) {
            true => Err(does_not_fit("a sum", &self.kind)),
            false => Ok(()),
        }
    }
}

impl GroupsAccumulator for CheckedGroupSums {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.sums.update_batch(values, groups, filter, count)?;
        self.check()
    }
    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.sums.merge_batch(states, groups, count)?;
        self.check()
    }
    fn evaluate(&mut self, emit: EmitTo) -> Result<ArrayRef> {
        self.sums.evaluate(emit)
    }
    fn state(&mut self, emit: EmitTo) -> Result<Vec<ArrayRef>> {
        self.sums.state(emit)
    }
    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        self.sums.convert_to_state(values, filter)
    }
    fn size(&self) -> usize {
        size_of_val(self) + self.sums.size()
    }
}
