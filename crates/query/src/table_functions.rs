//! Parameters in the arguments of table functions, as in `generate_series(1, $n)`. DataFusion calls such a function while
//! it plans, before the values of parameters are in the plan.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::catalog::{TableFunction, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;

/// Lets the table functions of `state` find these values, which have the names of parameters.
pub(super) fn bind(state: &mut SessionState, values: &[(String, ScalarValue)]) {
    if values.is_empty() {
        return;
    }
    let values: Arc<[_]> = values.into();
    let functions: Vec<_> = state.table_functions().values().cloned().collect();
    for function in functions {
        let name = function.name().to_owned();
        state.register_udtf(&name, Arc::new(BoundFunction { function, values: Arc::clone(&values) }));
    }
}

#[derive(Debug)]
struct BoundFunction {
    function: Arc<TableFunction>,
    values: Arc<[(String, ScalarValue)]>,
}

impl TableFunctionImpl for BoundFunction {
    fn call_with_args(&self, args: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        let constants = args.exprs().iter().map(|expr| self.constant(expr)).collect::<Result<Vec<_>>>()?;
        self.function.create_table_provider_with_args(TableFunctionArgs::new(&constants, args.session()))
    }
}

impl BoundFunction {
    /// An argument with its parameters replaced by values, evaluated to a constant.
    fn constant(&self, argument: &Expr) -> Result<Expr> {
        let bound = argument.clone().transform(|expr| match self.value(&expr) {
            Some(value) => Ok(Transformed::yes(Expr::Literal(integral(value)?, None))),
            None => Ok(Transformed::no(expr)),
        })?;
        if !bound.transformed {
            return Ok(bound.data);
        }
        let simplifier = ExprSimplifier::new(SimplifyContext::builder().build());
        let typed = simplifier.coerce(bound.data, &DFSchema::empty())?;
        Ok(match simplifier.simplify(typed)? {
            // generate_series knows NULL without a type only.
            Expr::Literal(ScalarValue::Int64(None), metadata) => Expr::Literal(ScalarValue::Null, metadata),
            constant => constant,
        })
    }

    fn value(&self, expr: &Expr) -> Option<&ScalarValue> {
        let Expr::Placeholder(placeholder) = expr else { return None };
        let name = placeholder.id.trim_start_matches('$');
        self.values.iter().find_map(|(known, value)| (known == name).then_some(value))
    }
}

/// Integers have 64 bits there, and clients bind smaller ones too.
fn integral(value: &ScalarValue) -> Result<ScalarValue> {
    if value.data_type().is_integer() { value.cast_to(&DataType::Int64) } else { Ok(value.clone()) }
}
