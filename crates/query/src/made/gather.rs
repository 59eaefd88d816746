//! Gathers small batches before a sort of all rows. The sort starts one task per batch. Each takes a few KiB that are not counted,
//! and where rows are long (`width`), there are thousands of small batches.

use std::sync::Arc;

use arrow::compute::concat_batches;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort::SortExec;
use futures::{StreamExt, stream};

use super::growth::array_bytes;
use super::width::MAX_BATCH_ROWS;
use crate::adapted_input::BatchStream;

/// Bytes at which gathered batches are large enough, where they have fewer than [`MAX_BATCH_ROWS`] rows.
const MIN_BATCH_BYTES: usize = 1 << 20;

/// Whether this sorts all of its rows, and does not only look for the first ones.
pub(super) fn sorts_all(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.downcast_ref::<SortExec>().is_some_and(|sort| sort.fetch().is_none())
}

/// The rows of `batches` in larger batches: small ones are joined until they have [`MAX_BATCH_ROWS`] rows or [`MIN_BATCH_BYTES`].
pub(super) fn gather(batches: SendableRecordBatchStream, _: &TaskContext) -> BatchStream {
    let schema = batches.schema();
    let gathered = stream::unfold(Some(batches), move |mut batches| {
        let schema = Arc::clone(&schema);
        async move {
            let (mut parts, mut rows, mut bytes) = (Vec::new(), 0, 0);
            while rows < MAX_BATCH_ROWS
                && bytes < MIN_BATCH_BYTES
                && let Some(input) = &mut batches
            {
                match input.next().await {
                    Some(Ok(batch)) => {
                        rows += batch.num_rows();
                        bytes += batch.columns().iter().map(|column| array_bytes(column.as_ref())).sum::<usize>();
                        parts.push(batch);
                    }
                    Some(Err(error)) => return Some((Err(error), None)),
                    None => batches = None,
                }
            }
            let batch = match &parts[..] {
                [] => return None,
                [one] => Ok(one.clone()),
                parts => concat_batches(&schema, parts).map_err(Into::into),
            };
            Some((batch, batches))
        }
    });
    gathered.boxed()
}
