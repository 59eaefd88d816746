//! The range of a function's values in keys by which rows are sorted.
//!
//! DataFusion asks of every part of such a key in which range its values lie, to find out whether rows are sorted by it. Most of
//! its functions answer with a range of the type NULL, a comparison with that fails, and so does the plan that sorted the rows:
//! ORDER BY length(s) > 3. In such keys a function gets the whole range of its type.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature,
};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// Gives functions in keys a range. It comes last: other rules know functions by their types.
#[derive(Debug)]
pub(super) struct BoundFunctions;

impl OptimizerRule for BoundFunctions {
    fn name(&self) -> &str {
        "bound_functions"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if !matches!(plan, LogicalPlan::Sort(_) | LogicalPlan::Window(_) | LogicalPlan::Aggregate(_)) {
            return Ok(Transformed::no(plan));
        }
        let (names, schema) = (NamePreserver::new(&plan), merge_schema(&plan.inputs()));
        plan.map_expressions(|expression| {
            // Only operators compare ranges.
            if !expression.exists(|part| Ok(matches!(part, Expr::BinaryExpr(_))))? {
                return Ok(Transformed::no(expression));
            }
            let name = names.save(&expression);
            let bound = expression.transform_up(|part| bounded(part, &schema))?;
            Ok(bound.update_data(|bound| name.restore(bound)))
        })
    }
}

/// A function with the range of its type in the place of one whose range has another type.
fn bounded(expression: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::ScalarFunction(ScalarFunction { func, args }) = &expression else {
        return Ok(Transformed::no(expression));
    };
    let (_, field) = expression.to_field(schema)?;
    let ranges = args.iter().map(|argument| Interval::make_unbounded(&argument.get_type(schema)?));
    let ranges = ranges.collect::<Result<Vec<_>>>()?;
    let range = func.evaluate_bounds(&ranges.iter().collect::<Vec<_>>());
    if range.is_ok_and(|range| range.data_type() == *field.data_type()) {
        return Ok(Transformed::no(expression));
    }
    let bounded = Arc::new(ScalarUDF::from(BoundedFunction { function: Arc::clone(func), field }));
    Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(bounded, args.clone()))))
}

/// A function, of which the range of values is known.
#[derive(Debug, PartialEq, Eq, Hash)]
struct BoundedFunction {
    function: Arc<ScalarUDF>,
    field: FieldRef,
}

impl ScalarUDFImpl for BoundedFunction {
    fn name(&self) -> &str {
        self.function.name()
    }
    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        self.function.schema_name(arguments)
    }
    fn signature(&self) -> &Signature {
        self.function.signature()
    }
    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.coerce_types(types)
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.field.data_type().clone())
    }
    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::clone(&self.field))
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.function.invoke_with_args(arguments)
    }
    fn short_circuits(&self) -> bool {
        self.function.short_circuits()
    }
    fn evaluate_bounds(&self, _: &[&Interval]) -> Result<Interval> {
        Interval::make_unbounded(self.field.data_type())
    }
}
