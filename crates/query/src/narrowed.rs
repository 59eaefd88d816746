//! Expressions over a few of many columns, so that the other columns are not decoded.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use probe_store::PackedRows;

/// The subset of columns that some expressions read.
#[derive(Debug, Clone)]
pub(super) struct NarrowedColumns {
    /// Indices of those columns.
    pub(super) columns: Vec<usize>,
    pub(super) schema: SchemaRef,
}

impl NarrowedColumns {
    /// The columns that `expressions` need, which are over `schema`.
    pub(super) fn of<'a>(
        expressions: impl Iterator<Item = &'a Arc<dyn PhysicalExpr>>,
        schema: &Schema,
    ) -> Result<Self> {
        let mut columns: Vec<usize> = expressions.flat_map(collect_columns).map(|column| column.index()).collect();
        columns.sort_unstable();
        columns.dedup();
        Ok(Self { schema: Arc::new(schema.project(&columns)?), columns })
    }

    /// One of the expressions, rewritten over these columns alone.
    pub(super) fn expression(&self, expression: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let narrowed = Arc::clone(expression).transform_up(|expression| {
            let Some(column) = expression.downcast_ref::<Column>() else { return Ok(Transformed::no(expression)) };
            let index = self.columns.binary_search(&column.index()).unwrap_or_default();
            Ok(Transformed::yes(Arc::new(Column::new(column.name(), index)) as Arc<dyn PhysicalExpr>))
        });
        Ok(narrowed?.data)
    }

    /// These columns, each of which may be NULL.
    pub(super) fn nullable(&self) -> Self {
        let fields = self.schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        Self { columns: self.columns.clone(), schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())) }
    }

    /// These columns of `rows`, as SQL sees them.
    pub(super) fn record_batch(&self, rows: &PackedRows) -> Result<RecordBatch> {
        Ok(rows.project(&self.columns).record_batch(&self.schema)?)
    }
}
