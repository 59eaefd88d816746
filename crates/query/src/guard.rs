//! Checks that a query is one statement that only reads ([`read_only`]) and that does not cost too much to plan.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement;
use probe_common::error::{Error, Result};

use super::errors::from_datafusion;
use super::read_only::{self, refused};
use super::{statement_complexity, threads};

/// The text of a query as it was parsed, written again.
///
/// # Errors
/// The text is no SQL, is more than one statement, or would not only read.
pub fn understand(sql: &str) -> Result<String> {
    threads::with_stack(|| parse(sql).map(|statement| statement.to_string()))?
}

/// Parses the text of one query, and refuses a text that is no query or costs too much to plan.
pub(super) fn parse(sql: &str) -> Result<Statement> {
    let statement = read_only::parse(sql)?;
    statement_complexity::check(&statement)?;
    Ok(statement)
}

/// Checks that a plan only reads, by DataFusion's check and by our own: writes that the text did not show are refused here.
pub(super) fn verify(plan: &LogicalPlan) -> Result<()> {
    let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    options.verify_plan(plan).map_err(|error| Error::denied(format!("not allowed: {}", error.strip_backtrace())))?;
    let (mut found, mut unnests) = (None, false);
    let walk = plan.apply_with_subqueries(|node| {
        let writes = matches!(
            node,
            LogicalPlan::Ddl(_) | LogicalPlan::Dml(_) | LogicalPlan::Copy(_) | LogicalPlan::Statement(_)
        );
        unnests |= matches!(node, LogicalPlan::Unnest(_));
        if writes {
            found = Some(node.display().to_string());
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    walk.map_err(|error| from_datafusion(&error))?;
    if unnests {
        // UNNEST repeats all columns of a row for each item of its list.
        return Err(Error::failed("UNNEST is not available in queries")
            .hint("rows that count come from generate_series: SELECT value FROM generate_series(1, 10)"));
    }
    found.map_or(Ok(()), |what| Err(refused(&what)))
}
