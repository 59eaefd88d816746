//! The types of columns as DESCRIBE and SHOW COLUMNS name them: as docs/tables.md does, and not by Arrow's names.

use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, case, lit};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;

/// The result's column of types.
const TYPES: &str = "data_type";

/// Arrow's names, and those of SQL.
const NAMES: [(&str, &str); 8] = [
    ("Utf8View", "text"),
    ("Utf8", "text"),
    ("Int32", "int"),
    ("Int64", "bigint"),
    ("Float64", "double"),
    ("Boolean", "boolean"),
    ("Timestamp(ns)", "timestamp"),
    ("Timestamp(ns, \"UTC\")", "timestamp"),
];

/// Whether a statement asks for a table's columns.
pub(super) fn describes(statement: &Statement) -> bool {
    let Statement::Statement(statement) = statement else { return false };
    matches!(**statement, ast::Statement::ExplainTable { .. } | ast::Statement::ShowColumns { .. })
}

/// The plan of such a statement, with SQL's names of types.
pub(super) fn in_sql(plan: LogicalPlan) -> Result<LogicalPlan> {
    let columns: Vec<Expr> = plan
        .schema()
        .iter()
        .map(|(table, field)| {
            let column = Expr::Column(Column::from((table, field)));
            if field.name() != TYPES {
                return Ok(column);
            }
            let mut named = case(column.clone());
            for (arrow, sql) in NAMES {
                named = named.when(lit(arrow), lit(sql));
            }
            Ok(named.otherwise(column)?.alias(TYPES))
        })
        .collect::<Result<_>>()?;
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}
