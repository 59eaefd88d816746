//! `extract(epoch FROM a - b)` with the fraction of the second, which DataFusion leaves out of the time between two timestamps.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::{Expr, ExprSchemable, cast, lit};

/// Computes the seconds of a duration from all of it.
#[derive(Debug)]
pub(super) struct EpochOfDuration;

impl FunctionRewrite for EpochOfDuration {
    fn name(&self) -> &str {
        "epoch_of_duration"
    }

    fn rewrite(&self, expr: Expr, schema: &DFSchema, _: &ConfigOptions) -> Result<Transformed<Expr>> {
        let Expr::ScalarFunction(ScalarFunction { func, args }) = &expr else { return Ok(Transformed::no(expr)) };
        let [part, value] = &args[..] else { return Ok(Transformed::no(expr)) };
        let is_epoch =
            func.name() == "date_part" && matches!(part, Expr::Literal(part, _) if is_epoch(part.try_as_str()));
        if !is_epoch {
            return Ok(Transformed::no(expr));
        }
        let DataType::Duration(unit) = value.get_type(schema)? else { return Ok(Transformed::no(expr)) };
        let units_per_second = match unit {
            TimeUnit::Second => 1.0,
            TimeUnit::Millisecond => 1e3,
            TimeUnit::Microsecond => 1e6,
            TimeUnit::Nanosecond => 1e9,
        };
        let whole = cast(value.clone(), DataType::Int64);
        Ok(Transformed::yes(cast(whole, DataType::Float64) / lit(units_per_second)))
    }
}

fn is_epoch(part: Option<Option<&str>>) -> bool {
    part.flatten().is_some_and(|part| part.eq_ignore_ascii_case("epoch"))
}
