//! DataFusion's rules for aggregations that need a name of its own for each expression.
//!
//! A cast has the name of what is cast, so that `GROUP BY CAST(x AS DOUBLE), x` has one name twice. That is right until one of these
//! rules puts a projection on top, which refuses it. They are skipped for such aggregations.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Aggregate, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

type Rule = Arc<dyn OptimizerRule + Send + Sync>;

/// The rules that project what an aggregation computes by its names.
const NEED_NAMES: [&str; 2] = ["eliminate_group_by_constant", "single_distinct_aggregation_to_group_by"];

/// The rules, of which those that need names are skipped where one is there twice.
pub(super) fn guard(rules: Vec<Rule>) -> Vec<Rule> {
    let guard = |rule: Rule| if NEED_NAMES.contains(&rule.name()) { Arc::new(NameGuardedRule(rule)) } else { rule };
    rules.into_iter().map(guard).collect()
}

#[derive(Debug)]
struct NameGuardedRule(Rule);

impl OptimizerRule for NameGuardedRule {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match &plan {
            LogicalPlan::Aggregate(aggregate) if has_one_name_twice(aggregate) => Ok(Transformed::no(plan)),
            _ => self.0.rewrite(plan, config),
        }
    }
}

fn has_one_name_twice(aggregate: &Aggregate) -> bool {
    let mut names = HashSet::new();
    let mut expressions = aggregate.group_expr.iter().chain(&aggregate.aggr_expr);
    expressions.any(|expression| !names.insert(expression.schema_name().to_string()))
}

#[cfg(test)]
mod tests {
    use datafusion::optimizer::Optimizer;

    use super::*;

    #[test]
    fn the_rules_that_need_names_are_there() {
        let rules = Optimizer::new().rules;
        for name in NEED_NAMES {
            assert!(rules.iter().any(|rule| rule.name() == name), "{rules:?}");
        }
    }
}
