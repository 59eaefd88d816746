//! Evaluates the arguments of an aggregate over rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;

/// The expressions of one aggregate.
pub(super) struct AggregateArguments {
    expressions: Vec<Arc<dyn PhysicalExpr>>,
    /// Arrays of the arguments that are constants (as that of COUNT(*)): made once, as long as the longest batch so far.
    constants: Vec<Option<ArrayRef>>,
}

impl AggregateArguments {
    pub(super) fn new(expressions: Vec<Arc<dyn PhysicalExpr>>) -> Self {
        Self { constants: vec![None; expressions.len()], expressions }
    }

    pub(super) fn evaluate(&mut self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let rows = batch.num_rows();
        let evaluate = |(expression, constant): (&Arc<dyn PhysicalExpr>, &mut Option<ArrayRef>)| {
            if let Some(made) = constant
                && made.len() >= rows
            {
                return Ok(made.slice(0, rows));
            }
            let array = expression.evaluate(batch)?.into_array(rows)?;
            if expression.downcast_ref::<Literal>().is_some() {
                *constant = Some(Arc::clone(&array));
            }
            Ok(array)
        };
        self.expressions.iter().zip(&mut self.constants).map(evaluate).collect()
    }
}
