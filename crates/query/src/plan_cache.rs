//! Logical plans of questions that were asked before. A text that is asked again, as a dashboard does, is read and planned once,
//! as long as there are the same tables. What the optimizer made of the plan is kept too, and used while the values that came
//! from the tables' statistics are the same.
//!
//! A kept plan holds no rows: its tables have never been scanned, and each question gets tables of its own.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::{Expr, LogicalPlan, TableSource, Volatility};
use probe_store::Store;

use super::provider::RowsTable;
use super::snapshots::StoreSnapshot;

/// The most plans that are kept. Of more, the one that was last asked longest ago is dropped.
const MAX_PLANS: usize = 64;
/// The most bytes that they take together, as far as they are counted.
const MAX_BYTES: usize = 4 << 20;
/// The longest text whose plan is kept (bytes).
const MAX_TEXT: usize = 16 << 10;

/// The plans of one planner.
#[derive(Debug, Default)]
pub(super) struct PlanCache {
    /// The one that was asked last is at the end.
    kept: Mutex<VecDeque<CachedPlan>>,
}

/// A plan whose tables have never been scanned, and the question that it is the plan of.
#[derive(Clone)]
pub(super) struct CachedPlan {
    sql: Arc<str>,
    pid: Option<i32>,
    /// Number of tables there were: a new one may change what a text means.
    tables: usize,
    pub(super) plan: LogicalPlan,
    /// The columns of the answer.
    pub(super) schema: SchemaRef,
    optimized: Option<Arc<OptimizedPlan>>,
    /// Bytes that the plans take in memory at most; 0 where the program does not count what it allocates.
    pub(super) bytes: usize,
}

/// A plan before and after the optimizer, over tables that have never been scanned.
struct OptimizedPlan {
    before: LogicalPlan,
    after: LogicalPlan,
}

impl CachedPlan {
    /// The plan of a text without parameters over the tables of `store`. None where it reads anything else: rows of other runs,
    /// series, lists of tables and functions.
    ///
    /// # Errors
    /// DataFusion's.
    pub(super) fn new(
        sql: &str,
        pid: Option<i32>,
        tables: usize,
        plan: &LogicalPlan,
        schema: &SchemaRef,
        store: &Arc<Store>,
    ) -> Result<Option<Self>> {
        if sql.len() > MAX_TEXT {
            return Ok(None);
        }
        let plan = over_unscanned_tables(plan.clone(), store)?;
        let (sql, schema) = (sql.into(), Arc::clone(schema));
        Ok(plan.map(|plan| Self { sql, pid, tables, plan, schema, optimized: None, bytes: 0 }))
    }

    /// What the optimizer made of `before` when this question was asked the last time, over the tables of `before`. None where it
    /// was given another plan then: bounds of the tables are in it, and the tables may have grown.
    ///
    /// # Errors
    /// DataFusion's.
    pub(super) fn optimized(&self, before: &LogicalPlan, store: &Arc<Store>) -> Result<Option<LogicalPlan>> {
        let Some(known) = self.optimized.as_ref().filter(|known| known.before == *before) else { return Ok(None) };
        let mut tables = HashMap::new();
        before.apply_with_subqueries(|node| {
            if let LogicalPlan::TableScan(scan) = node
                && let Some(table) = source_as_provider(&scan.source)?.downcast_ref::<RowsTable>()
            {
                tables.insert(table.index(), Arc::clone(&scan.source));
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        over_tables(known.after.clone(), store, |table| tables.get(&table.index()).cloned())
    }

    /// This plan, with what the optimizer made of `before`, which is this plan without the values that are known. None where it
    /// may make something else of it the next time: a function such as now() has the value of the moment.
    ///
    /// # Errors
    /// DataFusion's.
    pub(super) fn with_optimized(
        &self,
        before: &LogicalPlan,
        after: &LogicalPlan,
        store: &Arc<Store>,
    ) -> Result<Option<Self>> {
        if matches!(before, LogicalPlan::Explain(_)) || !is_immutable(before)? {
            return Ok(None);
        }
        let unscanned = |plan: &LogicalPlan| over_unscanned_tables(plan.clone(), store);
        let (Some(before), Some(after)) = (unscanned(before)?, unscanned(after)?) else { return Ok(None) };
        Ok(Some(Self { optimized: Some(Arc::new(OptimizedPlan { before, after })), ..self.clone() }))
    }
}

/// Whether every function of a plan has the same value for the same arguments at any time.
fn is_immutable(plan: &LogicalPlan) -> Result<bool> {
    let mut is_immutable = true;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            let changes = |part: &Expr| match part {
                Expr::ScalarFunction(call) => call.func.signature().volatility != Volatility::Immutable,
                _ => false,
            };
            is_immutable &= !expression.exists(|part| Ok(changes(part)))?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(is_immutable)
}

impl fmt::Debug for CachedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptPlan").field("sql", &self.sql).field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl PlanCache {
    /// The plan of this text for this process, where it is kept and there are as many tables as then.
    pub(super) fn find(&self, sql: &str, pid: Option<i32>, tables: usize) -> Option<CachedPlan> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let index = kept.iter().position(|one| &*one.sql == sql && one.pid == pid && one.tables == tables)?;
        let found = kept.remove(index)?;
        kept.push_back(found.clone());
        Some(found)
    }

    /// Keeps a plan.
    pub(super) fn insert(&self, plan: CachedPlan) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|one| one.sql != plan.sql || one.pid != plan.pid);
        kept.push_back(plan);
        while kept.len() > MAX_PLANS || kept.iter().map(|one| one.bytes).sum::<usize>() > MAX_BYTES {
            kept.pop_front();
        }
    }
}

/// The same plan over tables of `store` that have not been scanned; None where it reads anything else.
///
/// # Errors
/// DataFusion's.
pub(super) fn over_unscanned_tables(plan: LogicalPlan, store: &Arc<Store>) -> Result<Option<LogicalPlan>> {
    let snapshots = Arc::new(StoreSnapshot::new(store));
    let mut tables: HashMap<usize, Arc<dyn TableSource>> = HashMap::new();
    over_tables(plan, store, |table| {
        // One table for all that name it: they must see the same rows.
        let unscanned = || provider_as_source(Arc::new(table.unscanned(&snapshots)));
        Some(Arc::clone(tables.entry(table.index()).or_insert_with(unscanned)))
    })
}

/// The same plan over the tables that `replace` gives for those of `store`; None where it gives none, or the plan reads anything
/// else.
fn over_tables(
    plan: LogicalPlan,
    store: &Arc<Store>,
    mut replace: impl FnMut(&RowsTable) -> Option<Arc<dyn TableSource>>,
) -> Result<Option<LogicalPlan>> {
    let mut are_all_replaced = true;
    let plan = plan.transform_up_with_subqueries(|node| {
        let LogicalPlan::TableScan(mut scan) = node else { return Ok(Transformed::no(node)) };
        let provider = source_as_provider(&scan.source)?;
        match provider.downcast_ref::<RowsTable>().filter(|table| table.is_of(store)).and_then(&mut replace) {
            Some(table) => scan.source = table,
            None => are_all_replaced = false,
        }
        Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
    })?;
    Ok(are_all_replaced.then_some(plan.data))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::datatypes::Schema;
    use datafusion::logical_expr::{LogicalPlanBuilder, lit};

    use super::*;

    fn plan(sql: &str, pid: Option<i32>, bytes: usize) -> CachedPlan {
        CachedPlan { bytes, ..of(sql, pid).unwrap() }
    }

    fn of(sql: &str, pid: Option<i32>) -> Option<CachedPlan> {
        let schema = Arc::new(Schema::empty());
        CachedPlan::new(sql, pid, 40, &LogicalPlan::default(), &schema, &Store::new(1 << 20)).unwrap()
    }

    #[test]
    fn a_plan_is_of_a_text_a_process_and_the_tables_that_there_were() {
        let cache = PlanCache::default();
        cache.insert(plan("SELECT 1", Some(7), 0));
        assert!(cache.find("SELECT 1", Some(7), 40).is_some());
        assert!(cache.find("SELECT 1", Some(7), 40).is_some(), "it stays");
        for (sql, pid, tables) in [("SELECT 2", Some(7), 40), ("SELECT 1", None, 40), ("SELECT 1", Some(7), 41)] {
            assert!(cache.find(sql, pid, tables).is_none(), "{sql} {pid:?} {tables}");
        }
    }

    #[test]
    fn what_the_optimizer_made_is_used_for_the_same_plan_alone() {
        let store = Store::new(1 << 20);
        let kept = of("SELECT 1", None).unwrap();
        let plan = |number: i64| {
            let values = vec![vec![lit(number)]];
            LogicalPlanBuilder::values(values).unwrap().build().unwrap()
        };
        assert!(kept.optimized(&plan(1), &store).unwrap().is_none());
        let kept = kept.with_optimized(&plan(1), &plan(7), &store).unwrap().unwrap();
        assert_eq!(kept.optimized(&plan(1), &store).unwrap(), Some(plan(7)));
        assert!(kept.optimized(&plan(2), &store).unwrap().is_none(), "a bound of a table may be in it");
    }

    #[test]
    fn few_plans_and_bytes_are_kept_and_what_is_asked_stays() {
        let cache = PlanCache::default();
        let kept = || cache.kept.lock().unwrap().iter().map(|one| one.sql.to_string()).collect::<Vec<_>>();
        for number in 0..2 * MAX_PLANS {
            cache.insert(plan(&format!("SELECT {number}"), None, 0));
            cache.find("SELECT 0", None, 40).unwrap();
        }
        assert_eq!(kept().len(), MAX_PLANS);
        cache.insert(plan("large", None, MAX_BYTES - 1));
        cache.insert(plan("large", None, MAX_BYTES - 1));
        assert_eq!(kept().len(), MAX_PLANS, "the same text is there once");
        cache.insert(plan("small", None, 1));
        cache.insert(plan("another", None, 1));
        assert_eq!(kept(), ["small", "another"]);
        cache.insert(plan("too large", None, MAX_BYTES + 1));
        assert!(kept().is_empty());
        assert!(of(&" ".repeat(MAX_TEXT), None).is_some());
        assert!(of(&" ".repeat(MAX_TEXT + 1), None).is_none());
    }
}
