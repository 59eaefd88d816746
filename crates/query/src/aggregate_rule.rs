//! Replaces the first halves of aggregates by our own, where that is possible.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

/// Replaces aggregates by what `replacement` makes of them.
#[derive(Debug)]
pub(super) struct AggregateRule {
    pub(super) name: &'static str,
    /// The plan that replaces an aggregate; None where the aggregate has to stay.
    pub(super) replacement: fn(&AggregateExec) -> Option<Arc<dyn ExecutionPlan>>,
}

impl PhysicalOptimizerRule for AggregateRule {
    fn name(&self) -> &str {
        self.name
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let replaced = plan.transform_up(|node| {
            Ok(match node.downcast_ref::<AggregateExec>().and_then(self.replacement) {
                Some(replacement) => Transformed::yes(replacement),
                None => Transformed::no(node),
            })
        });
        Ok(replaced?.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}
