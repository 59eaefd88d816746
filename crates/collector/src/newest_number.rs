//! Numbers that continue those in the tables of a run.

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use futures::StreamExt;
use probe_common::error::Result;
use probe_query::{QueryEngine, QuerySettings};

/// The number that `sql` selects, one row of one integer; 0 where it is NULL.
pub(crate) async fn newest_number(engine: &QueryEngine, sql: &str) -> Result<i64> {
    let mut rows = engine.ask(sql, QuerySettings::default()).await?;
    while let Some(batch) = rows.next().await {
        let batch = batch.map_err(|error| probe_query::from_datafusion(&error))?;
        if let Some(newest) = batch.column(0).as_primitive_opt::<Int64Type>()
            && !newest.is_empty()
            && newest.is_valid(0)
        {
            return Ok(newest.value(0));
        }
    }
    Ok(0)
}
