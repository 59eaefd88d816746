//! All tables. A new one is a file in this folder, a line in this file, and a `tests/it/sql/<name>.slt`.

use crate::table::Table;

pub mod agents;
pub mod captures;
pub mod checkpoints;
pub mod copies;
pub mod custom;
pub mod data_trace;
pub mod drops;
pub mod environment;
pub mod evals;
pub mod events;
pub mod exceptions;
pub mod execution_trace;
pub mod flight_recorder;
pub mod frames;
pub mod gpu_metrics;
pub mod kernel_metrics;
pub mod kernels;
pub mod launches;
pub mod memory;
pub mod memory_blocks;
pub mod memory_events;
pub mod metrics;
pub mod nccl_inspector;
pub mod nccl_trace;
pub mod operator_counts;
pub mod operators;
pub mod overhead;
pub mod pauses;
pub mod process_groups;
pub mod process_metrics;
pub mod queries;
pub mod spans;
pub mod stack_samples;
pub mod stacks;
pub mod steps;
pub mod store;
pub mod sync_points;
pub mod torch_trace;

/// All tables, in the order in which the documentation and commands show them.
pub static TABLES: &[&Table] = &[
    &torch_trace::TABLE,
    &nccl_trace::TABLE,
    &steps::TABLE,
    &data_trace::TABLE,
    &checkpoints::TABLE,
    &memory::TABLE,
    &copies::TABLE,
    &sync_points::TABLE,
    &operator_counts::TABLE,
    &pauses::TABLE,
    &spans::TABLE,
    &metrics::TABLE,
    &operators::TABLE,
    &frames::TABLE,
    &kernels::TABLE,
    &launches::TABLE,
    &memory_events::TABLE,
    &memory_blocks::TABLE,
    &flight_recorder::TABLE,
    &process_groups::TABLE,
    &nccl_inspector::TABLE,
    &execution_trace::TABLE,
    &kernel_metrics::TABLE,
    &captures::TABLE,
    &environment::TABLE,
    &exceptions::TABLE,
    &stacks::TABLE,
    &stack_samples::TABLE,
    &process_metrics::TABLE,
    &gpu_metrics::TABLE,
    &agents::TABLE,
    &events::TABLE,
    &overhead::TABLE,
    &drops::TABLE,
    &store::TABLE,
    &evals::TABLE,
    &queries::TABLE,
];

/// The table called `schema.name`.
pub fn find(full_name: &str) -> Option<&'static Table> {
    let (schema, name) = full_name.split_once('.')?;
    TABLES.iter().find(|t| t.schema == schema && t.name == name).copied()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::TABLES;

    #[test]
    fn names_are_unique() {
        let names: HashSet<String> = TABLES.iter().map(|table| table.full_name()).collect();
        assert_eq!(names.len(), TABLES.len());
    }
}
