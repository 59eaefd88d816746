//! Makes plans that can be stopped. DataFusion yields only where rows are read; a join makes more rows than it reads, and could
//! go on for hours with a few rows that it has already.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{NestedLoopJoinExec, NestedLoopJoinExecBuilder};

use crate::question;

/// Makes every node that multiplies rows yield, too, and ends a join that compares every pair of rows when its query is over.
#[derive(Debug)]
pub(super) struct StopAnywhere;

impl PhysicalOptimizerRule for StopAnywhere {
    fn name(&self) -> &'static str {
        "StopAnywhere"
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let wrapped = plan.transform_up(|node| {
            let multiplies = node.name().contains("Join") || node.name().contains("Unnest");
            if !multiplies {
                return Ok(Transformed::no(node));
            }
            let node = match node.downcast_ref::<NestedLoopJoinExec>() {
                Some(join) if join.filter().is_some() => Arc::new(stoppable(join)?),
                _ => node,
            };
            Ok(Transformed::yes(Arc::new(CooperativeExec::new(node)) as Arc<dyn ExecutionPlan>))
        });
        Ok(wrapped?.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The join with a condition that fails once the query is over. Before it yields, it compares a batch of one side with all rows of the
/// other, a few thousand pairs at a time.
fn stoppable(join: &NestedLoopJoinExec) -> Result<NestedLoopJoinExec> {
    let filter = join.filter().map(|filter| {
        let condition = Arc::new(StoppableCondition(Arc::clone(filter.expression())));
        JoinFilter::new(condition, filter.column_indices().to_vec(), Arc::clone(filter.schema()))
    });
    NestedLoopJoinExecBuilder::from(join).with_filter(filter).build()
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
        question::check()?;
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
