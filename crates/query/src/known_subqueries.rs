//! `step > (SELECT MAX(step) - 10 FROM python.torch_trace)`: a subquery whose value follows from the statistics of a table is
//! replaced by its value before the query is planned. What is left is a plain condition, of which planning has less to do.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams};
use datafusion::logical_expr::{Aggregate, Expr, Filter, LogicalPlan, Projection, Subquery, TableScan};

use super::provider::RowsTable;

/// Replaces the subqueries in conditions that are a MIN or MAX of a table's column, and what is computed of one.
pub(super) fn replace(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Filter(filter) = node {
            found |= filter.predicate.exists(|part| Ok(matches!(part, Expr::ScalarSubquery(_))))?;
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !found {
        return Ok(plan);
    }
    let replaced = plan.transform_up_with_subqueries(|node| {
        let LogicalPlan::Filter(Filter { predicate, input, .. }) = &node else { return Ok(Transformed::no(node)) };
        let predicate = predicate.clone().transform_up(|part| match &part {
            Expr::ScalarSubquery(subquery) => Ok(match value(subquery)? {
                Some(value) => Transformed::yes(value),
                None => Transformed::no(part),
            }),
            _ => Ok(Transformed::no(part)),
        })?;
        match predicate.transformed {
            true => Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(predicate.data, Arc::clone(input))?))),
            false => Ok(Transformed::no(node)),
        }
    })?;
    Ok(replaced.data)
}

/// What a subquery is equal to; None where that is not known.
fn value(subquery: &Subquery) -> Result<Option<Expr>> {
    if !subquery.outer_ref_columns.is_empty() {
        return Ok(None);
    }
    let (computed, aggregate) = match subquery.subquery.as_ref() {
        LogicalPlan::Projection(Projection { expr, input, .. }) => match (expr.as_slice(), input.as_ref()) {
            ([computed], LogicalPlan::Aggregate(aggregate)) => (computed.clone(), aggregate),
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    let Some(known) = bound(aggregate)? else { return Ok(None) };
    let name = Column::from(aggregate.schema.qualified_field(0));
    let mut is_known = true;
    let computed = computed.transform_up(|part| {
        Ok(match part {
            Expr::Column(column) if column == name => Transformed::yes(Expr::Literal(known.clone(), None)),
            Expr::Column(_) | Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) => {
                is_known = false;
                Transformed::no(part)
            }
            part => Transformed::no(part),
        })
    })?;
    Ok(is_known.then(|| computed.data.unalias_nested().data))
}

/// The value of an aggregate that is the MIN or MAX of a table's column, where the table's statistics have it.
fn bound(aggregate: &Aggregate) -> Result<Option<ScalarValue>> {
    let ([], [Expr::AggregateFunction(AggregateFunction { func, params })]) =
        (aggregate.group_expr.as_slice(), aggregate.aggr_expr.as_slice())
    else {
        return Ok(None);
    };
    let AggregateFunctionParams { args, filter: None, .. } = params else { return Ok(None) };
    let [Expr::Column(column)] = args.as_slice() else { return Ok(None) };
    let mut input = aggregate.input.as_ref();
    if let LogicalPlan::SubqueryAlias(alias) = input {
        input = &alias.input;
    }
    let LogicalPlan::TableScan(TableScan { source, projection: None, filters, fetch: None, .. }) = input else {
        return Ok(None);
    };
    let provider = source_as_provider(source)?;
    let Some(table) = provider.downcast_ref::<RowsTable>().filter(|_| filters.is_empty()) else { return Ok(None) };
    let Some((low, high)) = table.bounds(column.name())? else { return Ok(None) };
    Ok(match func.name() {
        "min" => Some(low),
        "max" => Some(high),
        _ => None,
    })
}
