//! [`Planner`]: makes a plan of a query's text, first the logical one ([`PlannedQuery`]) and then the one that runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::CatalogProviderList;
use datafusion::catalog::information_schema::INFORMATION_SCHEMA;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as DataFusionResult, ScalarValue};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SessionState, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::sql::parser::Statement;
use probe_common::error::Result;
use probe_store::{Store, SystemTable};

use super::bounds::QueryBounds;
use super::catalog::{CATALOG, Catalogs, NO_SCHEMA, NamedCatalog, QueryCatalog};
use super::column_names;
use super::described_types;
use super::errors::{no_run, no_table, or_say, within};
use super::expanded;
use super::guard;
use super::known_subqueries;
use super::made;
use super::memory::QueryMemory;
use super::names_of_casts;
use super::output;
use super::parameters::{self, Parameters};
use super::plan_cache::{self, CachedPlan, PlanCache};
use super::query_task;
use super::source::SharedByScans;
use super::table_functions;

/// Makes plans over the tables of a store.
#[derive(Debug)]
pub(super) struct Planner {
    pub(super) store: Arc<Store>,
    pub(super) system: Vec<Arc<dyn SystemTable>>,
    /// Tables of other runs, by the names that queries have for the runs.
    pub(super) others: Arc<[NamedCatalog]>,
    /// The session state that every query begins with; queries differ only in their tables.
    pub(super) state: Arc<SessionState>,
    pub(super) scans: SharedByScans,
    pub(super) cache: PlanCache,
}

/// A query that is understood and has not begun. It holds no rows: a query sees the tables as they are when it begins.
pub struct PlannedQuery {
    state: SessionState,
    plan: LogicalPlan,
    schema: SchemaRef,
    /// Number of tables there were: a new one may change what a text means.
    tables: usize,
    /// Bytes that the plan takes in memory, as far as they are counted.
    pub(super) bytes: usize,
    /// Whether its text needs much of a stack, which is taken when the text is read ([`query_task::take_stack`]).
    pub(super) is_deep: bool,
    /// What the cache has of the text, or may have.
    kept: Option<CachedPlan>,
    /// Whether the cache has it.
    is_kept: bool,
}

/// A plan that runs.
pub(super) struct RunnablePlan {
    /// The columns of the answer.
    pub(super) schema: SchemaRef,
    pub(super) plan: Arc<dyn ExecutionPlan>,
    pub(super) context: Arc<TaskContext>,
    /// What the cache should have of the text, if it has less.
    pub(super) to_keep: Option<CachedPlan>,
}

impl PlannedQuery {
    fn new(state: SessionState, plan: LogicalPlan, schema: SchemaRef, tables: usize) -> Self {
        Self { state, plan, schema, tables, bytes: 0, is_deep: false, kept: None, is_kept: false }
    }

    /// The copy for the cache, which has none. All the memory of `share` was allocated for this plan.
    pub(super) fn take_copy(&mut self, share: &QueryMemory) -> Option<CachedPlan> {
        if self.is_kept {
            return None;
        }
        self.is_kept = true;
        measured(self.kept.as_ref()?, share)
    }

    /// The columns of the answer.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Bytes that the plan takes in memory; 0 where the program does not count what it allocates.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for PlannedQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("plan", &self.plan).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// `plan` for the cache. All the memory of `share` was allocated for it. None where the text needs a deep stack, because that is
/// taken when the text is read.
fn measured(plan: &CachedPlan, share: &QueryMemory) -> Option<CachedPlan> {
    let is_deep = share.deep.load(Ordering::Relaxed);
    if is_deep {
        return None;
    }
    let mut plan = plan.clone();
    plan.bytes = share.account.bytes();
    Some(plan)
}

/// The schema of the answer, whose columns are called `names`. Types are those after conversion: the plan of a UNION of integers
/// and floats says before that its columns are the first one's.
fn schema(state: &SessionState, plan: &LogicalPlan, names: &[String]) -> DataFusionResult<SchemaRef> {
    let analyzed = state.analyzer().execute_and_check(plan.clone(), state.config_options(), |_, _| {})?;
    Ok(output::with_names(&output::plain_schema(analyzed.schema().as_arrow()), names))
}

impl Planner {
    /// The plan that runs, in the memory of `share`.
    pub(super) async fn physical(
        &self,
        mut plan: PlannedQuery,
        bounds: &QueryBounds,
        share: &Arc<QueryMemory>,
    ) -> Result<RunnablePlan> {
        let mut to_keep = plan.take_copy(share);
        let memory: Arc<dyn MemoryPool> = Arc::clone(share) as _;
        let PlannedQuery { mut state, plan, schema, kept, .. } = plan;
        let counted = made::count(plan, &memory).map_err(|error| within(&error, bounds))?;
        let (plan, kept) = (counted.data, kept.filter(|_| !counted.transformed));
        let lists_functions = or_say(reads_information_schema(&plan))?;
        // now() is when the query began.
        state.mark_start_execution();
        let planned = async {
            let (plan, optimized) = self.optimized(&state, known_subqueries::replace(plan)?, kept)?;
            if let Some(optimized) = optimized {
                to_keep = measured(&optimized, share);
            }
            query_task::check()?;
            let config = std::mem::take(state.config_mut());
            *state.config_mut() = config.with_batch_size(made::width::rows(&plan)?);
            state.query_planner().create_physical_plan(&plan, &state).await
        };
        let plan = planned.await.map_err(|error| within(&error, bounds))?;
        let runtime = RuntimeEnv { memory_pool: memory, ..state.runtime_env().as_ref().clone() };
        let context = if lists_functions {
            TaskContext::from(&state).with_runtime(Arc::new(runtime))
        } else {
            without_functions(&state, runtime)
        };
        Ok(RunnablePlan { schema, plan, context: Arc::new(context), to_keep })
    }

    /// What the optimizer makes of a plan, and what the cache should have of its text then, if it has less. `kept` is what the
    /// cache has; None where the plan is of one query alone.
    fn optimized(
        &self,
        state: &SessionState,
        plan: LogicalPlan,
        kept: Option<CachedPlan>,
    ) -> DataFusionResult<(LogicalPlan, Option<CachedPlan>)> {
        let Some(kept) = kept else { return Ok((state.optimize(&plan)?, None)) };
        if let Some(optimized) = kept.optimized(&plan, &self.store)? {
            return Ok((optimized, None));
        }
        let optimized = state.optimize(&plan)?;
        let to_keep = kept.with_optimized(&plan, &optimized, &self.store)?;
        Ok((optimized, to_keep))
    }

    /// The plan of a query's text, as far as it does not depend on rows.
    pub(super) async fn logical(
        &self,
        sql: &str,
        parameters: &Parameters,
        pid: Option<i32>,
        bounds: &QueryBounds,
    ) -> Result<PlannedQuery> {
        if parameters.is_empty()
            && let Some(kept) = self.kept(sql, pid)?
        {
            return Ok(kept);
        }
        let (statement, names) = understood(sql)?;
        let values = parameters.fit(&names)?;
        let tables = self.store.tables().len();
        let (state, plan) = self.without_values(sql, statement, &values, pid, bounds).await?;
        // As they were announced to a client that has not given values yet.
        let names_of_columns = column_names::names_of_plan(&plan);
        let plan = if values.is_empty() { plan } else { or_say(plan.with_param_values(values))? };
        or_say(expanded::check(&plan))?;
        let schema = schema(&state, &plan, &names_of_columns).map_err(|error| within(&error, bounds))?;
        let planned = PlannedQuery::new(state, plan, schema, tables);
        if names.is_empty() { self.with_copy(planned, sql, pid) } else { Ok(planned) }
    }

    /// The plan of a text that is in the cache, over the tables as they are when it begins.
    fn kept(&self, sql: &str, pid: Option<i32>) -> Result<Option<PlannedQuery>> {
        let tables = self.store.tables().len();
        let Some(kept) = self.cache.find(sql, pid, tables) else { return Ok(None) };
        let plan = or_say(plan_cache::over_unscanned_tables(kept.plan.clone(), &self.store))?;
        Ok(plan.map(|plan| {
            // Names are resolved already: the state needs no tables.
            let planned = PlannedQuery::new(self.state.as_ref().clone(), plan, Arc::clone(&kept.schema), tables);
            PlannedQuery { kept: Some(kept), is_kept: true, ..planned }
        }))
    }

    /// `planned`, which has no parameters, with its copy for the cache.
    fn with_copy(&self, mut planned: PlannedQuery, sql: &str, pid: Option<i32>) -> Result<PlannedQuery> {
        let PlannedQuery { plan, schema, tables, .. } = &planned;
        planned.kept = or_say(CachedPlan::new(sql, pid, *tables, plan, schema, &self.store))?;
        Ok(planned)
    }

    /// Checks what [`Planner::physical`] checks before it plans: for a plan that is not to run now.
    pub(super) fn check(plan: &PlannedQuery, bounds: &QueryBounds, memory: &Arc<dyn MemoryPool>) -> Result<()> {
        made::count(plan.plan.clone(), memory).map(drop).map_err(|error| within(&error, bounds))
    }

    /// Whether a query may begin with `plan`: its text would become the same plan now, and needs no more than the plan does.
    pub(super) fn can_begin(&self, plan: &PlannedQuery) -> bool {
        plan.tables == self.store.tables().len() && !plan.is_deep
    }

    /// The plan of a query whose parameters have no values yet, and the parameters. It can run where there are none.
    pub(super) async fn prepared(
        &self,
        sql: &str,
        pid: Option<i32>,
        bounds: &QueryBounds,
    ) -> Result<(PlannedQuery, Schema)> {
        if let Some(kept) = self.kept(sql, pid)? {
            return Ok((kept, Schema::empty()));
        }
        let (statement, names) = understood(sql)?;
        let unknown: Vec<_> = names.iter().map(|name| (name.clone(), ScalarValue::Null)).collect();
        let tables = self.store.tables().len();
        let (state, plan) = self.without_values(sql, statement, &unknown, pid, bounds).await?;
        if names.is_empty() {
            or_say(expanded::check(&plan))?;
        }
        let types = or_say(plan.get_parameter_types())?;
        let names_of_columns = column_names::names_of_plan(&plan);
        let schema = match schema(&state, &plan, &names_of_columns) {
            Ok(schema) => schema,
            // The types of parameters are not always known.
            Err(_) if !names.is_empty() => {
                output::with_names(&output::plain_schema(plan.schema().as_arrow()), &names_of_columns)
            }
            Err(error) => return Err(within(&error, bounds)),
        };
        let planned = PlannedQuery::new(state, plan, schema, tables);
        let planned = if names.is_empty() { self.with_copy(planned, sql, pid)? } else { planned };
        Ok((planned, parameters::schema(&names, &types)))
    }

    /// The plan of a query with its parameters still in it, except those in arguments of table functions. `statement` is what `sql`
    /// says.
    async fn without_values(
        &self,
        sql: &str,
        statement: Statement,
        values: &[(String, ScalarValue)],
        pid: Option<i32>,
        bounds: &QueryBounds,
    ) -> Result<(SessionState, LogicalPlan)> {
        let own = QueryCatalog::new(&self.store, &self.system, pid, &self.scans, &self.state);
        let catalogs: Arc<dyn CatalogProviderList> = Arc::new(Catalogs { own, others: Arc::clone(&self.others) });
        let mut state = self.state.as_ref().clone();
        state.register_catalog_list(Arc::clone(&catalogs));
        table_functions::bind(&mut state, values);
        for reference in or_say(state.resolve_table_references(&statement))? {
            let resolved = reference.clone().resolve(CATALOG, NO_SCHEMA);
            if catalogs.catalog(&resolved.catalog).is_none() {
                return Err(no_run(&resolved.catalog, &catalogs.catalog_names()));
            }
            let there = state.schema_for_ref(resolved.clone()).is_ok_and(|schema| schema.table_exist(&resolved.table));
            if !there && !state.table_functions().contains_key(reference.table()) {
                return Err(no_table(&reference, &self.store.tables()));
            }
        }
        let describes = described_types::describes(&statement);
        let plan = match state.statement_to_plan(statement).await {
            Err(error) if names_of_casts::are_missing(&error) => {
                let (mut named, _) = understood(sql)?;
                names_of_casts::give_names(&mut named);
                state.statement_to_plan(named).await.map_err(|_| error)
            }
            planned => planned,
        };
        let plan = plan.map_err(|error| within(&error, bounds))?;
        guard::verify(&plan)?;
        let plan = if describes { or_say(described_types::in_sql(plan))? } else { plan };
        Ok((state, plan))
    }
}

/// Whether a plan reads tables about the tables and functions that there are: SHOW FUNCTIONS does.
fn reads_information_schema(plan: &LogicalPlan) -> datafusion::common::Result<bool> {
    let mut reads = false;
    plan.apply_with_subqueries(|node| {
        reads |= matches!(node, LogicalPlan::TableScan(scan) if scan.table_name.schema() == Some(INFORMATION_SCHEMA));
        Ok(if reads { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(reads)
}

/// The context of a plan that asks for no function by its name. Its functions are in the plan, and copying all others takes longer
/// than a short query runs.
fn without_functions(state: &SessionState, runtime: RuntimeEnv) -> TaskContext {
    let (id, config) = (state.session_id().to_owned(), state.config().clone());
    let (scalar, higher_order, aggregate, window) = Default::default();
    TaskContext::new(None, id, config, scalar, higher_order, aggregate, window, Arc::new(runtime))
}

/// The statement of a query's text, and the names of its parameters.
fn understood(sql: &str) -> Result<(Statement, Vec<String>)> {
    let mut statement = guard::parse(sql)?;
    let names = parameters::parameter_names(&mut statement)?;
    Ok((statement, names))
}
