//! `json -> key`, the value of a key or index as JSON, and `json ->> key`, the value as text.
//!
//! sqlparser lets them bind less tightly than comparisons, and takes `->` within the arguments of a function for a lambda: it reads
//! `a ->> 'k' = 'v'` as `a ->> ('k' = 'v')`. So before it reads a query, each operator becomes two divisions, `a // $->> // 'k'`, with a
//! parameter that no query can write. Afterwards the divisions become the operator again. It binds as tightly as `||`, as in PostgreSQL.

use std::convert::Infallible;
use std::mem;
use std::ops::ControlFlow;

use datafusion::common::{DFSchema, Result, plan_err};
use datafusion::logical_expr::Expr as PlannedExpr;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Statement as Sql, Value, visit_expressions_mut};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::functions::{ExtractedValue, extracted_by, function};

/// Functions within one another: each takes the planner longer than the one before.
const MAX_NESTING: usize = 50;

/// The tokens of a query with two divisions for each of the operators.
pub(in super::super) fn as_divisions(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let divided = |token: TokenWithSpan| {
        let operator = match token.token {
            Token::Arrow => "->",
            Token::LongArrow => "->>",
            _ => return vec![token],
        };
        let parts = [Token::DuckIntDiv, Token::Placeholder(operator.to_owned()), Token::DuckIntDiv];
        parts.map(|part| TokenWithSpan::new(part, token.span)).into()
    };
    tokens.into_iter().flat_map(divided).collect()
}

/// Gives the divisions of [`as_divisions`] their meaning.
pub(in super::super) fn give_meaning(sql: &mut Sql) {
    let _ = visit_expressions_mut(sql, |expression| {
        restore(expression);
        ControlFlow::<Infallible>::Continue(())
    });
}

fn restore(expression: &mut Expr) {
    let Expr::BinaryOp { left: divided, op: op @ BinaryOperator::DuckIntegerDivide, .. } = expression else { return };
    let Expr::BinaryOp { left: json, op: BinaryOperator::DuckIntegerDivide, right: mark } = divided.as_mut() else {
        return;
    };
    let Expr::Value(mark) = mark.as_ref() else { return };
    *op = match &mark.value {
        Value::Placeholder(operator) if operator == "->" => BinaryOperator::Arrow,
        Value::Placeholder(operator) if operator == "->>" => BinaryOperator::LongArrow,
        _ => return,
    };
    **divided = mem::replace(json.as_mut(), Expr::value(Value::Null));
}

/// Plans the operators as functions.
#[derive(Debug)]
pub(super) struct JsonOperators;

impl ExprPlanner for JsonOperators {
    fn plan_binary_op(&self, expr: RawBinaryExpr, _: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let extracted = match expr.op {
            BinaryOperator::Arrow => ExtractedValue::Json,
            BinaryOperator::LongArrow => ExtractedValue::Text,
            _ => return Ok(PlannerResult::Original(expr)),
        };
        let mut args = match expr.left {
            // A value in a value is at the end of a longer path.
            PlannedExpr::ScalarFunction(call) if extracted_by(&call) == Some(ExtractedValue::Json) => call.args,
            json => vec![json],
        };
        if nesting(&args[0]) >= MAX_NESTING {
            return plan_err!("there are more than {MAX_NESTING} ->> one behind the other");
        }
        args.push(expr.right);
        Ok(PlannerResult::Planned(PlannedExpr::ScalarFunction(ScalarFunction { func: function(extracted), args })))
    }
}

/// How many texts that are JSON are within one another.
fn nesting(mut json: &PlannedExpr) -> usize {
    let mut depth = 0;
    while let PlannedExpr::ScalarFunction(call) = json
        && extracted_by(call).is_some()
        && let Some(inner) = call.args.first()
    {
        (json, depth) = (inner, depth + 1);
    }
    depth
}
