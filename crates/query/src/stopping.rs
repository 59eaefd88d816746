//! Makes plans that can be stopped. DataFusion yields only where rows are read; a join makes more rows than it reads, and could
//! go on for hours with a few rows that it has already.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;

/// Makes every node that multiplies rows yield, too.
#[derive(Debug)]
pub(super) struct StopAnywhere;

impl PhysicalOptimizerRule for StopAnywhere {
    fn name(&self) -> &'static str {
        "StopAnywhere"
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let wrapped = plan.transform_up(|node| {
            let multiplies = node.name().contains("Join") || node.name().contains("Unnest");
            Ok(if multiplies {
                Transformed::yes(Arc::new(CooperativeExec::new(node)) as Arc<dyn ExecutionPlan>)
            } else {
                Transformed::no(node)
            })
        });
        Ok(wrapped?.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}
