//! SQL over the store: what a query can name (`catalog`), what it may do (`guard`), how it reads (`provider`,
//! `source`, `prune`), what its client gets (`output`) and what is said when it fails (`errors`).

mod catalog;
mod errors;
mod guard;
mod names;
mod output;
mod part;
mod provider;
mod prune;
mod queue;
mod running;
mod scan;
mod source;
mod system;

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::{CatalogProvider, CatalogProviderList};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{SessionConfig, SessionContext};

pub(crate) use self::catalog::{CATALOG, is_taken, schemas};
pub use self::errors::from_datafusion;
pub(crate) use self::output::plain_schema;
pub(crate) use self::system::system_segment;
pub use self::system::{SystemRows, SystemTable};

use self::catalog::{Catalog, Catalogs, NO_SCHEMA, Named};
use self::errors::{MEMORY, no_run, no_table, or_say};
use self::running::Running;
use crate::error::Result;
use crate::store::Store;

/// Answers SQL over a store and the collector's own tables. Read-only; the memory that all queries of one engine take
/// together is bounded. How long a query may run is its caller's business: dropping the stream ends it.
pub struct Engine {
    store: Arc<Store>,
    system: Vec<Arc<dyn SystemTable>>,
    /// Tables of other runs, by the names that queries have for them.
    others: Arc<[Named]>,
    /// What every query begins with; only the tables differ.
    state: SessionState,
    scans: Running,
}

impl Engine {
    /// One over these.
    ///
    /// # Errors
    /// DataFusion's, where its runtime can't be made.
    pub fn new(store: Arc<Store>, system: Vec<Arc<dyn SystemTable>>) -> Result<Self> {
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(GreedyMemoryPool::new(MEMORY)))
            // Queries write nothing, also not to temporary files: past the memory bound they end with an error.
            .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled));
        let config = SessionConfig::new()
            .with_default_catalog_and_schema(CATALOG, NO_SCHEMA)
            .with_create_default_catalog_and_schema(false)
            .with_information_schema(true);
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(Arc::new(or_say(runtime.build())?))
            .with_default_features()
            .build();
        Ok(Self { store, system, others: Arc::from([]), state, scans: Running::default() })
    }

    /// The same, whose queries can also name other runs' tables: `b.python.steps` is that of the catalog called b. One
    /// called [`CATALOG`] takes the place of its own tables.
    #[must_use]
    pub fn with_catalogs(self, others: Vec<(String, Arc<dyn CatalogProvider>)>) -> Self {
        Self { others: others.into(), ..self }
    }

    /// Its own tables as they are now, for the queries of another engine.
    pub fn catalog(&self, pid: Option<i32>) -> Arc<dyn CatalogProvider> {
        Arc::new(Catalog::new(&self.store, &self.system, pid, &self.scans))
    }

    /// Runs a query over the tables as they are now; rows come as they are found. With `pid`, tables have only that
    /// process's rows. An error of the stream becomes ours with [`from_datafusion`].
    ///
    /// # Errors
    /// What is no query, is not allowed, or names what is not there.
    pub async fn query(&self, sql: &str, pid: Option<i32>) -> Result<SendableRecordBatchStream> {
        let (session, plan) = self.plan(sql, pid).await?;
        let schema = output::plain_schema(plan.schema().as_arrow());
        let frame = or_say(session.execute_logical_plan(plan).await)?;
        let stream = or_say(frame.execute_stream().await)?;
        Ok(output::plain_stream(stream, schema))
    }

    /// The columns that a query answers with, without running it: the schema of the stream that
    /// [`Engine::query`] gives for the same text.
    ///
    /// # Errors
    /// As [`Engine::query`]'s.
    pub async fn schema(&self, sql: &str, pid: Option<i32>) -> Result<SchemaRef> {
        let (_, plan) = self.plan(sql, pid).await?;
        Ok(output::plain_schema(plan.schema().as_arrow()))
    }

    /// Scans that have been opened and have not ended.
    pub fn scans(&self) -> usize {
        self.scans.count()
    }

    async fn plan(&self, sql: &str, pid: Option<i32>) -> Result<(SessionContext, LogicalPlan)> {
        let statement = guard::parse(sql)?;
        let own = Catalog::new(&self.store, &self.system, pid, &self.scans);
        let catalogs: Arc<dyn CatalogProviderList> = Arc::new(Catalogs { own, others: Arc::clone(&self.others) });
        let mut state = self.state.clone();
        state.register_catalog_list(Arc::clone(&catalogs));
        for reference in or_say(state.resolve_table_references(&statement))? {
            let resolved = reference.clone().resolve(CATALOG, NO_SCHEMA);
            if catalogs.catalog(&resolved.catalog).is_none() {
                return Err(no_run(&resolved.catalog, &catalogs.catalog_names()));
            }
            let there = state.schema_for_ref(resolved.clone()).is_ok_and(|schema| schema.table_exist(&resolved.table));
            if !there && !state.table_functions().contains_key(reference.table()) {
                return Err(no_table(&reference));
            }
        }
        let plan = or_say(state.statement_to_plan(statement).await)?;
        guard::verify(&plan)?;
        // The session reads its clock when it starts: now() is when the query began.
        let session = SessionContext::new_with_state(state);
        Ok((session, plan))
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("store", &self.store).field("system", &self.system).finish_non_exhaustive()
    }
}
