//! The first half of an aggregate, as far as grouped sums answer for the parts of its scan.

use datafusion::common::Result;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::metrics::Count;

use super::cell_state::{CellState, keys_of};
use super::partial_aggregate::{AggregateWay, PartialAggregate};
use super::scan::Scan;
use super::source::PartsSource;
use super::sums_request::{KeptCells, SumsRequest, add_wanted};

/// What one partition of an aggregate asks of sums, and the state that it needs for each of its aggregates.
pub(super) struct FromSums {
    request: SumsRequest,
    pub(super) states: Vec<CellState>,
    /// Counts the parts for which sums answer.
    parts: Count,
}

impl FromSums {
    /// What `node` asks of sums; None where they can't answer it.
    ///
    /// # Errors
    /// A filter names a column that the scan does not have.
    pub(super) fn new<W: AggregateWay>(node: &PartialAggregate<W>, partition: usize) -> Result<Option<Self>> {
        let (Some(source), schema) = (PartsSource::of(&node.input), node.input.schema()) else { return Ok(None) };
        let table_columns = source.output_table_columns();
        let states = node.aggregates.iter().map(|aggregate| CellState::of(aggregate, &schema, &table_columns));
        let Some(states) = states.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let filtered = node.way.filters().iter().flatten().flat_map(collect_columns).map(|column| column.index());
        let arguments = states.iter().zip(&node.aggregates).flat_map(|(state, aggregate)| keys_of(*state, aggregate));
        let keys = node.way.groups().iter().copied().chain(filtered).chain(arguments);
        let mut sums = Vec::new();
        add_wanted(&mut sums, states.iter().filter_map(|state| state.wanted()));
        let request = source.sums_request(keys, sums)?;
        Ok(request.map(|request| Self { request, states, parts: node.parts_summed(partition) }))
    }

    /// The cells of the next part of `scan`, where sums answer for it. None where its rows are to be read, and at the end.
    pub(super) fn next(from_sums: &mut Option<Self>, scan: &mut Scan) -> Option<Result<KeptCells>> {
        let cells = scan.next_cells(from_sums.as_mut().map(|from_sums| &mut from_sums.request))?;
        from_sums.iter().for_each(|from_sums| from_sums.parts.add(1));
        Some(cells)
    }
}
