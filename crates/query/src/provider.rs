//! A declared table as one query sees it: segments in memory, files of a run directory, the collector's own rows.

use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Expr, Operator, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExecBuilder;
use datafusion::physical_plan::union::UnionExec;
use probe_proto::table::{Table, TableSource};
use probe_store::{Segment, Store, arrow_schema};
use probe_store::{SystemTable, segments_beside, system_segment};

use super::scan_unit::{ScanUnit, statistics};
use super::snapshots::{QuerySnapshot, StoreSnapshot};
use super::source::{PartsSource, SharedByScans};

/// One table as it is when a scan of the query is planned.
#[derive(Debug)]
pub(super) struct RowsTable {
    table: &'static Table,
    schema: SchemaRef,
    snapshot: QuerySnapshot,
    /// The collector's table that fills this one or adds rows to it, where there is one.
    system: Option<Arc<dyn SystemTable>>,
    /// The rows of `system`, once a scan has needed them: a query that names a table twice must see the same rows.
    filled: OnceLock<Result<Vec<Arc<Segment>>, probe_common::error::Error>>,
    /// Only rows of this process.
    pid: Option<i32>,
    shared: SharedByScans,
}

impl RowsTable {
    pub(super) fn new(
        table: &'static Table,
        snapshot: QuerySnapshot,
        system: Option<Arc<dyn SystemTable>>,
        pid: Option<i32>,
        shared: SharedByScans,
    ) -> Self {
        Self { table, schema: arrow_schema(table), snapshot, system, filled: OnceLock::new(), pid, shared }
    }

    /// The same table, not scanned yet, as it will be at the instant of `snapshots`.
    pub(super) fn unscanned(&self, snapshots: &Arc<StoreSnapshot>) -> Self {
        Self {
            table: self.table,
            schema: Arc::clone(&self.schema),
            snapshot: QuerySnapshot { all: Arc::clone(snapshots), index: self.snapshot.index },
            system: self.system.clone(),
            filled: OnceLock::new(),
            pid: self.pid,
            shared: self.shared.clone(),
        }
    }

    /// Whether this is a table of `store`.
    pub(super) fn is_of(&self, store: &Arc<Store>) -> bool {
        self.snapshot.all.is_of(store)
    }

    /// The index of the table in the store.
    pub(super) fn index(&self) -> usize {
        self.snapshot.index
    }

    /// The parts of the table now: first those known to be within the scope, then those that may have rows of other processes.
    fn parts(&self) -> Result<(Vec<ScanUnit>, Vec<ScanUnit>)> {
        let snapshot = self.snapshot.taken()?;
        let mut parts: Vec<ScanUnit> = Vec::new();
        // Files of the collector's own tables hold rows of an earlier time.
        if self.system.is_none() || self.table.source == TableSource::Agent {
            parts.extend(snapshot.files.iter().flat_map(ScanUnit::of_file));
        }
        if let Some(system) = &self.system {
            parts.extend(self.filled(system.as_ref())?.into_iter().map(ScanUnit::Segment));
        }
        parts.extend(snapshot.all_sealed().cloned().map(ScanUnit::Sealed));
        parts.extend(snapshot.active.iter().cloned().map(ScanUnit::Segment));
        let Some(pid) = self.pid else { return Ok((parts, Vec::new())) };
        let (known, unknown): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.identity().is_some());
        let within = known.into_iter().filter(|part| part.identity().is_some_and(|identity| identity.pid == pid));
        Ok((within.collect(), unknown))
    }

    /// The bounds of a column over all rows that a scan gives, where they are known without reading them.
    pub(super) fn bounds(&self, column: &str) -> Result<Option<(ScalarValue, ScalarValue)>> {
        let Some((index, _)) = self.schema.column_with_name(column) else { return Ok(None) };
        let (parts, others) = self.parts()?;
        let column = statistics(&parts, self.table, &[index]).column_statistics.pop().filter(|_| others.is_empty());
        Ok(match column.map(|column| (column.min_value, column.max_value)) {
            Some((Precision::Exact(low), Precision::Exact(high))) => Some((low, high)),
            _ => None,
        })
    }

    /// The rows that the collector has now.
    fn filled(&self, system: &dyn SystemTable) -> Result<Vec<Arc<Segment>>> {
        let filled = self.filled.get_or_init(|| match self.table.source {
            TableSource::Agent => segments_beside(system),
            TableSource::Collector => Ok(system_segment(system)?.into_iter().collect()),
        });
        filled.clone().map_err(|error| DataFusionError::External(Box::new(error)))
    }

    /// The rows of `scan` that belong to the scope's process. A table without a `pid` column is given whole.
    fn scoped(
        &self,
        projection: Option<&[usize]>,
        scan: impl FnOnce(Option<&[usize]>) -> Result<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(pid), Some((index, _))) = (self.pid, self.schema.column_with_name("pid")) else {
            return scan(projection);
        };
        let wanted = projection.map_or_else(|| (0..self.schema.fields().len()).collect(), <[usize]>::to_vec);
        let mut read = wanted.clone();
        if !read.contains(&index) {
            read.push(index);
        }
        let column = read.iter().position(|read| *read == index).unwrap_or_default();
        let pid: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(ScalarValue::Int32(Some(pid))));
        let filter = BinaryExpr::new(Arc::new(Column::new("pid", column)), Operator::Eq, pid);
        let filtered = FilterExecBuilder::new(Arc::new(filter), scan(Some(&read))?);
        Ok(Arc::new(filtered.apply_projection(Some((0..wanted.len()).collect()))?.build()?))
    }
}

#[async_trait]
impl TableProvider for RowsTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        // DataFusion pushes these filters again later, as physical expressions with known values (data_source.rs).
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let partitions = session.config().target_partitions();
        let projection = projection.map(Vec::as_slice);
        let scan = |parts, projection: Option<&[usize]>| -> Result<Arc<dyn ExecutionPlan>> {
            let source = PartsSource::new(self.table, parts, projection, partitions, self.shared.clone())?;
            Ok(DataSourceExec::from_data_source(source))
        };
        let (within, unknown) = self.parts()?;
        if unknown.is_empty() {
            // Also where there are no parts at all: an empty table has its columns.
            return scan(within, projection);
        }
        let others = self.scoped(projection, |projection| scan(unknown, projection))?;
        if within.is_empty() { Ok(others) } else { UnionExec::try_new(vec![scan(within, projection)?, others]) }
    }
}
