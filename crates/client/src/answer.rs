//! What comes back for a query, and what it may take.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::{Stream, StreamExt};
use probe_common::error::Result;

/// Rows on their way.
pub type Batches = Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>;

/// An answer: its columns, known before the first row, and its rows.
pub struct Answer {
    /// The columns.
    pub schema: SchemaRef,
    /// The rows, as they come.
    pub batches: Batches,
}

/// What an answer may take from now on; where nothing is said, what whoever answers allows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// Rows that it may have.
    pub rows: Option<u64>,
    /// Bytes that it may have.
    pub bytes: Option<u64>,
}

/// A whole answer in memory, for answers that are known to be small.
pub async fn collect(mut answer: Answer) -> Result<(SchemaRef, Vec<Arc<RecordBatch>>)> {
    let mut batches = Vec::new();
    while let Some(batch) = answer.batches.next().await {
        batches.push(Arc::new(batch?));
    }
    Ok((answer.schema, batches))
}
