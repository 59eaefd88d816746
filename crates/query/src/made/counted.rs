//! Functions that count the arrays they make: before they make them, and for as long as the arrays exist.

use std::hash::{Hash, Hasher};
use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, make_array};
use arrow::buffer::Buffer;
use arrow::compute::concat;
use arrow::compute::kernels::concat_elements::concat_elements_dyn;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{DataFusionError, Result, ScalarValue, plan_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use probe_common::error::Error;

use super::growth::{self, ResultGrowth};

/// The most bytes of a value that all rows of a query share: it is repeated where it meets a column, which is not counted.
const MAX_CONSTANT: usize = 64 << 10;
/// Copies of a constant that the optimizer may have.
const COPIES: usize = 8;
/// Bytes that one call may make. A function that would make more is called for a few rows at a time, and the query can end in
/// between.
const MAX_CALL: usize = 1 << 20;
/// Smaller arrays are not counted: they are bounded by the number of rows of a batch (`width`).
const MIN_COUNTED_BYTES: usize = 16 << 10;

/// A function that wraps another one and counts what it makes.
#[derive(Debug)]
pub(super) struct CountedFunction {
    does: CountedOperation,
    growth: ResultGrowth,
    signature: Signature,
    pool: Arc<dyn MemoryPool>,
    /// The memory of results where no argument is a column: the plan keeps them.
    constant: MemoryReservation,
}

/// The wrapped operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum CountedOperation {
    /// A call of a function.
    Function(Arc<ScalarUDF>),
    /// `||`
    Join,
    /// Nothing: the argument is counted after it was made.
    Nothing,
}

impl CountedFunction {
    pub(super) fn new(does: CountedOperation, growth: ResultGrowth, pool: &Arc<dyn MemoryPool>) -> Self {
        let signature = match &does {
            CountedOperation::Function(function) => function.signature().clone(),
            CountedOperation::Join => Signature::user_defined(Volatility::Immutable),
            CountedOperation::Nothing => Signature::any(1, Volatility::Immutable),
        };
        let constant = MemoryConsumer::new("constants").register(pool);
        Self { does, growth, signature, pool: Arc::clone(pool), constant }
    }

    /// Whether this is `||`. A chain of `||` becomes a single one.
    pub(super) fn is_join(&self) -> bool {
        self.does == CountedOperation::Join
    }

    /// The type to which all operands of `||` are converted.
    fn joined(types: &[DataType]) -> Result<DataType> {
        let Some((first, others)) = types.split_first() else { return plan_err!("|| has two sides") };
        others.iter().try_fold(first.clone(), |left, right| {
            let (left, right) = BinaryTypeCoercer::new(&left, &Operator::StringConcat, right).get_input_types()?;
            BinaryTypeCoercer::new(&left, &Operator::StringConcat, &right).get_result_type()
        })
    }

    fn call(&self, args: ScalarFunctionArgs, constant: bool) -> Result<ColumnarValue> {
        match &self.does {
            CountedOperation::Function(function) => function.invoke_with_args(args),
            CountedOperation::Join => {
                let sides = ColumnarValue::values_to_arrays(&args.args)?;
                let Some((first, others)) = sides.split_first() else { return plan_err!("|| has two sides") };
                let joined = others.iter().try_fold(Arc::clone(first), |left, right| -> Result<ArrayRef> {
                    Ok(concat_elements_dyn(&left, right)?)
                })?;
                Ok(match constant {
                    true => ColumnarValue::Scalar(ScalarValue::try_from_array(&joined, 0)?),
                    false => ColumnarValue::Array(joined),
                })
            }
            CountedOperation::Nothing => {
                args.args.into_iter().next().ok_or_else(|| DataFusionError::Plan("nothing".into()))
            }
        }
    }

    /// Calls the function for `rows_of_part` rows at a time. Memory is taken for each call by itself, and a query that is over
    /// gets none.
    fn call_in_parts(
        &self,
        args: &ScalarFunctionArgs,
        rows_of_part: usize,
        reservation: &MemoryReservation,
    ) -> Result<ColumnarValue> {
        let mut parts = Vec::new();
        for begin in (0..args.number_rows).step_by(rows_of_part) {
            let rows = rows_of_part.min(args.number_rows - begin);
            let slice = |arg: &ColumnarValue| match arg {
                ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(begin, rows)),
                ColumnarValue::Scalar(scalar) => ColumnarValue::Scalar(scalar.clone()),
            };
            let part =
                ScalarFunctionArgs { args: args.args.iter().map(slice).collect(), number_rows: rows, ..args.clone() };
            let (before, most) = (reservation.size(), self.growth.max_bytes(&part.args, rows)?);
            reservation.try_grow(most)?;
            let made = self.call(part, false)?.into_array(rows)?;
            reservation.try_resize(before + made.get_array_memory_size())?;
            parts.push(made);
        }
        // The values of views stay where they are; others are copied.
        reservation.try_grow(parts.iter().map(already_there).sum())?;
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        Ok(ColumnarValue::Array(concat(&parts)?))
    }

    fn keep(&self, value: ColumnarValue, reservation: MemoryReservation) -> Result<ColumnarValue> {
        match value {
            ColumnarValue::Scalar(scalar) => {
                let bytes = growth::scalar_bytes(&scalar);
                if bytes > MAX_CONSTANT {
                    return Err(too_large(bytes));
                }
                let counted = bytes * COPIES;
                if counted > self.constant.size() {
                    self.constant.try_resize(counted)?;
                }
                Ok(ColumnarValue::Scalar(scalar))
            }
            ColumnarValue::Array(array) => {
                let made = array.get_array_memory_size();
                if made < reservation.size() {
                    reservation.try_resize(made)?;
                }
                if reservation.size() < MIN_COUNTED_BYTES {
                    return Ok(ColumnarValue::Array(array));
                }
                Ok(ColumnarValue::Array(make_array(held(&array.to_data(), &Arc::new(AssertUnwindSafe(reservation)))?)))
            }
        }
    }
}

impl ScalarUDFImpl for CountedFunction {
    fn name(&self) -> &str {
        match &self.does {
            CountedOperation::Function(function) => function.name(),
            CountedOperation::Join => "||",
            CountedOperation::Nothing => "counted",
        }
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        match (&self.does, args) {
            (CountedOperation::Function(function), args) => function.schema_name(args),
            (CountedOperation::Join, args) => {
                let parts: Vec<_> = args.iter().map(|arg| arg.schema_name().to_string()).collect();
                Ok(parts.join(" || "))
            }
            (_, args) => Ok(args.first().map(|arg| arg.schema_name().to_string()).unwrap_or_default()),
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> Result<Interval> {
        let types: Vec<_> = inputs.iter().map(|input| input.data_type()).collect();
        Interval::make_unbounded(&self.return_type(&types)?)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match &self.does {
            CountedOperation::Function(function) => function.return_type(types),
            CountedOperation::Join => Self::joined(types),
            CountedOperation::Nothing => Ok(types.first().cloned().unwrap_or(DataType::Null)),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        match &self.does {
            CountedOperation::Function(function) => function.return_field_from_args(args),
            CountedOperation::Join | CountedOperation::Nothing => {
                let types: Vec<_> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
                let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
                Ok(Arc::new(arrow::datatypes::Field::new(self.name(), self.return_type(&types)?, nullable)))
            }
        }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match &self.does {
            CountedOperation::Function(function) => function.coerce_types(types),
            CountedOperation::Join => Ok(vec![Self::joined(types)?; types.len()]),
            CountedOperation::Nothing => Ok(types.to_vec()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows_of_batch = args.number_rows;
        let rows = if constant { 1 } else { rows_of_batch };
        let most = match &self.does {
            CountedOperation::Nothing => match args.args.first() {
                Some(ColumnarValue::Array(array)) => already_there(array),
                _ => 0,
            },
            _ => self.growth.max_bytes(&args.args, rows)?,
        };
        let exact = matches!(self.growth, ResultGrowth::Repeat | ResultGrowth::Pad);
        if constant && exact && most > 8 * MAX_CONSTANT {
            return Err(too_large(most));
        }
        let reservation = MemoryConsumer::new("function").register(&self.pool);
        if rows > 1 && most > MAX_CALL && self.does != CountedOperation::Nothing {
            let made = self.call_in_parts(&args, rows / (most / MAX_CALL).clamp(1, rows), &reservation)?;
            return self.keep(made, reservation);
        }
        reservation.try_grow(most)?;
        let value = spread(self.call(args, constant)?, rows_of_batch, &reservation)?;
        self.keep(value, reservation)
    }
}

impl PartialEq for CountedFunction {
    fn eq(&self, other: &Self) -> bool {
        (&self.does, self.growth) == (&other.does, other.growth)
    }
}

impl Eq for CountedFunction {}

impl Hash for CountedFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.does, self.growth).hash(state);
    }
}

/// Bytes of an array that are its own: views refer to the bytes of other arrays.
fn already_there(array: &ArrayRef) -> usize {
    match array.data_type() {
        DataType::Utf8View | DataType::BinaryView => 0,
        _ => growth::array_bytes(array.as_ref()),
    }
}

/// Makes a column of a long value that is the same for all `rows` of a batch, and takes memory for it. Without that, the value would be
/// copied for each row later, where nothing counts it. A CASE that takes the same branch for all rows of a batch leads to such values.
fn spread(value: ColumnarValue, rows: usize, reservation: &MemoryReservation) -> Result<ColumnarValue> {
    let ColumnarValue::Scalar(scalar) = &value else { return Ok(value) };
    let bytes = growth::scalar_bytes(scalar).saturating_mul(rows);
    if rows == 1 || bytes <= MAX_CALL {
        return Ok(value);
    }
    reservation.try_grow(bytes)?;
    Ok(ColumnarValue::Array(value.into_array(rows)?))
}

fn too_large(bytes: usize) -> DataFusionError {
    let error = Error::limit(format!(
        "a value that is the same for all rows would have {bytes} bytes; the limit is {MAX_CONSTANT}"
    ));
    DataFusionError::External(Box::new(error.hint("make shorter texts: a smaller number in repeat, lpad or rpad")))
}

/// A buffer, and the memory that is reserved for it.
struct ReservedBuffer {
    _buffer: Buffer,
    _reservation: Arc<AssertUnwindSafe<MemoryReservation>>,
}

/// The array of `data`, which releases `reservation` when its last buffer is dropped.
fn held(data: &ArrayData, reservation: &Arc<AssertUnwindSafe<MemoryReservation>>) -> Result<ArrayData> {
    let hold = |buffer: &Buffer| {
        let owner = Arc::new(ReservedBuffer { _buffer: buffer.clone(), _reservation: Arc::clone(reservation) });
        let Some(begin) = NonNull::new(buffer.as_ptr().cast_mut()) else { return buffer.clone() };
        // SAFETY: the address and length are those of `buffer`, which the owner keeps for as long as the new buffer exists.
        unsafe { Buffer::from_custom_allocation(begin, buffer.len(), owner) }
    };
    let children = data.child_data().iter().map(|child| held(child, reservation)).collect::<Result<Vec<_>>>()?;
    let buffers = data.buffers().iter().map(hold).collect();
    let builder = data.clone().into_builder().buffers(buffers).child_data(children);
    // SAFETY: only the owner of the buffers has changed.
    Ok(unsafe { builder.build_unchecked() })
}
