//! DataFusion's rules for physical plans. Some of them are skipped for plans that they would make wrong.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_optimizer::{PhysicalOptimizerContext, PhysicalOptimizerRule};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

/// All rules of DataFusion, in their order.
pub(super) fn rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let guard = |rule: Arc<dyn PhysicalOptimizerRule + Send + Sync>| -> Arc<dyn PhysicalOptimizerRule + Send + Sync> {
        match rule.name() {
            // It finds a condition's columns in the nodes below by their names. With two of one name, as joins have, the condition
            // may end up on the wrong side. Conditions of the query itself have been handed to the scans before.
            "FilterPushdown" | "FilterPushdown(Post)" => Arc::new(GuardedRule { rule, harms: has_one_name_twice }),
            // It takes COUNT(DISTINCT x) of a constant for 1, also where the constant is NULL or there are no rows.
            "aggregate_statistics" => Arc::new(GuardedRule { rule, harms: has_distinct }),
            _ => rule,
        }
    };
    PhysicalOptimizer::new().rules.into_iter().map(guard).collect()
}

/// A rule that is skipped for plans with a node that it harms.
#[derive(Debug)]
struct GuardedRule {
    rule: Arc<dyn PhysicalOptimizerRule + Send + Sync>,
    harms: fn(&Arc<dyn ExecutionPlan>) -> bool,
}

impl PhysicalOptimizerRule for GuardedRule {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if self.would_harm(&plan)? { Ok(plan) } else { self.rule.optimize(plan, config) }
    }

    fn optimize_with_context(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: &dyn PhysicalOptimizerContext,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if self.would_harm(&plan)? { Ok(plan) } else { self.rule.optimize_with_context(plan, context) }
    }

    fn schema_check(&self) -> bool {
        self.rule.schema_check()
    }
}

impl GuardedRule {
    fn would_harm(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
        let mut is_harmed = false;
        plan.apply(|node| {
            is_harmed = (self.harms)(node);
            Ok(if is_harmed { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        Ok(is_harmed)
    }
}

fn has_one_name_twice(node: &Arc<dyn ExecutionPlan>) -> bool {
    let schema = node.schema();
    let mut names: Vec<&String> = schema.fields().iter().map(|field| field.name()).collect();
    names.sort_unstable();
    names.windows(2).any(|two| two[0] == two[1])
}

fn has_distinct(node: &Arc<dyn ExecutionPlan>) -> bool {
    let aggregate = node.downcast_ref::<AggregateExec>();
    aggregate.is_some_and(|aggregate| aggregate.aggr_expr().iter().any(|one| one.is_distinct()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_that_need_a_guard_are_there() {
        let rules = rules();
        for name in ["FilterPushdown", "FilterPushdown(Post)", "aggregate_statistics"] {
            assert!(rules.iter().any(|rule| rule.name() == name), "{rules:?}");
        }
    }
}
