//! A live run's tables in a query that this process runs over several runs. A table is streamed from its collector,
//! with only the columns that are needed and the simple conditions that hold for them; rows are filtered here again.

use std::fmt;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Int64Type, Schema as ArrowSchema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, SchemaProvider, Session, TableProvider};
use datafusion::common::{Result, ScalarValue};
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, Operator, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use futures::{StreamExt, TryStreamExt};
use probe_common::error::Error;
use probe_proto::table::Table;
use probe_query::{plain_schema, relations, schemas_of};
use probe_store::arrow_schema;

use probe_query::Parameters;

use crate::answer::AnswerBounds;
use crate::declared;
use crate::live::LiveCollector;

/// All tables of a live run.
#[derive(Clone)]
pub(super) struct RemoteCatalog {
    live: LiveCollector,
    /// All tables and views, and the tables that the run's program had declared when the catalog was made.
    tables: Arc<[&'static Table]>,
}

impl RemoteCatalog {
    /// # Errors
    /// The collector's, when it is asked for its program's tables.
    pub(super) async fn new(mut live: LiveCollector) -> probe_common::error::Result<Self> {
        let own = declared::tables(&mut live).await?;
        Ok(Self { live, tables: relations().chain(own).collect() })
    }
}

impl fmt::Debug for RemoteCatalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteCatalog")
    }
}

impl CatalogProvider for RemoteCatalog {
    fn schema_names(&self) -> Vec<String> {
        schemas_of(self.tables.iter().copied()).into_iter().map(str::to_owned).collect()
    }
    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        let name = self.tables.iter().map(|table| table.schema).find(|schema| *schema == name)?;
        Some(Arc::new(RemoteSchema { catalog: self.clone(), name }))
    }
}

#[derive(Debug)]
struct RemoteSchema {
    catalog: RemoteCatalog,
    name: &'static str,
}

impl RemoteSchema {
    fn find(&self, name: &str) -> Option<&'static Table> {
        self.catalog.tables.iter().copied().find(|table| table.schema == self.name && table.name == name)
    }
}

#[async_trait]
impl SchemaProvider for RemoteSchema {
    fn table_names(&self) -> Vec<String> {
        let tables = self.catalog.tables.iter().filter(|table| table.schema == self.name);
        tables.map(|table| table.name.to_owned()).collect()
    }
    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let table = self.find(name).map(|table| {
            let schema = plain_schema(&arrow_schema(table));
            Arc::new(RemoteTable { catalog: self.catalog.clone(), table, schema }) as Arc<dyn TableProvider>
        });
        Ok(table)
    }
    fn table_exist(&self, name: &str) -> bool {
        self.find(name).is_some()
    }
}

#[derive(Debug)]
struct RemoteTable {
    catalog: RemoteCatalog,
    table: &'static Table,
    schema: SchemaRef,
}

#[async_trait]
impl TableProvider for RemoteTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let each = |filter: &&Expr| match condition(filter) {
            Some(_) => TableProviderFilterPushDown::Inexact,
            None => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(each).collect())
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(columns) => Arc::new(self.schema.project(columns)?),
            None => Arc::clone(&self.schema),
        };
        let sql = select(self.table, &schema, filters, limit);
        let scan = RemoteScan { catalog: self.catalog.clone(), schema: Arc::clone(&schema), sql };
        Ok(Arc::new(StreamingTableExec::try_new(schema, vec![Arc::new(scan)], None, [], false, None)?))
    }
}

/// The query for the collector. A scan without columns asks for the number of rows.
fn select(table: &Table, schema: &ArrowSchema, filters: &[Expr], limit: Option<usize>) -> String {
    let columns: Vec<String> = schema.fields().iter().map(|field| quoted(field.name())).collect();
    let columns = if columns.is_empty() { "COUNT(*) AS rows".to_owned() } else { columns.join(", ") };
    let mut sql = format!("SELECT {columns} FROM {}", table.full_name());
    let conditions: Vec<String> = filters.iter().filter_map(condition).collect();
    if !conditions.is_empty() {
        sql.push_str(&format!(" WHERE {}", conditions.join(" AND ")));
    }
    if let Some(limit) = limit.filter(|_| !schema.fields().is_empty()) {
        sql.push_str(&format!(" LIMIT {limit}"));
    }
    sql
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A condition as SQL; None for one that other versions of the collector might read differently.
fn condition(filter: &Expr) -> Option<String> {
    match filter {
        Expr::BinaryExpr(binary) => {
            let operator = match binary.op {
                Operator::Eq => "=",
                Operator::NotEq => "<>",
                Operator::Lt => "<",
                Operator::LtEq => "<=",
                Operator::Gt => ">",
                Operator::GtEq => ">=",
                Operator::And | Operator::Or => {
                    let (left, right) = (condition(&binary.left)?, condition(&binary.right)?);
                    return Some(format!("({left} {} {right})", binary.op));
                }
                _ => return None,
            };
            Some(format!("({} {operator} {})", value(&binary.left)?, value(&binary.right)?))
        }
        Expr::IsNull(inner) => Some(format!("({} IS NULL)", value(inner)?)),
        Expr::IsNotNull(inner) => Some(format!("({} IS NOT NULL)", value(inner)?)),
        Expr::Between(between) if !between.negated => {
            let (operand, low, high) = (value(&between.expr)?, value(&between.low)?, value(&between.high)?);
            Some(format!("({operand} BETWEEN {low} AND {high})"))
        }
        Expr::InList(list) if !list.negated => {
            let items = list.list.iter().map(value).collect::<Option<Vec<_>>>()?;
            Some(format!("({} IN ({}))", value(&list.expr)?, items.join(", ")))
        }
        _ => None,
    }
}

/// A column or a literal as SQL; None for one that other versions of the collector might read differently.
fn value(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Column(column) => Some(quoted(&column.name)),
        Expr::Literal(literal, _) => match literal {
            ScalarValue::Int32(Some(number)) => Some(number.to_string()),
            ScalarValue::Int64(Some(number)) => Some(number.to_string()),
            ScalarValue::Float64(Some(number)) if number.is_finite() => Some(format!("{number:?}")),
            ScalarValue::Boolean(Some(truth)) => Some(truth.to_string()),
            ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)) | ScalarValue::LargeUtf8(Some(text)) => {
                Some(format!("'{}'", text.replace('\'', "''")))
            }
            _ => None,
        },
        _ => None,
    }
}

#[derive(Debug)]
struct RemoteScan {
    catalog: RemoteCatalog,
    schema: SchemaRef,
    sql: String,
}

impl PartitionStream for RemoteScan {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (mut live, sql, schema) = (self.catalog.live.clone(), self.sql.clone(), Arc::clone(&self.schema));
        let batches = async move {
            let answer = live.query(&sql, AnswerBounds::default(), &Parameters::default()).await.map_err(external)?;
            Ok::<_, DataFusionError>(answer.batches.map(move |batch| given(&batch.map_err(external)?, &schema)))
        };
        let batches = futures::stream::once(batches).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches))
    }
}

/// Converts a batch to the plan's schema: with its columns, or with the number of rows alone.
fn given(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    if !schema.fields().is_empty() {
        return Ok(RecordBatch::try_new(Arc::clone(schema), batch.columns().to_vec())?);
    }
    let rows = batch.column(0).as_primitive::<Int64Type>().iter().flatten().sum::<i64>();
    let options = RecordBatchOptions::new().with_row_count(usize::try_from(rows).ok());
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), Vec::new(), &options)?)
}

fn external(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{col, lit};

    use super::*;

    #[test]
    fn simple_conditions_are_sent_and_others_are_not() {
        let cases = [
            (col("step").gt(lit(5_i64)), Some("(\"step\" > 5)")),
            (col("module").eq(lit("it's")), Some("(\"module\" = 'it''s')")),
            (col("rank").eq(lit(0)).or(col("rank").is_null()), Some("((\"rank\" = 0) OR (\"rank\" IS NULL))")),
            (col("step").between(lit(1_i64), lit(2_i64)), Some("(\"step\" BETWEEN 1 AND 2)")),
            (col("stage").in_list(vec![lit("step")], false), Some("(\"stage\" IN ('step'))")),
            (col("duration").lt(lit(1e-9)), Some("(\"duration\" < 1e-9)")),
            (col("module").like(lit("%attn%")), None),
            (col("duration").lt(lit(f64::NAN)), None),
            ((col("step") % lit(2_i64)).eq(lit(0_i64)), None),
        ];
        for (filter, expected) in cases {
            assert_eq!(condition(&filter).as_deref(), expected, "{filter}");
        }
    }

    #[test]
    fn only_what_is_needed_is_asked() {
        let steps = relations().find(|table| table.full_name() == "python.steps").unwrap();
        let schema = plain_schema(&arrow_schema(steps));
        let step = schema.index_of("step").unwrap();
        let sql = select(steps, &schema.project(&[step]).unwrap(), &[col("step").gt(lit(5_i64))], Some(3));
        assert_eq!(sql, "SELECT \"step\" FROM python.steps WHERE (\"step\" > 5) LIMIT 3");
        assert_eq!(select(steps, &ArrowSchema::empty(), &[], Some(3)), "SELECT COUNT(*) AS rows FROM python.steps");
    }
}
