//! The functions of JSON: what is at the end of a path, as JSON or as text, and the length of an array.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringViewArray, StringViewBuilder};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

use super::path::{self, PathStep};

/// The function that takes `extracted` out of JSON.
pub(super) fn function(extracted: ExtractedValue) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(JsonFunction { extracted, signature: Signature::user_defined(Volatility::Immutable) }))
}

/// What a call takes out of JSON; None for other functions.
pub(super) fn extracted_by(call: &ScalarFunction) -> Option<ExtractedValue> {
    call.func.inner().downcast_ref::<JsonFunction>().map(|function| function.extracted)
}

/// What a function takes out of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ExtractedValue {
    Json,
    Text,
    Length,
}

/// A function of a text, and of the path to a value in it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct JsonFunction {
    extracted: ExtractedValue,
    signature: Signature,
}

impl ScalarUDFImpl for JsonFunction {
    fn name(&self) -> &str {
        match self.extracted {
            ExtractedValue::Json => "json_extract_path",
            ExtractedValue::Text => "json_extract_path_text",
            ExtractedValue::Length => "json_array_length",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, kinds: &[DataType]) -> Result<Vec<DataType>> {
        let is_length = self.extracted == ExtractedValue::Length;
        let takes = if is_length { kinds.len() == 1 } else { kinds.len() >= 2 };
        let is_text = |kind: &DataType| kind.is_string() || kind.is_null();
        let is_fit = |(index, kind): (usize, &DataType)| is_text(kind) || index > 0 && kind.is_integer();
        if !takes || !kinds.iter().enumerate().all(is_fit) {
            let rest = if is_length { "" } else { " and the keys or indices of a value in it" };
            return plan_err!("{} takes a text that is JSON{rest}", self.name());
        }
        Ok(kinds.iter().map(|kind| if kind.is_integer() { DataType::Int64 } else { DataType::Utf8View }).collect())
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(if self.extracted == ExtractedValue::Length { DataType::Int64 } else { DataType::Utf8View })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let all_scalar = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if all_scalar { 1 } else { arguments.number_rows };
        let [json, path @ ..] = &arguments.args[..] else { return plan_err!("{} without a text", self.name()) };
        let json = json.to_array(rows)?;
        let json = json.as_string_view();
        let made: ArrayRef = if self.extracted == ExtractedValue::Length {
            Arc::new(json.iter().map(|json| json.and_then(path::array_length)).collect::<Int64Array>())
        } else {
            Arc::new(extract(json, &path.iter().map(step_column).collect::<Result<Vec<_>>>()?, self.extracted))
        };
        if all_scalar {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&made, 0)?));
        }
        Ok(ColumnarValue::Array(made))
    }
}

/// A step of the path in all rows.
struct StepColumn {
    /// Texts or integers.
    steps: ArrayRef,
    /// Whether there is one step, for all rows.
    is_one: bool,
}

fn step_column(argument: &ColumnarValue) -> Result<StepColumn> {
    Ok(StepColumn { steps: argument.to_array(1)?, is_one: matches!(argument, ColumnarValue::Scalar(_)) })
}

impl StepColumn {
    /// The step of a row; None for NULL.
    fn of(&self, row: usize) -> Option<PathStep<'_>> {
        let row = if self.is_one { 0 } else { row };
        self.steps.is_valid(row).then(|| match self.steps.as_primitive_opt::<Int64Type>() {
            Some(indices) => PathStep::Index(indices.value(row)),
            None => PathStep::Key(self.steps.as_string_view().value(row)),
        })
    }
}

fn extract(json: &StringViewArray, path: &[StepColumn], extracted: ExtractedValue) -> StringViewArray {
    let mut made = StringViewBuilder::with_capacity(json.len());
    for (row, json) in json.iter().enumerate() {
        let steps = path.iter().map(|step| step.of(row)).collect::<Option<Vec<_>>>();
        let value = json.zip(steps).and_then(|(json, steps)| path::value_at(json, &steps));
        match (value, extracted) {
            (None, _) => made.append_null(),
            (Some(value), ExtractedValue::Text) => made.append_option(path::as_text(value)),
            (Some(value), _) => made.append_value(value.get()),
        }
    }
    made.finish()
}
