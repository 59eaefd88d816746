//! Counts the arrays that expressions make against the memory of queries: DataFusion counts the memory of operators, but neither
//! the size of what a function makes (`repeat('x', 2000000000)` is a short text) nor how long it exists.
//!
//! Once a statement is planned, and before anything of it is evaluated, each function in it that can make much out of
//! little is put into one that knows how much that will be (`growth`), takes so much of the query's memory before it
//! calls the inner one, and gives it back when the last of the made array's buffers has gone (`counted`). Plans without
//! such functions are left as they are. What is left over, a few bytes a row and expression, is bounded by how many rows
//! a batch has (`width`); what operators hold or repeat without counting is weighed on its way to them (`weigh`).

mod counted;
mod gather;
mod growth;
pub(super) mod weigh;
pub(super) mod width;

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, DataFusionError, ExprSchema, Result, ScalarValue};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::logical_expr::expr::{BinaryExpr, Cast, ScalarFunction, TryCast};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Operator, ScalarUDF};
use probe_common::error::Error;

use self::counted::{CountedFunction, CountedOperation};
use self::growth::ResultGrowth;
pub(super) use self::growth::array_bytes;

/// Wraps the functions of a plan so that they count what they make. The plan that was transformed is of one query alone.
///
/// # Errors
/// The plan has a function that is not available.
pub(super) fn count(plan: LogicalPlan, pool: &Arc<dyn MemoryPool>) -> Result<Transformed<LogicalPlan>> {
    let mut grows = false;
    plan.apply_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expression| {
            expression.apply(|expression| {
                check(expression, &schema)?;
                grows |= counter(expression, &schema).is_some();
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    if !grows {
        return Ok(Transformed::no(plan));
    }
    plan.transform_up_with_subqueries(|node| {
        let (names, schema) = (NamePreserver::new(&node), merge_schema(&node.inputs()));
        let counted = node.map_expressions(|expression| {
            let name = names.save(&expression);
            let counted = expression.transform_up(|expression| match counter(&expression, &schema) {
                Some(growth) => Ok(Transformed::yes(put(expression, growth, pool))),
                None => Ok(Transformed::no(expression)),
            })?;
            Ok(counted.update_data(|counted| name.restore(counted)))
        })?;
        match counted.transformed {
            true => counted.map_data(LogicalPlan::recompute_schema),
            false => Ok(counted),
        }
    })
}

/// How the array that an expression makes is counted; None where it need not be.
fn counter(expression: &Expr, schema: &DFSchema) -> Option<ResultGrowth> {
    match expression {
        Expr::ScalarFunction(ScalarFunction { func, .. }) if func.inner().is::<CountedFunction>() => None,
        Expr::ScalarFunction(ScalarFunction { func, args }) => match growth::growth_of(func.name()) {
            Some(ResultGrowth::Fixed | ResultGrowth::Matched) | None => None,
            Some(ResultGrowth::Taken) => args.iter().any(|arg| may_be_long(arg, schema)).then_some(ResultGrowth::Taken),
            growth => growth,
        },
        Expr::BinaryExpr(BinaryExpr { op: Operator::StringConcat, .. }) => Some(ResultGrowth::Times(3)),
        Expr::Case(case) => {
            let mut values = case.when_then_expr.iter().map(|(_, then)| then).chain(&case.else_expr);
            values.any(|value| may_be_long(value, schema)).then_some(ResultGrowth::Taken)
        }
        Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field }) => {
            (is_long(field.data_type()) && !matches!(**expr, Expr::Literal(..))).then_some(ResultGrowth::Taken)
        }
        _ => None,
    }
}

/// Whether a value of this type may take any number of bytes.
fn is_long(kind: &DataType) -> bool {
    kind.is_nested() || kind.is_string() || kind.is_binary()
}

/// Whether an expression may make values of any number of bytes, as far as its outermost node shows: chains are checked node by
/// node.
fn may_be_long(expression: &Expr, schema: &DFSchema) -> bool {
    match expression {
        Expr::Column(column) => schema.data_type(column).map_or(true, is_long),
        Expr::Literal(value, _) => is_long(&value.data_type()),
        Expr::Cast(Cast { field, .. }) | Expr::TryCast(TryCast { field, .. }) => is_long(field.data_type()),
        Expr::BinaryExpr(BinaryExpr { op, .. }) => *op == Operator::StringConcat,
        Expr::Not(_) | Expr::IsNull(_) | Expr::IsNotNull(_) | Expr::Negative(_) | Expr::Like(_) | Expr::InList(_) => {
            false
        }
        _ => true,
    }
}

fn put(expression: Expr, growth: ResultGrowth, pool: &Arc<dyn MemoryPool>) -> Expr {
    let counted = |does| Arc::new(ScalarUDF::from(CountedFunction::new(does, growth, pool)));
    match expression {
        Expr::ScalarFunction(ScalarFunction { func, args }) if growth != ResultGrowth::Taken => {
            Expr::ScalarFunction(ScalarFunction::new_udf(counted(CountedOperation::Function(func)), args))
        }
        Expr::BinaryExpr(BinaryExpr { left, right, op: Operator::StringConcat }) => {
            let parts = [*left, *right].into_iter().flat_map(|side| match side {
                Expr::ScalarFunction(ScalarFunction { func, args }) if is_join(&func) => args,
                side => vec![side],
            });
            Expr::ScalarFunction(ScalarFunction::new_udf(counted(CountedOperation::Join), parts.collect()))
        }
        other => Expr::ScalarFunction(ScalarFunction::new_udf(counted(CountedOperation::Nothing), vec![other])),
    }
}

fn is_join(function: &ScalarUDF) -> bool {
    function.inner().downcast_ref::<CountedFunction>().is_some_and(CountedFunction::is_join)
}

/// Refuses what can't be counted.
fn check(expression: &Expr, schema: &DFSchema) -> Result<()> {
    match expression {
        Expr::ScalarFunction(ScalarFunction { func, args }) => {
            let name = func.name();
            if !func.inner().is::<CountedFunction>() && growth::growth_of(name).is_none() {
                return Err(not_available(name));
            }
            if name.starts_with("arrow_") && names_fixed_size(args) {
                return Err(fixed_size());
            }
            match args.get(1) {
                Some(pattern) if growth::has_pattern(name) => check_pattern(pattern),
                _ => Ok(()),
            }
        }
        Expr::BinaryExpr(BinaryExpr { op, right, .. }) if is_match(*op) => check_pattern(right),
        Expr::SimilarTo(like) => check_pattern(&like.pattern),
        Expr::HigherOrderFunction(function) => Err(not_available(function.func.name())),
        Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field }) => {
            if has_fixed_size(field.data_type()) {
                return Err(fixed_size());
            }
            let to_text = field.data_type().is_string() || field.data_type().is_binary();
            if to_text && expr.get_type(schema).is_ok_and(|kind| kind.is_nested()) {
                let error = Error::failed("a list can't be cast to text");
                return Err(planning_error(error.hint("array_to_string(list, ', ') makes a text of a list")));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn fixed_size() -> DataFusionError {
    let error = Error::failed("lists of a fixed size are not available in queries");
    planning_error(error.hint("make_array(1, 2, 3) makes a list"))
}

/// Whether the type in the arguments of arrow_cast, which is a text, may have a fixed size or be a map.
fn names_fixed_size(args: &[Expr]) -> bool {
    args.iter().skip(1).any(|kind| match kind {
        Expr::Literal(ScalarValue::Utf8(Some(kind)), _) => kind.contains("Fixed") || kind.contains("Map"),
        _ => true,
    })
}

fn is_match(op: Operator) -> bool {
    use Operator as O;
    matches!(op, O::RegexMatch | O::RegexIMatch | O::RegexNotMatch | O::RegexNotIMatch)
}

fn check_pattern(pattern: &Expr) -> Result<()> {
    let changes = pattern.is_volatile()
        || pattern.exists(|part| {
            Ok(matches!(part, Expr::Column(_) | Expr::OuterReferenceColumn(..) | Expr::ScalarSubquery(_)))
        })?;
    match changes {
        true => {
            let error = Error::failed("a regular expression has to be the same for all rows");
            Err(planning_error(error.hint("strpos(text, part) and LIKE compare with another column")))
        }
        false => Ok(()),
    }
}

fn has_fixed_size(kind: &DataType) -> bool {
    match kind {
        DataType::FixedSizeList(..) | DataType::FixedSizeBinary(_) => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => has_fixed_size(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_fixed_size(field.data_type())),
        _ => false,
    }
}

fn not_available(name: &str) -> DataFusionError {
    let error = Error::failed(format!("the function {name} is not available in queries"));
    planning_error(match name {
        "range" | "generate_series" | "array_repeat" | "array_resize" => {
            error.hint("rows that count come from generate_series: SELECT value FROM generate_series(1, 10)")
        }
        _ => error.hint("SHOW FUNCTIONS lists functions, and docs/design.md says which of them queries leave out"),
    })
}

fn planning_error(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions of DataFusion that queries do not have.
    const LEFT_OUT: &[&str] = &[
        // Much out of little: a number says how much.
        "array_repeat",
        "array_resize",
        "generate_series",
        "range",
        "arrow_cast",
        "arrow_try_cast",
        "cast_to_type",
        "try_cast_to_type",
        // Long lists combined with long lists, or many short items replaced by long ones.
        "array_has_all",
        "array_has_any",
        "array_replace",
        "array_replace_all",
        "array_replace_n",
        "arrays_zip",
        "array_positions",
        // Vectors and maps, of which nothing recorded has any.
        "array_add",
        "array_distance",
        "array_normalize",
        "array_scale",
        "array_subtract",
        "cosine_distance",
        "inner_product",
        "map",
        "map_entries",
        "map_extract",
        "map_keys",
        "map_values",
        "file_row_index",
    ];

    #[test]
    fn every_function_is_judged() {
        let state = datafusion::execution::SessionStateBuilder::new_with_default_features().build();
        let mut names: Vec<&str> = state.scalar_functions().values().map(|function| function.name()).collect();
        names.sort_unstable();
        names.dedup();
        let unknown: Vec<_> =
            names.iter().filter(|name| growth::growth_of(name).is_none() && !LEFT_OUT.contains(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
