//! The node of a plan that is the first half of an aggregate, whichever way it finds its groups: what the ways have in common.

use std::fmt::{self, Debug};
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::stream::BoxStream;

use super::queue::ScanQueue;
use super::scan::PartitionScan;
use super::source::PartsSource;

/// A way to compute the states of an aggregate's groups.
pub(super) trait AggregateStrategy: Debug + Clone + Send + Sync + 'static {
    /// The name of its node in a plan.
    const NAME: &'static str;

    /// The indices in the input of the columns that rows are grouped by.
    fn groups(&self) -> &[usize] {
        &[]
    }

    /// The condition of each aggregate (FILTER); None for all rows.
    fn filters(&self) -> &[Option<Arc<dyn PhysicalExpr>>] {
        &[]
    }

    /// What else a plan shows of it.
    fn more(&self) -> String {
        String::new()
    }

    /// The groups of one partition, and the states of their aggregates.
    fn states(
        node: &PartialAggregate<Self>,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>>;
}

/// The first half of an aggregate.
#[derive(Debug, Clone)]
pub(super) struct PartialAggregate<W> {
    pub(super) input: Arc<dyn ExecutionPlan>,
    pub(super) aggregates: Vec<Arc<AggregateFunctionExpr>>,
    /// The columns of the groups, and then the state of each aggregate.
    pub(super) schema: SchemaRef,
    pub(super) way: W,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// The queue of parts that the partitions of one execution share.
    queue: Arc<OnceLock<Arc<ScanQueue>>>,
}

impl<W: AggregateStrategy> PartialAggregate<W> {
    /// The node that computes `aggregate` over `input` this `way`.
    pub(super) fn new(aggregate: &AggregateExec, input: Arc<dyn ExecutionPlan>, way: W) -> Self {
        Self {
            input,
            aggregates: aggregate.aggr_expr().to_vec(),
            schema: aggregate.schema(),
            way,
            properties: Arc::clone(aggregate.properties()),
            metrics: ExecutionPlanMetricsSet::new(),
            queue: Arc::default(),
        }
    }

    /// One partition of the scan that is the input, part by part.
    ///
    /// # Errors
    /// The input is no scan.
    pub(super) fn scan(&self, partition: usize, context: &TaskContext) -> Result<PartitionScan> {
        let source = PartsSource::of(&self.input);
        let source = source.ok_or_else(|| DataFusionError::Internal(format!("{} is not over a scan", W::NAME)))?;
        let scan = source.scan(partition, Arc::clone(self.queue.get_or_init(|| source.queue())), context)?;
        Ok(PartitionScan { by_part: true, ..scan })
    }

    /// The metric of this node that counts the parts which sums answer for.
    pub(super) fn parts_summed(&self, partition: usize) -> Count {
        MetricBuilder::new(&self.metrics).counter("parts_summed", partition)
    }

    pub(super) fn baseline(&self, partition: usize) -> BaselineMetrics {
        BaselineMetrics::new(&self.metrics, partition)
    }
}

impl<W: AggregateStrategy> DisplayAs for PartialAggregate<W> {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (input, groups) = (self.input.schema(), self.way.groups());
        let aggregates: Vec<&str> = self.aggregates.iter().map(|aggregate| aggregate.name()).collect();
        write!(f, "{}: ", W::NAME)?;
        if !groups.is_empty() {
            let groups: Vec<&str> = groups.iter().map(|column| input.field(*column).name().as_str()).collect();
            write!(f, "gby=[{}], ", groups.join(", "))?;
        }
        write!(f, "aggr=[{}]", aggregates.join(", "))?;
        f.write_str(&self.way.more())
    }
}

impl<W: AggregateStrategy> ExecutionPlan for PartialAggregate<W> {
    fn name(&self) -> &'static str {
        W::NAME
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let arguments = self.aggregates.iter().flat_map(|aggregate| aggregate.expressions());
        for expression in arguments.chain(self.way.filters().iter().flatten().cloned()) {
            if visit(&expression)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut changed = Self::clone(&self);
        changed.metrics = ExecutionPlanMetricsSet::new();
        changed.queue = Arc::default();
        if let Some(input) = children.into_iter().next() {
            changed.input = input;
        }
        Ok(Arc::new(changed))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self { queue: Arc::default(), ..Self::clone(&self) }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let states = W::states(self, partition, &context)?;
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), states)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
