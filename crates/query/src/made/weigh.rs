//! Counts or bounds the rows that come to operators that hold them, or repeat them, without counting.
//!
//! A window function holds all rows of its input. A join repeats the values of a row for each row that it meets: views
//! of stored text are repeated without the text, but a text that was made would be copied each time. A sort
//! gets small batches gathered (`gather`).

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use probe_common::error::Error;

use super::gather::{gather, sorts_all};
use super::growth::array_bytes;
use crate::adapted_input::{AdaptedInput, BatchStream, checked};

/// The longest value that a join repeats: a batch of it takes 32 MiB then.
const MAX_REPEATED_BYTES: usize = 4 << 10;
/// Copies of rows that a window function holds: it copies them once more when it has all of them.
const COPIES: usize = 2;

/// Puts an [`AdaptedInput`] before each input of those operators.
#[derive(Debug)]
pub(crate) struct WeighInputs;

/// What an operator does with its input, and so what is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputUse {
    /// The operator holds all rows until it has ended: they are counted.
    Held,
    /// The operator repeats values: the length of each is bounded.
    Repeated,
    /// The operator takes memory for each batch: small ones are gathered.
    Sorted,
}

impl PhysicalOptimizerRule for WeighInputs {
    fn name(&self) -> &'static str {
        "WeighInputs"
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let weighed = plan.transform_up(|node| {
            let what = match node.name() {
                name if name.contains("Window") => InputUse::Held,
                name if name.contains("Join") => InputUse::Repeated,
                _ if sorts_all(&node) => InputUse::Sorted,
                _ => return Ok(Transformed::no(node)),
            };
            let children: Vec<_> = node.children().into_iter().map(|child| what.put(child)).collect();
            let same = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
            Ok(Transformed::yes(node.replace_children(children, same)?))
        });
        Ok(weighed?.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}

impl InputUse {
    fn put(self, input: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let schema = input.schema();
        let made = schema.fields().iter().any(|field| is_copied(field.data_type()));
        match self {
            Self::Held if is_counted(input) => Arc::clone(input),
            Self::Repeated if !made => Arc::clone(input),
            what => {
                let (name, adapt): (_, fn(SendableRecordBatchStream, &TaskContext) -> BatchStream) = match what {
                    Self::Held => ("WeighExec: Held", hold),
                    Self::Repeated => ("WeighExec: Repeated", |batches, _| checked(batches, check)),
                    Self::Sorted => ("GatherExec", gather),
                };
                Arc::new(AdaptedInput { name, adapt, input: Arc::clone(input) })
            }
        }
    }
}

/// Whether an aggregate has made these rows: they are its groups, for which it reserved memory.
fn is_counted(rows: &Arc<dyn ExecutionPlan>) -> bool {
    const PASS_ON: &[&str] = &["Sort", "Repartition", "Coalesce", "Projection", "Filter", "Cooperative", "Limit"];
    match (rows.name(), rows.children()[..].first()) {
        (name, _) if name.contains("Aggregate") || name.contains("ByProcess") || name.contains("GroupById") => true,
        (name, Some(input)) if PASS_ON.iter().any(|pass| name.contains(pass)) => is_counted(input),
        _ => false,
    }
}

/// Whether a copy of such a value takes as much again.
fn is_copied(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary) || kind.is_nested()
}

/// Takes memory of the query for each batch. The reservation lasts until the operator drops the stream. It may hold the rows longer,
/// but then no more rows come.
fn hold(batches: SendableRecordBatchStream, context: &TaskContext) -> BatchStream {
    let reservation = MemoryConsumer::new("window").register(context.memory_pool());
    checked(batches, move |batch| {
        // The rows by themselves: what a sort gives is a part of one large batch, which would count as a whole each time.
        let bytes: usize = batch.columns().iter().map(|column| held_bytes(column.as_ref())).sum();
        reservation.try_grow(COPIES * bytes)
    })
}

fn held_bytes(column: &dyn Array) -> usize {
    let views = match column.data_type() {
        DataType::Utf8View | DataType::BinaryView => size_of::<u128>() * column.len(),
        _ => 0,
    };
    views + array_bytes(column)
}

fn check(batch: &RecordBatch) -> Result<()> {
    let longest = batch.columns().iter().map(|column| longest(column.as_ref())).max().unwrap_or_default();
    if longest <= MAX_REPEATED_BYTES {
        return Ok(());
    }
    let error = Error::limit(format!(
        "a text or list of {longest} bytes was made before a join, which would repeat it; the limit is {MAX_REPEATED_BYTES} bytes"
    ));
    Err(DataFusionError::External(Box::new(error.hint("join first, and make texts and lists of the result"))))
}

/// Bytes of the longest value that is copied where it is repeated.
fn longest(column: &dyn Array) -> usize {
    match column.data_type() {
        DataType::Utf8 => (0..column.len()).map(|row| column.as_string::<i32>().value_length(row) as usize).max(),
        DataType::LargeUtf8 => (0..column.len()).map(|row| column.as_string::<i64>().value_length(row) as usize).max(),
        DataType::Binary => (0..column.len()).map(|row| column.as_binary::<i32>().value_length(row) as usize).max(),
        DataType::LargeBinary => {
            (0..column.len()).map(|row| column.as_binary::<i64>().value_length(row) as usize).max()
        }
        // The mean of all rows. A slice counts with its whole buffers.
        kind if kind.is_nested() => Some(column.get_array_memory_size() / column.len().max(1)),
        _ => None,
    }
    .unwrap_or_default()
}
