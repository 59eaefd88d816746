//! Answers of queries, and bounds on them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use futures::{Stream, StreamExt};
use probe_common::error::Result;

/// A stream of batches of rows.
pub type BatchStream = Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>;

/// An answer: its columns, known before the first row, and its rows.
pub struct QueryAnswer {
    /// The columns.
    pub schema: SchemaRef,
    /// The rows, as they come.
    pub batches: BatchStream,
}

/// Bounds on an answer; where one is None, the collector's or engine's own applies.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnswerBounds {
    /// How long the answer may take.
    pub timeout: Option<Duration>,
    /// Most rows of the answer.
    pub rows: Option<u64>,
    /// Most bytes of the answer.
    pub bytes: Option<u64>,
}

/// Reads a whole answer into memory, for answers that are known to be small.
pub async fn collect(mut answer: QueryAnswer) -> Result<(SchemaRef, Vec<Arc<RecordBatch>>)> {
    let mut batches = Vec::new();
    while let Some(batch) = answer.batches.next().await {
        batches.push(Arc::new(batch?));
    }
    Ok((answer.schema, batches))
}
