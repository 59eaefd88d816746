//! Codes of columns (ids of texts, offsets of integers) as segments hold them: unsigned, of one, two or four bytes.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::compute::max;
use arrow::datatypes::{ArrowNumericType, DataType, UInt8Type, UInt16Type, UInt32Type};

/// Calls a generic function with the array's type, one of the three types that codes have.
macro_rules! of_codes {
    ($codes:expr, $of:ident($($argument:expr),*)) => {
        match $codes.data_type() {
            DataType::UInt8 => $of::<UInt8Type>($codes $(, $argument)*),
            DataType::UInt16 => $of::<UInt16Type>($codes $(, $argument)*),
            _ => $of::<UInt32Type>($codes $(, $argument)*),
        }
    };
}

/// Adds `stride` times the code of every row, that of NULL being `null`.
pub(super) fn add_codes(codes: &ArrayRef, stride: usize, null: usize, sums: &mut [usize]) {
    fn add<T: ArrowPrimitiveType<Native: Into<u32>>>(codes: &ArrayRef, stride: usize, null: usize, sums: &mut [usize]) {
        let Some(codes) = codes.as_primitive_opt::<T>() else { return };
        // A code past the last belongs to a row that is NULL, where the code has no meaning.
        let values = codes.values().iter().map(|code| Into::<u32>::into(*code) as usize);
        match codes.nulls() {
            None => sums.iter_mut().zip(values).for_each(|(sum, code)| *sum += code.min(null) * stride),
            Some(valid) => sums.iter_mut().zip(values).zip(valid.iter()).for_each(|((sum, code), valid)| {
                *sum += if valid { code.min(null) } else { null } * stride;
            }),
        }
    }
    of_codes!(codes, add(stride, null, sums));
}

/// The code of each row. The code of a row that is NULL has no meaning.
pub(super) fn codes(codes: &ArrayRef) -> Vec<usize> {
    fn all<T: ArrowPrimitiveType<Native: Into<u32>>>(codes: &ArrayRef) -> Vec<usize> {
        let values = codes.as_primitive_opt::<T>().map(|codes| codes.values().iter());
        values.into_iter().flatten().map(|code| Into::<u32>::into(*code) as usize).collect()
    }
    of_codes!(codes, all())
}

/// The largest code of a row that is not NULL; 0 if all rows are NULL.
pub(super) fn largest(codes: &ArrayRef) -> Option<usize> {
    fn of<T: ArrowNumericType<Native: Into<u32>>>(codes: &ArrayRef) -> Option<usize> {
        let largest = max(codes.as_primitive_opt::<T>()?).map(Into::<u32>::into);
        Some(largest.unwrap_or_default() as usize)
    }
    of_codes!(codes, of())
}
