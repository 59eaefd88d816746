//! What one query can name: the declared tables at one instant, and nothing else.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::common::Result;
use datafusion::execution::SessionState;
use probe_proto::table::Table;
use probe_proto::tables::TABLES;
use probe_store::Store;
use probe_store::SystemTable;

use super::provider::RowsTable;
use super::snapshots::{QuerySnapshot, StoreSnapshot};
use super::source::SharedByScans;
use super::views;

/// The name of the only catalog.
pub const CATALOG: &str = "probe";

/// The schema that an unqualified name is looked up in: there is none of this name, so that `steps` is an error that
/// says `python.steps`, and not a table that another one of the same name could hide one day.
pub(super) const NO_SCHEMA: &str = "unqualified";

/// The schemas, in the order in which people are shown them.
pub(crate) fn schemas() -> Vec<&'static str> {
    schemas_of(TABLES.iter().copied())
}

/// The schemas of `tables`, in their order.
pub fn schemas_of(tables: impl Iterator<Item = &'static Table>) -> Vec<&'static str> {
    let mut schemas: Vec<&'static str> = Vec::new();
    for table in tables {
        if !schemas.contains(&table.schema) {
            schemas.push(table.schema);
        }
    }
    schemas
}

/// Whether queries cannot use `name` for a run, because it already names a schema or the catalog.
pub fn is_taken(name: &str) -> bool {
    name == CATALOG || name == NO_SCHEMA || name == "information_schema" || schemas().contains(&name)
}

/// All tables as one query sees them, and the views over them.
#[derive(Debug, Clone)]
pub(super) struct QueryCatalog {
    tables: Arc<Vec<(&'static Table, Arc<RowsTable>)>>,
    /// The session state that a view is planned with.
    state: Arc<SessionState>,
}

impl QueryCatalog {
    /// The tables now, with the rows that they have when the first of them is scanned; with `pid`, only those of that process.
    /// `scans` is what the scans share, `state` is what the query is planned with.
    pub(super) fn new(
        store: &Arc<Store>,
        system: &[Arc<dyn SystemTable>],
        pid: Option<i32>,
        scans: &SharedByScans,
        state: &Arc<SessionState>,
    ) -> Self {
        let snapshots = Arc::new(StoreSnapshot::new(store));
        let table = |(index, table): (usize, &&'static Table)| {
            let filled = system.iter().find(|filled| std::ptr::eq(filled.table(), *table)).cloned();
            let snapshot = QuerySnapshot { all: Arc::clone(&snapshots), index };
            (*table, Arc::new(RowsTable::new(table, snapshot, filled, pid, scans.clone())))
        };
        let tables = store.tables().iter().enumerate().map(table).collect();
        Self { tables: Arc::new(tables), state: Arc::clone(state) }
    }

    /// The session state in which a view is planned over these tables, and no others.
    fn planner(&self) -> SessionState {
        let mut state = self.state.as_ref().clone();
        state.register_catalog_list(Arc::new(Catalogs { own: self.clone(), others: Arc::from([]) }));
        state
    }
}

/// A run's tables under a name of their own.
pub(super) type NamedCatalog = (String, Arc<dyn CatalogProvider>);

/// Everything that one query can name: the run's own tables, and those of other runs where the query has any.
#[derive(Debug)]
pub(super) struct Catalogs {
    pub(super) own: QueryCatalog,
    /// Tables of other runs. A catalog that is called [`CATALOG`] hides `own`.
    pub(super) others: Arc<[NamedCatalog]>,
}

impl CatalogProviderList for Catalogs {
    fn register_catalog(&self, _: String, _: Arc<dyn CatalogProvider>) -> Option<Arc<dyn CatalogProvider>> {
        None
    }
    fn catalog_names(&self) -> Vec<String> {
        let others = self.others.iter().map(|(name, _)| name.clone()).filter(|name| name != CATALOG);
        std::iter::once(CATALOG.to_owned()).chain(others).collect()
    }
    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        match self.others.iter().find(|(other, _)| other == name) {
            Some((_, catalog)) => Some(Arc::clone(catalog)),
            None => (name == CATALOG).then(|| Arc::new(self.own.clone()) as Arc<dyn CatalogProvider>),
        }
    }
}

impl CatalogProvider for QueryCatalog {
    fn schema_names(&self) -> Vec<String> {
        schemas_of(self.tables.iter().map(|(table, _)| *table)).into_iter().map(str::to_owned).collect()
    }
    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        let name = self.tables.iter().map(|(table, _)| table.schema).find(|schema| *schema == name)?;
        Some(Arc::new(QuerySchema { catalog: self.clone(), name }))
    }
}

#[derive(Debug)]
struct QuerySchema {
    catalog: QueryCatalog,
    name: &'static str,
}

impl QuerySchema {
    fn find(&self, name: &str) -> Option<Arc<RowsTable>> {
        let mut tables = self.catalog.tables.iter();
        let found = tables.find(|(table, _)| table.schema == self.name && table.name == name);
        found.map(|(_, rows)| Arc::clone(rows))
    }
}

#[async_trait]
impl SchemaProvider for QuerySchema {
    fn table_names(&self) -> Vec<String> {
        let tables = self.catalog.tables.iter().filter(|(table, _)| table.schema == self.name);
        let views = views::VIEWS.iter().map(|view| &view.table).filter(|view| view.schema == self.name);
        tables.map(|(table, _)| table.name).chain(views.map(|view| view.name)).map(str::to_owned).collect()
    }
    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        match views::find(self.name, name) {
            Some(view) => view.plan(&self.catalog.planner()).await.map(Some),
            None => Ok(self.find(name).map(|rows| rows as Arc<dyn TableProvider>)),
        }
    }
    fn table_exist(&self, name: &str) -> bool {
        self.find(name).is_some() || views::find(self.name, name).is_some()
    }
}
