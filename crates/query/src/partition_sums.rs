//! The first half of an aggregate, as far as grouped sums answer for the parts of its scan.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::Count;

use super::cell_state::{CellState, key_of};
use super::grouped_sums::{WantedSum, together};
use super::partial_aggregate::{AggregateStrategy, PartialAggregate};
use super::scan::PartitionScan;
use super::source::PartsSource;
use super::sums_request::{KeptCells, SumsRequest};

/// What one partition of an aggregate asks of sums, and the state that it needs for each of its aggregates.
pub(super) struct PartitionSums {
    pub(super) states: Vec<CellState>,
    /// The columns of the input that the question looks at as keys.
    keys: Vec<usize>,
    sums: Vec<WantedSum>,
    input: Arc<dyn ExecutionPlan>,
    /// Created when the first part is read whose rows do not change; a query of only new rows needs none.
    request: Option<Option<SumsRequest>>,
    /// Counts the parts for which sums answer.
    parts: Count,
}

impl PartitionSums {
    /// What `node` asks of sums; None where they can't answer it.
    pub(super) fn new<W: AggregateStrategy>(node: &PartialAggregate<W>, partition: usize) -> Option<Self> {
        let (source, schema) = (PartsSource::of(&node.input)?, node.input.schema());
        if node.way.filters().iter().flatten().any(is_volatile) {
            return None;
        }
        let table_columns = source.output_table_columns();
        let states = node.aggregates.iter().map(|aggregate| CellState::of(aggregate, &schema, &table_columns));
        let states = states.collect::<Option<Vec<_>>>()?;
        let filtered = node.way.filters().iter().flatten().flat_map(collect_columns).map(|column| column.index());
        let arguments = states.iter().zip(&node.aggregates).filter_map(|(state, aggregate)| key_of(*state, aggregate));
        let keys = node.way.groups().iter().copied().chain(filtered).chain(arguments).collect();
        let sums = together(states.iter().filter_map(|state| state.wanted()));
        let (input, parts) = (Arc::clone(&node.input), node.parts_summed(partition));
        Some(Self { states, keys, sums, input, request: None, parts })
    }

    /// The cells of the next part of `scan`, where sums answer for it. None where its rows are to be read, and at the end.
    pub(super) fn next(from_sums: &mut Option<Self>, scan: &mut PartitionScan) -> Option<Result<KeptCells>> {
        let cells = scan.next_cells(|part, scan| {
            let (Some(from_sums), Some(unit)) = (from_sums.as_mut(), part.unit()) else { return Ok(None) };
            from_sums.request()?.map_or(Ok(None), |request| request.answer(part, &unit, scan.batch_rows, &scan.queue))
        })?;
        from_sums.iter().for_each(|from_sums| from_sums.parts.add(1));
        Some(cells)
    }

    fn request(&mut self) -> Result<Option<&mut SumsRequest>> {
        if self.request.is_none() {
            let source = PartsSource::of(&self.input);
            self.request = Some(source.map_or(Ok(None), |source| SumsRequest::new(source, &self.keys, &self.sums))?);
        }
        Ok(self.request.as_mut().and_then(Option::as_mut))
    }
}
