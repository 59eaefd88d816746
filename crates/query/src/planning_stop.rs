//! Ends planning when its query is over. Planning never waits, so an aborted task would plan to the end, which takes half a
//! second for each of the longest statements in the development build. So every rule of the analyzer and the optimizer first
//! checks whether the query is over that the calling thread works for.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::analyzer::{Analyzer, AnalyzerRule};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::checked_arithmetic::CheckArithmetic;
use super::key_bounds::BoundOperands;
use super::lazy_conditions::LazyConditions;
use super::query_task;

/// A rule of the planner that fails if the query is over, and otherwise does what the inner rule does.
#[derive(Debug)]
struct StoppableRule<Rule: ?Sized>(Arc<Rule>);

type Analysis = dyn AnalyzerRule + Send + Sync;
type Optimization = dyn OptimizerRule + Send + Sync;

/// DataFusion's analyzer rules and then those that make conditions wait and that check integers, each of which ends with its query.
pub(super) fn analyzer_rules() -> Vec<Arc<Analysis>> {
    let mut rules = Analyzer::new().rules;
    rules.push(Arc::new(LazyConditions));
    rules.push(Arc::new(CheckArithmetic));
    rules.into_iter().map(|rule| Arc::new(StoppableRule(rule)) as _).collect()
}

/// These optimizer rules and then the one that gives the operands in keys a range, each of which ends with its query.
pub(super) fn optimizer_rules(mut rules: Vec<Arc<Optimization>>) -> Vec<Arc<Optimization>> {
    rules.push(Arc::new(BoundOperands));
    rules.into_iter().map(|rule| Arc::new(StoppableRule(rule)) as _).collect()
}

impl AnalyzerRule for StoppableRule<Analysis> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        query_task::check()?;
        self.0.analyze(plan, config)
    }
}

impl OptimizerRule for StoppableRule<Optimization> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        query_task::check()?;
        self.0.rewrite(plan, config)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bounds::QueryBounds;
    use crate::limits::{QueryLimits, QuerySettings};
    use crate::memory::MemoryBudget;
    use datafusion::logical_expr::LogicalPlanBuilder;
    use datafusion::optimizer::{Optimizer, OptimizerContext};

    #[test]
    fn planning_ends_with_its_query() {
        let limits = Arc::new(QueryLimits::default());
        let bounds = QueryBounds::new(&limits, &QuerySettings::default());
        let share = Arc::new(MemoryBudget::new(&limits)).share(&bounds);
        let plan = LogicalPlanBuilder::empty(true).build().unwrap();
        let analyze = || {
            let options = ConfigOptions::default();
            Analyzer::with_rules(analyzer_rules()).execute_and_check(plan.clone(), &options, |_, _| {})
        };
        let optimize = || {
            let optimizer = Optimizer::with_rules(optimizer_rules(Optimizer::new().rules));
            optimizer.optimize(plan.clone(), &OptimizerContext::new(), |_, _| {})
        };
        query_task::within(&share, || (analyze().unwrap(), optimize().unwrap()));
        bounds.gone.cancel();
        for ended in query_task::within(&share, || [analyze(), optimize()]) {
            assert!(ended.unwrap_err().to_string().contains("disconnected"));
        }
    }
}
