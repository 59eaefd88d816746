//! Conditions that keep other expressions from rows for which they would fail: `n <> 0 AND 10 / n > 1`,
//! `CASE WHEN s ~ '^[0-9]+$' THEN CAST(s AS INT) > 5 END`.
//!
//! DataFusion computes both sides of AND and OR for all rows as a rule, and turns a CASE of conditions into AND and OR. A CASE with
//! an operand stays one, and computes each of its results for the rows that come to it alone.

use std::collections::HashSet;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result, ScalarValue, TableReference};
use datafusion::logical_expr::expr::{BinaryExpr, Case};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, merge_schema, split_conjunction_owned};
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, LogicalPlan, Operator, lit};
use datafusion::optimizer::analyzer::AnalyzerRule;

/// A right side with more parts than this is computed for all rows: the CASE would contain it twice.
const MAX_PARTS: usize = 64;
/// In a filter of more conditions than this, none waits: one that waits repeats those before it.
const MAX_CONDITIONS: usize = 16;

/// Makes conditions wait for those on their left, where they may fail. It needs the rule before it that gives both sides of an
/// operator one type.
#[derive(Debug)]
pub(super) struct LazyConditions;

impl AnalyzerRule for LazyConditions {
    fn name(&self) -> &str {
        "lazy_conditions"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let lazy = plan.transform_up_with_subqueries(|node| {
            let (names, schema) = (NamePreserver::new(&node), merge_schema(&node.inputs()));
            let is_filter = matches!(node, LogicalPlan::Filter(_));
            // A join looks for its keys among the conjuncts of its condition, and computes what belongs to one side beforehand.
            if matches!(node, LogicalPlan::Join(_)) {
                return Ok(Transformed::no(node));
            }
            node.map_expressions(|expression| {
                if !may_fail(&expression, &schema)? {
                    return Ok(Transformed::no(expression));
                }
                let name = names.save(&expression);
                let lazy = if is_filter { filter(expression, &schema)? } else { lazy(expression, &schema)? };
                Ok(lazy.update_data(|lazy| name.restore(lazy)))
            })
        });
        Ok(lazy?.data)
    }
}

/// The condition of a filter. The conjuncts stay separate, so that scans can filter by them. A conjunct that may fail waits only
/// for earlier ones on the same tables: with others it could be evaluated only after the tables are joined.
fn filter(condition: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let mut parts = Vec::new();
    for part in split_conjunction_owned(condition) {
        let may_fail = may_fail(&part, schema)?;
        parts.push((lazy(part, schema)?.data, may_fail));
    }
    let before = |end: usize| {
        let tables = tables(&parts[end].0);
        conjunction(
            parts[..end].iter().map(|(part, _)| part).filter(|part| tables.is_superset(&self::tables(part))).cloned(),
        )
    };
    let is_long = parts.len() > MAX_CONDITIONS;
    let waiting = parts.iter().enumerate().map(|(index, (part, may_fail))| match before(index) {
        Some(before) if *may_fail && !is_long => case(before, vec![(true, part.clone())], lit(false)),
        _ => part.clone(),
    });
    let waiting = conjunction(waiting.collect::<Vec<_>>());
    Ok(Transformed::yes(waiting.unwrap_or_else(|| lit(true))))
}

/// The expression with each part waiting for what decides whether it is needed.
fn lazy(expression: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expression.transform_up(|part| match part {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right })
            if may_fail(&right, schema)? && parts_of(&right)? <= MAX_PARTS =>
        {
            let decides = op == Operator::Or;
            let unknown = Expr::Literal(ScalarValue::Boolean(None), None);
            let where_unknown = Expr::BinaryExpr(BinaryExpr { left: right.clone(), op, right: Box::new(unknown) });
            Ok(Transformed::yes(case(*left, vec![(decides, lit(decides)), (!decides, *right)], where_unknown)))
        }
        Expr::Case(Case { expr: None, when_then_expr, else_expr }) => {
            let whole = Expr::Case(Case { expr: None, when_then_expr, else_expr });
            if whole.get_type(schema)? != DataType::Boolean || !may_fail(&whole, schema)? {
                return Ok(Transformed::no(whole));
            }
            let Expr::Case(case) = whole else { return Ok(Transformed::no(whole)) };
            Ok(Transformed::yes(Expr::Case(Case { expr: Some(Box::new(lit(true))), ..case })))
        }
        part => Ok(Transformed::no(part)),
    })
}

/// The tables that an expression is about.
fn tables(expression: &Expr) -> HashSet<Option<TableReference>> {
    expression.column_refs().into_iter().map(|column| column.relation.clone()).collect()
}

fn case(operand: Expr, results: Vec<(bool, Expr)>, otherwise: Expr) -> Expr {
    let results = results.into_iter().map(|(value, result)| (Box::new(lit(value)), Box::new(result)));
    Expr::Case(Case {
        expr: Some(Box::new(operand)),
        when_then_expr: results.collect(),
        else_expr: Some(Box::new(otherwise)),
    })
}

/// Whether the expression fails for some values: it divides by a whole number, or reads a number out of a text.
fn may_fail(expression: &Expr, schema: &DFSchema) -> Result<bool> {
    let is = |of: &Expr, kind: fn(&DataType) -> bool| of.get_type(schema).is_ok_and(|of| kind(&of));
    expression.exists(|part| {
        Ok(match part {
            Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Modulo, right, .. }) => {
                !matches!(**right, Expr::Literal(..)) && is(right, |kind| kind.is_integer() || kind.is_decimal())
            }
            Expr::Cast(Cast { expr, field }) => {
                is(expr, DataType::is_string) && !field.data_type().is_string() && !matches!(**expr, Expr::Literal(..))
            }
            _ => false,
        })
    })
}

fn parts_of(expression: &Expr) -> Result<usize> {
    let mut parts = 0;
    expression.apply(|_| {
        parts += 1;
        Ok(if parts > MAX_PARTS { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(parts)
}
