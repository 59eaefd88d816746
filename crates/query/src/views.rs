//! Views: queries over the declared tables that have a name. Each is a file of `views/`, which says what it is for, what
//! to ask of it, and of every column its type, unit and what it means:
//!
//! ```sql
//! -- python.name: One sentence.
//! -- example: SELECT …
//! SELECT
//!     SUM(duration) AS own, -- double, s: What the column is.
//! ```
//!
//! From these comments come `probe tables`, docs/tables.md and the names that errors suggest; a test holds them against
//! what the query really answers.

use std::sync::{Arc, LazyLock};

use datafusion::catalog::TableProvider;
use datafusion::catalog::view::ViewTable;
use datafusion::common::Result;
use datafusion::execution::SessionState;
use probe_proto::table::{Column, ColumnType, Source, Table};
use probe_proto::tables::TABLES;

/// A named query.
#[derive(Debug)]
pub(crate) struct View {
    /// What it answers with, said as a table's declaration says it.
    pub table: Table,
    /// Its text.
    sql: &'static str,
}

/// All of them, in the order in which people are shown them.
pub(crate) static VIEWS: LazyLock<Vec<View>> = LazyLock::new(|| {
    let files = [
        include_str!("views/step_breakdown.sql"),
        include_str!("views/module_profile.sql"),
        include_str!("views/collective_profile.sql"),
        include_str!("views/rank_balance.sql"),
        include_str!("views/step_offsets.sql"),
        include_str!("views/shape_profile.sql"),
        include_str!("views/operator_profile.sql"),
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

/// Tables and views alike: all that can stand after FROM.
pub fn relations() -> impl Iterator<Item = &'static Table> {
    TABLES.iter().copied().chain(VIEWS.iter().map(|view| &view.table))
}

/// What every view answers with.
pub fn views() -> Vec<&'static Table> {
    VIEWS.iter().map(|view| &view.table).collect()
}

/// The view called `schema.name`.
pub(super) fn find(schema: &str, name: &str) -> Option<&'static View> {
    VIEWS.iter().find(|view| view.table.schema == schema && view.table.name == name)
}

impl View {
    /// Its text.
    pub(super) fn sql(&self) -> &'static str {
        self.sql
    }

    /// Its plan over the tables that `state` knows.
    pub(super) async fn plan(&self, state: &SessionState) -> Result<Arc<dyn TableProvider>> {
        let plan = state.create_logical_plan(self.sql).await?;
        Ok(Arc::new(ViewTable::new(plan, Some(self.sql.to_owned()))))
    }
}

/// A view of its file. None where the file is not one, which the tests see: it is compiled in.
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
        source: Source::Collector,
        // Made once and kept to the end, as the declared tables' are.
        columns: columns.leak(),
        sort: &[],
        examples: examples.leak(),
    };
    Some(View { table, sql: text })
}

/// The column of a line `EXPRESSION AS name, -- type, unit: sentence`.
fn column(line: &'static str) -> Option<Column> {
    let (expression, said) = line.split_once(" -- ")?;
    let (kind, doc) = said.split_once(": ")?;
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
