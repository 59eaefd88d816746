//! Bounds the size of what a scalar function makes of its arguments, before it is called. A function that is not named here is
//! not available: functions of a later DataFusion have to be judged first.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::ColumnarValue;

/// Bytes that each row takes in any array: a view, or offset and length.
const CELL: usize = 32;
/// Pairs of characters that a distance of texts may look at for one batch, because it cannot be stopped in between.
const MAX_PAIRS: usize = 1 << 26;

/// An upper bound of the memory that a scalar function's result takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ResultGrowth {
    /// A fixed number of bytes a row, whatever the arguments, or no new bytes.
    Fixed,
    /// A fixed number of bytes a row, of a function whose second argument is a regular expression, which must be a constant.
    Matched,
    /// The size of one of the arguments.
    Taken,
    /// The size of all arguments together, times this factor.
    Times(usize),
    Repeat,
    Pad,
    Replace,
    RegexReplace,
    ConcatWs,
    ArrayToString,
    /// As many steps as the product of its arguments' lengths.
    Distance,
}

/// The growth of a function; None where the function is not available.
pub(super) fn growth_of(name: &str) -> Option<ResultGrowth> {
    use ResultGrowth as G;
    Some(match name {
        // Numbers, times and single values.
        "abs" | "acos" | "acosh" | "asin" | "asinh" | "atan" | "atan2" | "atanh" | "cbrt" | "ceil" | "cos" | "cosh"
        | "cot" | "degrees" | "exp" | "factorial" | "floor" | "gcd" | "isnan" | "iszero" | "lcm" | "ln" | "log"
        | "log10" | "log2" | "nanvl" | "pi" | "power" | "radians" | "random" | "round" | "signum" | "sin" | "sinh"
        | "sqrt" | "tan" | "tanh" | "trunc" => G::Fixed,
        "current_date"
        | "current_time"
        | "date_bin"
        | "date_part"
        | "date_trunc"
        | "from_unixtime"
        | "make_date"
        | "make_time"
        | "now"
        | "to_date"
        | "to_local_time"
        | "to_time"
        | "to_timestamp"
        | "to_timestamp_micros"
        | "to_timestamp_millis"
        | "to_timestamp_nanos"
        | "to_timestamp_seconds"
        | "to_unixtime" => G::Fixed,
        "ascii" | "bit_length" | "character_length" | "chr" | "contains" | "ends_with" | "find_in_set"
        | "octet_length" | "starts_with" | "strpos" | "to_hex" | "uuid" | "version" => G::Fixed,
        "arrow_field" | "arrow_metadata" | "arrow_typeof" | "get_field" | "input_file_name" | "named_struct"
        | "struct" | "with_metadata" | "nullif" | "union_extract" | "union_tag" | "is_nan" => G::Fixed,
        "array_dims" | "array_element" | "array_has" | "array_length" | "array_max" | "array_min" | "array_ndims"
        | "array_position" | "cardinality" | "empty" | "array_sum" | "array_avg" | "array_product"
        | "array_any_value" => G::Fixed,
        "regexp_count" | "regexp_instr" | "regexp_like" => G::Matched,
        "arrow_cast" | "arrow_try_cast" | "coalesce" | "greatest" | "least" | "nvl" | "nvl2" => G::Taken,
        "json_array_length" => G::Fixed,
        "btrim" | "left" | "ltrim" | "right" | "rtrim" | "split_part" | "substr" | "substr_index" | "reverse" => {
            G::Times(1)
        }
        "concat" | "overlay" | "json_extract_path" | "json_extract_path_text" => G::Times(2),
        "initcap" | "lower" | "upper" | "translate" | "encode" | "decode" => G::Times(4),
        "to_char" => G::Times(16),
        "array_append" | "array_concat" | "array_distinct" | "array_except" | "array_intersect" | "array_prepend"
        | "array_remove" | "array_remove_all" | "array_remove_n" | "array_pop_back" | "array_pop_front"
        | "array_compact" | "array_reverse" | "array_slice" | "array_sort" | "array_union" | "flatten"
        | "make_array" => G::Times(4),
        "regexp_match" => G::Times(8),
        "string_to_array" => G::Times(40),
        "repeat" => G::Repeat,
        "lpad" | "rpad" => G::Pad,
        "replace" => G::Replace,
        "regexp_replace" => G::RegexReplace,
        "concat_ws" => G::ConcatWs,
        "array_to_string" => G::ArrayToString,
        "levenshtein" => G::Distance,
        _ => return None,
    })
}

/// Functions whose second argument is a regular expression: a constant, or each row would have one compiled and kept.
pub(super) fn has_pattern(name: &str) -> bool {
    matches!(growth_of(name), Some(ResultGrowth::Matched | ResultGrowth::RegexReplace)) || name == "regexp_match"
}

impl ResultGrowth {
    /// Upper bound (bytes) of the result for these arguments, including temporary memory.
    ///
    /// # Errors
    /// The call would take too long.
    pub(super) fn max_bytes(self, args: &[ColumnarValue], rows: usize) -> Result<usize> {
        let all = || args.iter().map(|arg| bytes(arg, rows)).fold(0, usize::saturating_add);
        let cells = CELL.saturating_mul(rows);
        let of_rows =
            |of: &dyn Fn(usize) -> usize| (0..rows).map(of).fold(cells, |sum, bytes| sum.saturating_add(bytes));
        Ok(match (self, args) {
            (Self::Fixed | Self::Matched | Self::Taken, _) => cells,
            (Self::Repeat, [text, times, ..]) => of_rows(&|row| length(text, row).saturating_mul(number(times, row))),
            // Characters of four bytes.
            (Self::Pad, [text, wide, ..]) => {
                of_rows(&|row| number(wide, row).saturating_mul(4).saturating_add(length(text, row)))
            }
            (Self::Replace, [text, from, to, ..]) => of_rows(&|row| {
                let (text, from, to) = (length(text, row), length(from, row), length(to, row));
                text.saturating_add((text / from.max(1) + 1).saturating_mul(to))
            }),
            (Self::RegexReplace, [text, _, to, flags @ ..]) => of_rows(&|row| {
                let (text, to) = (length(text, row), length(to, row));
                let times = if flags.is_empty() { 1 } else { text + 1 };
                // Each two bytes of the replacement may stand for a group of the match.
                text.saturating_add(times.saturating_mul(to.saturating_add((to / 2).saturating_mul(text))))
            }),
            (Self::ConcatWs, [between, ..]) => {
                let betweens = bytes(between, rows).saturating_mul(args.len());
                all().saturating_add(betweens).saturating_mul(2).saturating_add(cells)
            }
            (Self::ArrayToString, [list, between, null @ ..]) => {
                let texts = (0..rows).map(|row| {
                    let extra = null.first().map_or(0, |null| length(null, row));
                    length(between, row).saturating_add(extra)
                });
                let longest = texts.max().unwrap_or_default();
                // No item takes less than a bit.
                let items = bytes(list, rows).saturating_mul(8);
                items.saturating_mul(longest.saturating_add(8)).saturating_add(cells)
            }
            (Self::Distance, [one, other, ..]) => {
                let pairs = of_rows(&|row| length(one, row).saturating_mul(length(other, row)));
                if pairs > MAX_PAIRS {
                    return plan_err!("the texts are too long to be compared by levenshtein: compare parts of them");
                }
                all().saturating_mul(4).saturating_add(cells)
            }
            (Self::Times(times), _) => {
                all().saturating_mul(times).saturating_add(cells.saturating_mul(args.len().max(1)))
            }
            _ => all().saturating_add(cells),
        })
    }
}

/// Bytes of a value's rows when they stand by themselves.
pub(super) fn bytes(value: &ColumnarValue, rows: usize) -> usize {
    match value {
        ColumnarValue::Array(array) => array_bytes(array.as_ref()),
        ColumnarValue::Scalar(scalar) => scalar_bytes(scalar).saturating_mul(rows),
    }
}

/// Bytes of an array's rows when they stand by themselves.
pub(crate) fn array_bytes(array: &dyn Array) -> usize {
    let views = |views: &[u128]| views.iter().map(|view| *view as u32 as usize).sum::<usize>();
    match array.data_type() {
        DataType::Utf8View => views(array.as_string_view().views()),
        DataType::BinaryView => views(array.as_binary_view().views()),
        _ => array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size()),
    }
}

/// Bytes of a constant.
pub(super) fn scalar_bytes(scalar: &ScalarValue) -> usize {
    match scalar {
        ScalarValue::Utf8(text) | ScalarValue::LargeUtf8(text) | ScalarValue::Utf8View(text) => {
            text.as_ref().map_or(0, String::len)
        }
        ScalarValue::Binary(bytes) | ScalarValue::LargeBinary(bytes) | ScalarValue::BinaryView(bytes) => {
            bytes.as_ref().map_or(0, Vec::len)
        }
        ScalarValue::List(array) => array.get_array_memory_size(),
        ScalarValue::LargeList(array) => array.get_array_memory_size(),
        ScalarValue::Struct(array) => array.get_array_memory_size(),
        other => other.size(),
    }
}

/// Bytes of a text in a row.
fn length(value: &ColumnarValue, row: usize) -> usize {
    let of = |array: &dyn Array| match array.data_type() {
        _ if array.is_null(row) => 0,
        DataType::Utf8 => array.as_string::<i32>().value_length(row) as usize,
        DataType::LargeUtf8 => array.as_string::<i64>().value_length(row) as usize,
        DataType::Utf8View => array.as_string_view().views()[row] as u32 as usize,
        // Other types that can be texts: an upper bound.
        _ => array.get_array_memory_size(),
    };
    match value {
        ColumnarValue::Array(array) => of(array.as_ref()),
        ColumnarValue::Scalar(scalar) => scalar_bytes(scalar),
    }
}

/// The number in a row, at least 0: how often, or how wide.
fn number(value: &ColumnarValue, row: usize) -> usize {
    let number = match value {
        ColumnarValue::Array(array) => match array.as_primitive_opt::<Int64Type>() {
            Some(numbers) if numbers.is_null(row) => 0,
            Some(numbers) => numbers.value(row),
            None => i64::MAX,
        },
        ColumnarValue::Scalar(ScalarValue::Int64(number)) => number.unwrap_or(0),
        ColumnarValue::Scalar(scalar) if scalar.is_null() => 0,
        ColumnarValue::Scalar(_) => i64::MAX,
    };
    usize::try_from(number.max(0)).unwrap_or(usize::MAX)
}
