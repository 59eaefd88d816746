//! The range of values in keys by which rows are sorted.
//!
//! DataFusion asks of every part of such a key in which range its values lie, to find out whether rows are sorted by it. Most
//! functions, a division, a CASE and others answer with a range of the type NULL. A comparison with that fails, and so does the plan
//! that sorted the rows: ORDER BY length(s) > 3. In such keys, what an operator works on has the whole range of its type.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{BinaryExpr, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// Gives the operands in keys a range. It comes last: other rules look at what the operands are.
#[derive(Debug)]
pub(super) struct BoundOperands;

impl OptimizerRule for BoundOperands {
    fn name(&self) -> &str {
        "bound_operands"
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
            let name = names.save(&expression);
            let bound = expression.transform_up(|part| match part {
                Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                    let (left, right) = (bounded(*left, &schema)?, bounded(*right, &schema)?);
                    let is_new = left.transformed || right.transformed;
                    let whole = BinaryExpr { left: Box::new(left.data), op, right: Box::new(right.data) };
                    Ok(Transformed::new_transformed(Expr::BinaryExpr(whole), is_new))
                }
                part => Ok(Transformed::no(part)),
            })?;
            Ok(bound.update_data(|bound| name.restore(bound)))
        })
    }
}

/// The operand within a function that has the range of its type, unless it is known to have a range.
fn bounded(operand: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let is_known = match &operand {
        Expr::Column(_) | Expr::Literal(..) => true,
        Expr::ScalarFunction(function) => function.func.inner().is::<BoundedArgument>(),
        _ => false,
    };
    if is_known {
        return Ok(Transformed::no(operand));
    }
    let (_, field) = operand.to_field(schema)?;
    let function = ScalarUDF::from(BoundedArgument { field, signature: Signature::any(1, Volatility::Immutable) });
    Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function), vec![operand]))))
}

/// A function that returns its argument, and says in which range its values lie.
#[derive(Debug, PartialEq, Eq, Hash)]
struct BoundedArgument {
    field: FieldRef,
    signature: Signature,
}

impl ScalarUDFImpl for BoundedArgument {
    fn name(&self) -> &str {
        "bounded"
    }
    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        Ok(arguments.iter().map(|argument| argument.schema_name().to_string()).collect())
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.field.data_type().clone())
    }
    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::clone(&self.field))
    }
    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(arguments.args.swap_remove(0))
    }
    fn evaluate_bounds(&self, _: &[&Interval]) -> Result<Interval> {
        Interval::make_unbounded(self.field.data_type())
    }
}
