//! [`QueryEngine`]: plans and runs queries.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::catalog::CatalogProvider;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::registry::FunctionRegistry;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder};
use datafusion::logical_expr::AggregateUDF;
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionConfig;
use probe_common::error::{Error, Result};
use probe_proto::table::Table;
use probe_store::{Store, SystemTable};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::admission::QueryAdmission;
use crate::allocator;
use crate::answer::{self, AnswerOutput, EndOnDrop};
use crate::bounds::QueryBounds;
use crate::by_process;
use crate::catalog::{CATALOG, NO_SCHEMA, QueryCatalog};
use crate::checked_sum::CheckedSum;
use crate::epoch::EpochOfDuration;
use crate::errors::or_say;
use crate::extremes::{Largest, Smallest};
use crate::group_by_id;
use crate::guarded_rules;
use crate::json;
use crate::limits::{QueryLimits, QuerySettings};
use crate::made::weigh::WeighInputs;
use crate::memory::{MemoryBudget, QueryMemory};
use crate::names_of_aggregates;
use crate::nested_projections;
use crate::output;
use crate::percentile::ApproxPercentile;
use crate::plan_cache::PlanCache;
use crate::planner::{PlannedQuery, Planner, RunnablePlan};
use crate::planning_stop;
use crate::query_task;
use crate::running::RunningCount;
use crate::source::SharedByScans;
use crate::stopping::StopAnywhere;
use crate::threads::{QueryThreads, give_back_stack};
use crate::totals;

/// Sums that are kept take at most the memory of queries divided by this, beside it.
const SUMS: usize = 16;

/// Answers SQL over a store and the collector's own tables. Queries are read-only, within [`QueryLimits`], and run on the engine's
/// own threads: the caller only waits. Dropping an answer ends its query.
pub struct QueryEngine {
    planner: Arc<Planner>,
    limits: Arc<QueryLimits>,
    memory: Arc<MemoryBudget>,
    admission: Arc<QueryAdmission>,
    queries: RunningCount,
    threads: QueryThreads,
}

impl QueryEngine {
    /// An engine over `store` and the tables of `system`, within the default limits.
    ///
    /// # Errors
    /// DataFusion's, where its runtime can't be made; the system's, where it has no threads left.
    pub fn new(store: Arc<Store>, system: Vec<Arc<dyn SystemTable>>) -> Result<Self> {
        Self::with_limits(store, system, QueryLimits::default())
    }

    /// An engine over `store` and the tables of `system`, within `limits`.
    ///
    /// # Errors
    /// The errors of [`QueryEngine::new`].
    pub fn with_limits(store: Arc<Store>, system: Vec<Arc<dyn SystemTable>>, limits: QueryLimits) -> Result<Self> {
        allocator::keep_little();
        query_task::follow_tasks();
        let runtime = RuntimeEnvBuilder::new()
            // Each query gets a memory pool of its own (`memory`).
            .with_memory_pool(Arc::new(GreedyMemoryPool::new(0)))
            // Queries write nothing, also not to temporary files: past the memory bound they end with an error.
            .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled));
        let config = SessionConfig::new()
            .with_default_catalog_and_schema(CATALOG, NO_SCHEMA)
            .with_create_default_catalog_and_schema(false)
            .with_information_schema(true)
            // The top-K aggregation takes memory for as many groups as LIMIT says, before there is a group.
            .set_bool("datafusion.optimizer.enable_topk_aggregation", false)
            // It refuses plans that are right: x IS TRUE may be NULL to the planner and never is to what computes it.
            .set_bool("datafusion.execution.skip_physical_aggregate_schema_check", true);
        let mut state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(Arc::new(or_say(runtime.build())?))
            .with_default_features()
            .with_analyzer_rules(planning_stop::analyzer_rules())
            .with_optimizer_rules(planning_stop::optimizer_rules(names_of_aggregates::guard(
                nested_projections::rules(),
            )))
            .with_physical_optimizer_rules(guarded_rules::rules())
            .with_physical_optimizer_rule(Arc::new(by_process::RULE))
            .with_physical_optimizer_rule(Arc::new(group_by_id::RULE))
            .with_physical_optimizer_rule(Arc::new(totals::RULE))
            .with_physical_optimizer_rule(Arc::new(WeighInputs))
            .with_physical_optimizer_rule(Arc::new(StopAnywhere))
            .build();
        or_say(state.register_udaf(Arc::new(AggregateUDF::from(ApproxPercentile::default()))))?;
        or_say(state.register_udaf(Arc::new(AggregateUDF::from(CheckedSum::default()))))?;
        or_say(state.register_udaf(Arc::new(AggregateUDF::from(Smallest::default()))))?;
        or_say(state.register_udaf(Arc::new(AggregateUDF::from(Largest::default()))))?;
        or_say(state.register_function_rewrite(Arc::new(EpochOfDuration)))?;
        or_say(json::register(&mut state))?;
        let running = limits.running;
        let scans = SharedByScans::new(limits.memory / SUMS);
        Ok(Self {
            planner: Arc::new(Planner {
                store,
                system,
                others: Arc::from([]),
                state: Arc::new(state),
                scans,
                cache: PlanCache::default(),
            }),
            admission: Arc::new(QueryAdmission::new(&limits)),
            memory: Arc::new(MemoryBudget::new(&limits)),
            limits: Arc::new(limits),
            queries: RunningCount::default(),
            threads: QueryThreads::start(running)?,
        })
    }

    /// This engine, whose queries can also name the tables of other runs: `b.python.steps` is the table of the catalog called b.
    /// A catalog called [`CATALOG`] hides the engine's own tables.
    #[must_use]
    pub fn with_catalogs(self, others: Vec<(String, Arc<dyn CatalogProvider>)>) -> Self {
        let Planner { store, system, state, scans, .. } = &*self.planner;
        let (store, system, state, scans) = (Arc::clone(store), system.clone(), Arc::clone(state), scans.clone());
        let cache = PlanCache::default();
        Self { planner: Arc::new(Planner { store, system, others: others.into(), state, scans, cache }), ..self }
    }

    /// This engine's own tables as they are now, for the queries of another engine.
    pub fn catalog(&self, pid: Option<i32>) -> Arc<dyn CatalogProvider> {
        let Planner { store, system, scans, state, .. } = &*self.planner;
        Arc::new(QueryCatalog::new(store, system, pid, scans, state))
    }

    /// Runs a query over the tables as they are now; rows come as they are found. With `pid`, tables have only that
    /// process's rows. An error of the stream becomes ours with [`from_datafusion`](crate::from_datafusion).
    ///
    /// # Errors
    /// The text is no query, is not allowed, or names something that does not exist; a limit is reached.
    pub async fn query(&self, sql: &str, pid: Option<i32>) -> Result<SendableRecordBatchStream> {
        self.ask(sql, QuerySettings { pid, ..QuerySettings::default() }).await
    }

    /// Runs a query as [`QueryEngine::query`] does, with the parameters and limits of `asked`.
    ///
    /// # Errors
    /// The errors of [`QueryEngine::query`].
    pub async fn ask(&self, sql: &str, asked: QuerySettings) -> Result<SendableRecordBatchStream> {
        self.answer(sql, asked, None).await
    }

    /// Runs a query as [`QueryEngine::ask`] does, by a plan that [`QueryEngine::plan`] made of the same text, process and
    /// parameters. The rows are those of now.
    ///
    /// # Errors
    /// The errors of [`QueryEngine::query`].
    pub async fn ask_by(
        &self,
        plan: PlannedQuery,
        sql: &str,
        asked: QuerySettings,
    ) -> Result<SendableRecordBatchStream> {
        self.answer(sql, asked, Some(plan)).await
    }

    async fn answer(
        &self,
        sql: &str,
        asked: QuerySettings,
        plan: Option<PlannedQuery>,
    ) -> Result<SendableRecordBatchStream> {
        let bounds = QueryBounds::new(&self.limits, &asked);
        let (sql, pid, parameters) = (sql.to_owned(), asked.pid, asked.parameters);
        let permit = self.admission.enter(&bounds).await?;
        let (planned, schema) = oneshot::channel();
        let share = self.memory.share(&bounds);
        let (answer, output) = answer::channel(&bounds, &share);
        let (planner, counted_in) = (Arc::clone(&self.planner), Arc::clone(&share));
        let plan = plan.filter(|plan| planner.can_begin(plan));
        if let Some(plan) = &plan {
            share.account.take_over(plan.bytes());
        }
        let work = async move |output: &mut AnswerOutput| {
            let plan = match plan {
                Some(plan) => plan,
                None => planner.logical(&sql, &parameters, pid, &output.bounds).await?,
            };
            let RunnablePlan { schema, plan, context, to_keep } =
                planner.physical(plan, &output.bounds, &counted_in).await?;
            give_back_stack();
            // This fails where the caller has gone.
            if planned.send((Arc::clone(&schema), to_keep)).is_err() {
                return Ok(());
            }
            let stream = or_say(execute_stream(plan, context))?;
            output.send_all(output::plain_stream(stream, schema)).await
        };
        let mut answer = answer.answer_of(self.begin(&share, output.make(permit, work))?);
        let (schema, to_keep) = answer.first(async { schema.await.ok() }).await?;
        // Not within the query, because plans that are dropped for this one would count as memory that the query gave back.
        to_keep.into_iter().for_each(|plan| self.planner.cache.insert(plan));
        Ok(answer.stream(schema))
    }

    /// The plan of a query, without running it; it has the columns of the stream that [`QueryEngine::query`] gives for the same
    /// text.
    ///
    /// # Errors
    /// The errors of [`QueryEngine::query`].
    pub async fn plan(&self, sql: &str, asked: QuerySettings) -> Result<PlannedQuery> {
        let (sql, parameters) = (sql.to_owned(), asked.parameters.clone());
        let planning = move |planner: Arc<Planner>, pid, bounds: QueryBounds, memory| async move {
            let plan = planner.logical(&sql, &parameters, pid, &bounds).await?;
            Planner::check(&plan, &bounds, &memory)?;
            Ok(plan)
        };
        let (plan, share) = self.understand(asked, planning).await?;
        Ok(self.measured(plan, &share))
    }

    /// The columns of [`QueryEngine::plan`].
    ///
    /// # Errors
    /// The errors of [`QueryEngine::query`].
    pub async fn schema(&self, sql: &str, asked: QuerySettings) -> Result<SchemaRef> {
        Ok(Arc::clone(self.plan(sql, asked).await?.schema()))
    }

    /// The plan of a query, and its parameters: what they are called and, where it follows from the query, of which type they are
    /// (Null where it does not). No values are needed; [`QueryEngine::ask_by`] runs the plan where there are no parameters.
    ///
    /// # Errors
    /// The errors of [`QueryEngine::query`].
    pub async fn prepare(&self, sql: &str, asked: QuerySettings) -> Result<(PlannedQuery, Schema)> {
        let sql = sql.to_owned();
        let planning = move |planner: Arc<Planner>, pid, bounds: QueryBounds, _| async move {
            planner.prepared(&sql, pid, &bounds).await
        };
        let ((plan, parameters), share) = self.understand(asked, planning).await?;
        Ok((self.measured(plan, &share), parameters))
    }

    /// Runs `planning` on the engine's threads, within the bounds of `asked`, and returns its result with the memory that it was
    /// given.
    async fn understand<T, F>(
        &self,
        asked: QuerySettings,
        planning: impl FnOnce(Arc<Planner>, Option<i32>, QueryBounds, Arc<dyn MemoryPool>) -> F,
    ) -> Result<(T, Arc<QueryMemory>)>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (bounds, pid) = (QueryBounds::new(&self.limits, &asked), asked.pid);
        let permit = self.admission.enter(&bounds).await?;
        let share = self.memory.share(&bounds);
        let planning = planning(Arc::clone(&self.planner), pid, bounds.clone(), Arc::clone(&share) as _);
        let planning = async move {
            let _permit = permit;
            planning.await
        };
        let planning = self.begin(&share, planning)?;
        let _end = EndOnDrop::new(planning.abort_handle(), &bounds);
        let planned = bounds.until_ended(planning).await?;
        let planned = planned.map_err(|error| Error::failed("the query broke off").because(error))??;
        Ok((planned, share))
    }

    /// Spawns `work` for a query on the engine's threads, and counts it as running.
    fn begin<T: Send + 'static>(
        &self,
        share: &Arc<QueryMemory>,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let running = self.queries.begin();
        let work = query_task::run_to_end(share, work);
        let work = async move {
            let _running = running;
            work.await
        };
        self.threads.spawn(work)
    }

    /// `plan`, for which all the memory of `share` was allocated. The cache gets its copy.
    fn measured(&self, mut plan: PlannedQuery, share: &QueryMemory) -> PlannedQuery {
        plan.take_copy(share).into_iter().for_each(|plan| self.planner.cache.insert(plan));
        plan.bytes = share.account.bytes();
        plan.is_deep = share.deep.load(Ordering::Relaxed);
        plan
    }

    /// The tables of the engine's store.
    pub fn tables(&self) -> Vec<&'static Table> {
        self.planner.store.tables()
    }

    /// Number of queries that have been admitted and have not ended.
    pub fn running(&self) -> usize {
        self.queries.count()
    }

    /// Number of tasks of queries that have begun and have not ended.
    pub fn tasks(&self) -> usize {
        self.threads.tasks()
    }

    /// Number of scans that have been opened and have not ended.
    pub fn scans(&self) -> usize {
        self.planner.scans.running.count()
    }
}

impl fmt::Debug for QueryEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (store, system) = (&self.planner.store, &self.planner.system);
        f.debug_struct("Engine").field("store", store).field("system", system).finish_non_exhaustive()
    }
}
