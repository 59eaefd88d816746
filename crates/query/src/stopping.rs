//! Makes plans that can be stopped. DataFusion yields after 128 batches that were read; a join makes more rows than it reads, and
//! could go on for hours with a few rows that it has already, and an expression that is slow takes long for 128 batches. So a query
//! checks at every batch that is read or joined whether it is over.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::datasource::source::DataSourceExec;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::lit;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder};

use crate::adapted_input::{AdaptedInput, checked};
use crate::query_task;

/// Makes every node that multiplies rows yield, too, and ends nodes that read or join rows when their query is over.
#[derive(Debug)]
pub(super) struct StopAnywhere;

impl PhysicalOptimizerRule for StopAnywhere {
    fn name(&self) -> &'static str {
        "StopAnywhere"
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let wrapped = plan.transform_up(|node| {
            // A scan of stored rows looks at that itself, and rows that a statement lists are few.
            if node.children().is_empty() && node.downcast_ref::<DataSourceExec>().is_none() {
                return Ok(Transformed::yes(stoppable(node)));
            }
            let multiplies = node.name().contains("Join") || node.name().contains("Unnest");
            if !multiplies {
                return Ok(Transformed::no(node));
            }
            let node = stoppable(with_stoppable_condition(node)?);
            Ok(Transformed::yes(Arc::new(CooperativeExec::new(node)) as _))
        });
        Ok(wrapped?.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The node, with a condition that fails once the query is over where it is a join that may work for long without giving a batch.
/// A join compares a batch of one side with all rows of the other that may match, a few thousand pairs at a time. It gives few rows for
/// them where it has a condition, and none where it only looks which rows have a match.
fn with_stoppable_condition(node: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        let filter = stoppable_filter(join.filter(), *join.join_type());
        return Ok(Arc::new(NestedLoopJoinExecBuilder::from(join).with_filter(filter).build()?));
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        let filter = stoppable_filter(join.filter(), *join.join_type());
        return Ok(Arc::new(join.builder().with_filter(filter).build()?));
    }
    Ok(node)
}

/// The join's condition, made stoppable. A join that gives no pairs of rows has one in any case: one that all pairs fulfil.
fn stoppable_filter(filter: Option<&JoinFilter>, join: JoinType) -> Option<JoinFilter> {
    let gives_pairs = matches!(join, JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full);
    match filter {
        Some(filter) => {
            let condition = Arc::new(StoppableCondition(Arc::clone(filter.expression())));
            Some(JoinFilter::new(condition, filter.column_indices().to_vec(), Arc::clone(filter.schema())))
        }
        None if gives_pairs => None,
        None => Some(JoinFilter::new(Arc::new(StoppableCondition(lit(true))), Vec::new(), Arc::new(Schema::empty()))),
    }
}

/// The node, whose batches come until the query is over.
fn stoppable(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    Arc::new(AdaptedInput {
        name: "StoppableExec",
        adapt: |batches, _| checked(batches, |_| query_task::check()),
        input,
    })
}

/// A condition that fails once the query that the thread works for is over.
#[derive(Debug)]
struct StoppableCondition(Arc<dyn PhysicalExpr>);

impl PartialEq for StoppableCondition {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq(&other.0)
    }
}

impl Eq for StoppableCondition {}

impl Hash for StoppableCondition {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Display for StoppableCondition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PhysicalExpr for StoppableCondition {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.0.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.0.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        query_task::check()?;
        self.0.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.0]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(Arc::new(Self(children.into_iter().next().unwrap_or_else(|| Arc::clone(&self.0)))))
    }

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}
