//! Views: named queries over the declared tables. Each view is a file in `views/` with its purpose, example queries, and the
//! type, unit and meaning of every column:
//!
//! ```sql
//! -- python.name: One sentence.
//! -- example: SELECT …
//! SELECT
//!     SUM(duration) AS own, -- double, s: What the column is.
//! ```
//!
//! `probe tables`, docs/tables.md and the names that errors suggest come from these comments; a test compares them with the
//! schema of the query.

use std::sync::{Arc, LazyLock};

use datafusion::catalog::TableProvider;
use datafusion::catalog::view::ViewTable;
use datafusion::common::Result;
use datafusion::execution::SessionState;
use probe_proto::table::{Column, ColumnType, Table, TableSource};
use probe_proto::tables::TABLES;

/// A named query.
#[derive(Debug)]
pub(crate) struct View {
    /// The columns of the view, declared as those of a table.
    pub table: Table,
    /// The text of the query.
    sql: &'static str,
}

/// All views, in the order in which people are shown them.
pub(crate) static VIEWS: LazyLock<Vec<View>> = LazyLock::new(|| {
    let files = [
        include_str!("views/step_breakdown.sql"),
        include_str!("views/module_profile.sql"),
        include_str!("views/collective_profile.sql"),
        include_str!("views/rank_balance.sql"),
        include_str!("views/step_offsets.sql"),
        include_str!("views/shape_profile.sql"),
        include_str!("views/operator_profile.sql"),
        include_str!("views/module_operators.sql"),
        include_str!("views/step_categories.sql"),
        include_str!("views/kernel_profile.sql"),
        include_str!("views/timeline.sql"),
        include_str!("views/comm_overlap.sql"),
        include_str!("views/idle_causes.sql"),
        include_str!("views/queue_length.sql"),
        include_str!("views/launch_stats.sql"),
        include_str!("views/tensor_core_use.sql"),
        include_str!("views/memory_timeline.sql"),
        include_str!("views/memory_peak.sql"),
        include_str!("views/utilization.sql"),
        include_str!("views/device_peaks.sql"),
        include_str!("views/roofline.sql"),
        include_str!("views/critical_path.sql"),
    ];
    files.into_iter().filter_map(read).collect()
});

/// All tables and views: everything that can stand after FROM.
pub fn relations() -> impl Iterator<Item = &'static Table> {
    TABLES.iter().copied().chain(VIEWS.iter().map(|view| &view.table))
}

/// The declarations of all views.
pub fn views() -> Vec<&'static Table> {
    VIEWS.iter().map(|view| &view.table).collect()
}

/// The view called `schema.name`.
pub(super) fn find(schema: &str, name: &str) -> Option<&'static View> {
    VIEWS.iter().find(|view| view.table.schema == schema && view.table.name == name)
}

impl View {
    /// The text of the query.
    pub(super) fn sql(&self) -> &'static str {
        self.sql
    }

    /// The plan of the view over the tables that `state` knows.
    pub(super) async fn plan(&self, state: &SessionState) -> Result<Arc<dyn TableProvider>> {
        let plan = state.create_logical_plan(self.sql).await?;
        Ok(Arc::new(ViewTable::new(plan, Some(self.sql.to_owned()))))
    }
}

/// The view in the text of a file. None where the text is no view, which tests find, since the files are compiled in.
fn read(text: &'static str) -> Option<View> {
    let mut lines = text.lines();
    let (name, doc) = lines.next()?.strip_prefix("-- ")?.split_once(": ")?;
    let (schema, name) = name.split_once('.')?;
    let examples: Vec<&'static str> = text.lines().filter_map(|line| line.strip_prefix("-- example: ")).collect();
    let columns: Vec<Column> = lines.filter(|line| !line.starts_with("-- ")).filter_map(column).collect();
    let table = Table {
        schema,
        name,
        doc,
        source: TableSource::Collector,
        // Leaked once, so that the columns are static as those of declared tables.
        columns: columns.leak(),
        sort: &[],
        examples: examples.leak(),
    };
    Some(View { table, sql: text })
}

/// The column of a line `EXPRESSION AS name, -- type, unit: sentence`.
fn column(line: &'static str) -> Option<Column> {
    let (expression, comment) = line.split_once(" -- ")?;
    let (kind, doc) = comment.split_once(": ")?;
    let (kind, unit) = kind.split_once(", ").unwrap_or((kind, ""));
    let kind = match kind {
        "int" => ColumnType::Int32,
        "bigint" => ColumnType::Int64,
        "double" => ColumnType::Float64,
        "boolean" => ColumnType::Bool,
        "text" => ColumnType::Text,
        "timestamp" => ColumnType::Timestamp,
        _ => return None,
    };
    let name = expression.trim_end().trim_end_matches(',').rsplit(' ').next()?;
    Some(Column { name, kind, nullable: true, unit, doc })
}
