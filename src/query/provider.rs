//! A declared table as one query sees it: segments in memory, files of a run directory, the collector's own rows.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, ScalarValue, Statistics};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::object_store::ObjectStoreUrl;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Expr, Operator, TableProviderFilterPushDown, TableType};
use datafusion::object_store::path::Path;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExecBuilder;
use datafusion::physical_plan::union::UnionExec;
use probe_proto::table::Table;

use super::source::SegmentSource;
use super::system::{SystemTable, system_segment};
use crate::store::{ParquetFile, Segment, TableSnapshot, arrow_schema};

/// One table at the instant at which the query began.
#[derive(Debug)]
pub(super) struct RowsTable {
    schema: SchemaRef,
    snapshot: Arc<TableSnapshot>,
    /// Who fills the table, if the collector does.
    system: Option<Arc<dyn SystemTable>>,
    /// Its rows, once they have been asked for: a query that names a table twice must see the same ones.
    filled: OnceLock<Result<Option<Arc<Segment>>, crate::error::Error>>,
    /// Only this process's rows.
    pid: Option<i32>,
}

impl RowsTable {
    pub(super) fn new(
        table: &'static Table,
        snapshot: Arc<TableSnapshot>,
        system: Option<Arc<dyn SystemTable>>,
        pid: Option<i32>,
    ) -> Self {
        Self { schema: arrow_schema(table), snapshot, system, filled: OnceLock::new(), pid }
    }

    /// Segments whose rows are all within the scope.
    fn segments(&self) -> Vec<Arc<Segment>> {
        let within = |segment: &&Arc<Segment>| match (&segment.identity, self.pid) {
            (Some(identity), Some(pid)) => identity.pid == pid,
            _ => true,
        };
        self.snapshot.segments().filter(within).cloned().collect()
    }

    /// What the collector has now.
    fn filled(&self) -> Result<Option<Arc<Segment>>> {
        let Some(system) = &self.system else { return Ok(None) };
        let filled = self.filled.get_or_init(|| system_segment(system.as_ref()));
        filled.clone().map_err(|error| DataFusionError::External(Box::new(error)))
    }

    fn scan_segments(
        &self,
        segments: &[Arc<Segment>],
        projection: Option<&[usize]>,
        partitions: usize,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let source = SegmentSource::new(Arc::clone(&self.schema), segments, projection, partitions)?;
        Ok(DataSourceExec::from_data_source(source))
    }

    fn scan_files(&self, projection: Option<&[usize]>, partitions: usize) -> Result<Arc<dyn ExecutionPlan>> {
        let files = self.snapshot.files.iter();
        let statistics = Statistics::new_unknown(&self.schema);
        let mut groups: BTreeMap<usize, Vec<PartitionedFile>> = BTreeMap::new();
        for (number, file) in files.enumerate() {
            groups.entry(number % partitions.max(1)).or_default().push(partitioned(file)?);
        }
        let source = ParquetSource::new(Arc::clone(&self.schema));
        let scan = FileScanConfigBuilder::new(ObjectStoreUrl::local_filesystem(), Arc::new(source))
            .with_file_groups(groups.into_values().map(FileGroup::new).collect())
            .with_statistics(statistics)
            .with_projection_indices(projection.map(<[usize]>::to_vec))?
            .build();
        Ok(DataSourceExec::from_data_source(scan))
    }

    /// Rows of the scope only, of a scan whose rows may be anyone's; a table that doesn't say whose its rows are is
    /// given as it is.
    fn scoped(
        &self,
        projection: Option<&[usize]>,
        scan: impl FnOnce(Option<&[usize]>) -> Result<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (Some(pid), Some((place, _))) = (self.pid, self.schema.column_with_name("pid")) else {
            return scan(projection);
        };
        let wanted = projection.map_or_else(|| (0..self.schema.fields().len()).collect(), <[usize]>::to_vec);
        let mut read = wanted.clone();
        if !read.contains(&place) {
            read.push(place);
        }
        let column = read.iter().position(|read| *read == place).unwrap_or_default();
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
        // Filters come to the scan once more, as physical ones with everything known that can be (source.rs).
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
        let mut scans = Vec::new();
        let segments = self.segments();
        let filled = self.filled()?;
        if !self.snapshot.files.is_empty() && self.system.is_none() {
            scans.push(self.scoped(projection, |projection| self.scan_files(projection, partitions))?);
        }
        if let Some(filled) = filled {
            scans.push(self.scoped(projection, |projection| self.scan_segments(&[filled], projection, 1))?);
        }
        // Also where there is nothing at all: an empty table has its columns.
        if !segments.is_empty() || scans.is_empty() {
            scans.push(self.scan_segments(&segments, projection, partitions)?);
        }
        match scans.len() {
            1 => Ok(scans.remove(0)),
            _ => UnionExec::try_new(scans),
        }
    }
}

fn partitioned(file: &ParquetFile) -> Result<PartitionedFile> {
    let location = Path::from_absolute_path(&file.path).map_err(|error| DataFusionError::External(Box::new(error)))?;
    let mut partitioned = PartitionedFile::new("", file.bytes);
    partitioned.object_meta.location = location;
    Ok(partitioned)
}
