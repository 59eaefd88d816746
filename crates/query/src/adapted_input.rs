//! A node that gives the rows of its input as they are: it checks their batches, or gathers them.

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
use futures::stream::BoxStream;

/// The batches of one partition.
pub(super) type BatchStream = BoxStream<'static, Result<RecordBatch>>;

/// Gives the rows of `input`.
#[derive(Debug)]
pub(super) struct AdaptedInput {
    /// The node's name in plans.
    pub(super) name: &'static str,
    /// The batches that the node makes of its input's.
    pub(super) adapt: fn(SendableRecordBatchStream, &TaskContext) -> BatchStream,
    pub(super) input: Arc<dyn ExecutionPlan>,
}

/// The same batches, until one does not pass `check`.
pub(super) fn checked(
    batches: SendableRecordBatchStream,
    mut check: impl FnMut(&RecordBatch) -> Result<()> + Send + 'static,
) -> BatchStream {
    let checked = batches.map(move |batch| {
        let batch = batch?;
        check(&batch)?;
        Ok(batch)
    });
    checked.boxed()
}

impl DisplayAs for AdaptedInput {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl ExecutionPlan for AdaptedInput {
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
        let schema = batches.schema();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, (self.adapt)(batches, &context))))
    }
}
