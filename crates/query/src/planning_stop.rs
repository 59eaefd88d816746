//! Planning that ends with its query. It does not wait for anything, so a task that is told to end would go on to the end
//! of its plan, which takes seconds for the longest statements in the development build. So each of the planner's rules
//! looks first whether the query is over for which the thread plans.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::analyzer::{Analyzer, AnalyzerRule};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::question;

/// A rule that fails where the query is over.
#[derive(Debug)]
struct Stoppable<Rule: ?Sized>(Arc<Rule>);

type Analysis = dyn AnalyzerRule + Send + Sync;
type Optimization = dyn OptimizerRule + Send + Sync;

/// DataFusion's rules for what a statement means.
pub(super) fn analyzer_rules() -> Vec<Arc<Analysis>> {
    Analyzer::new().rules.into_iter().map(|rule| Arc::new(Stoppable(rule)) as _).collect()
}

/// These rules, which end with their query.
pub(super) fn optimizer_rules(rules: Vec<Arc<Optimization>>) -> Vec<Arc<Optimization>> {
    rules.into_iter().map(|rule| Arc::new(Stoppable(rule)) as _).collect()
}

impl AnalyzerRule for Stoppable<Analysis> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        question::check()?;
        self.0.analyze(plan, config)
    }
}

impl OptimizerRule for Stoppable<Optimization> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        question::check()?;
        self.0.rewrite(plan, config)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bounds::Bounds;
    use crate::limits::{Asked, Limits};
    use crate::memory::Budget;
    use datafusion::logical_expr::LogicalPlanBuilder;
    use datafusion::optimizer::{Optimizer, OptimizerContext};

    #[test]
    fn planning_ends_with_its_query() {
        let limits = Arc::new(Limits::default());
        let bounds = Bounds::new(&limits, &Asked::default());
        let share = Arc::new(Budget::new(&limits)).share(&bounds);
        let plan = LogicalPlanBuilder::empty(true).build().unwrap();
        let analyze = || {
            let options = ConfigOptions::default();
            Analyzer::with_rules(analyzer_rules()).execute_and_check(plan.clone(), &options, |_, _| {})
        };
        let optimize = || {
            let optimizer = Optimizer::with_rules(optimizer_rules(Optimizer::new().rules));
            optimizer.optimize(plan.clone(), &OptimizerContext::new(), |_, _| {})
        };
        question::within(&share, || (analyze().unwrap(), optimize().unwrap()));
        bounds.gone.cancel();
        for ended in question::within(&share, || [analyze(), optimize()]) {
            assert!(ended.unwrap_err().to_string().contains("nobody waits"));
        }
    }
}
