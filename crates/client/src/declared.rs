//! The tables that a live run's program declared, as its collector lists them: they are declared at run time, and this crate
//! knows none of them.

use arrow::array::AsArray;
use futures::TryStreamExt;
use probe_common::error::{Error, Result};
use probe_proto::table::Table;
use probe_proto::tables::custom;
use probe_store::table_of;

use probe_query::Parameters;

use crate::answer::{AnswerBounds, collect};
use crate::live::LiveCollector;

/// Reads the schemas of all tables that the program has declared so far.
///
/// # Errors
/// The collector's, and one for a table that this version can't represent.
pub(super) async fn tables(live: &mut LiveCollector) -> Result<Vec<&'static Table>> {
    let listed = "SELECT CAST(table_schema AS VARCHAR), CAST(table_name AS VARCHAR) FROM information_schema.tables \
                  ORDER BY 1, 2";
    let (_, batches) = collect(live.query(listed, AnswerBounds::default(), &Parameters::default()).await?).await?;
    let mut names = Vec::new();
    for batch in &batches {
        let (schemas, tables) = (batch.column(0).as_string::<i32>(), batch.column(1).as_string::<i32>());
        let full = schemas.iter().zip(tables).filter_map(|(schema, table)| Some(format!("{}.{}", schema?, table?)));
        names.extend(full.filter(|name| !custom::is_reserved(name)));
    }
    let mut found = Vec::with_capacity(names.len());
    for name in names.into_iter().take(custom::MAX_TABLES) {
        let answer = live
            .query(&format!("SELECT * FROM {name} LIMIT 0"), AnswerBounds::default(), &Parameters::default())
            .await?;
        let schema = answer.schema;
        // The answer is read to its end, so that the collector finishes the query.
        let _: Vec<_> = answer.batches.try_collect().await?;
        found.push(table_of(&name, &schema).map_err(|why| Error::failed(format!("table {name}: {why}")))?);
    }
    Ok(found)
}
