//! A node that gives the batches of its input as they are, and fails where one does not pass a check.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::StreamExt;

/// The check of one stream's batches.
pub(super) type BatchCheck = Box<dyn FnMut(&RecordBatch) -> Result<()> + Send>;

/// Checks each batch of `input`.
#[derive(Debug)]
pub(super) struct CheckedInput {
    /// The node's name in plans.
    pub(super) name: &'static str,
    /// Makes the check of a stream.
    pub(super) check: fn(&TaskContext) -> BatchCheck,
    pub(super) input: Arc<dyn ExecutionPlan>,
}

impl DisplayAs for CheckedInput {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl ExecutionPlan for CheckedInput {
    fn name(&self) -> &'static str {
        self.name
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.into_iter().next().unwrap_or_else(|| Arc::clone(&self.input));
        Ok(Arc::new(Self { input, ..*self }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let batches = self.input.execute(partition, Arc::clone(&context))?;
        let (schema, mut check) = (batches.schema(), (self.check)(&context));
        let checked = batches.map(move |batch| {
            let batch = batch?;
            check(&batch)?;
            Ok(batch)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, checked)))
    }
}
