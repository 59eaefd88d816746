//! JSON in columns of text, as PostgreSQL reads it: `json -> key`, `json ->> key`, json_extract_path, json_extract_path_text and
//! json_array_length.

mod functions;
pub(super) mod operators;
mod path;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{FunctionRegistry, SessionState};

use self::functions::{ExtractedValue, function};
use self::operators::JsonOperators;

/// Gives `state` the functions and operators.
pub(super) fn register(state: &mut SessionState) -> Result<()> {
    for extracted in [ExtractedValue::Json, ExtractedValue::Text, ExtractedValue::Length] {
        state.register_udf(function(extracted))?;
    }
    state.register_expr_planner(Arc::new(JsonOperators))
}
