//! Every table there is. A new one is a file here, a line in this one, and a `tests/it/sql/<name>.slt`.

use crate::table::{Column, ColumnType, Table};

pub mod agents;
pub mod checkpoints;
pub mod copies;
pub mod custom;
pub mod data_trace;
pub mod drops;
pub mod environment;
pub mod evals;
pub mod events;
pub mod exceptions;
pub mod gpu_metrics;
pub mod memory;
pub mod metrics;
pub mod nccl_trace;
pub mod overhead;
pub mod pauses;
pub mod process_metrics;
pub mod queries;
pub mod spans;
pub mod stacks;
pub mod steps;
pub mod store;
pub mod sync_points;
pub mod torch_trace;

/// All of them, in the order in which people are shown them.
pub static TABLES: &[&Table] = &[
    &torch_trace::TABLE,
    &nccl_trace::TABLE,
    &steps::TABLE,
    &data_trace::TABLE,
    &checkpoints::TABLE,
    &memory::TABLE,
    &copies::TABLE,
    &sync_points::TABLE,
    &pauses::TABLE,
    &spans::TABLE,
    &metrics::TABLE,
    &environment::TABLE,
    &exceptions::TABLE,
    &stacks::TABLE,
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

/// Who a row came from. The collector adds these to every row of an agent, from the agent's Hello.
pub static IDENTITY: &[Column] = &[
    Column {
        name: "run",
        kind: ColumnType::Text,
        nullable: false,
        unit: "",
        doc: "The run, with its number if the name was used before: gpt, gpt@2.",
    },
    Column {
        name: "host",
        kind: ColumnType::Text,
        nullable: false,
        unit: "",
        doc: "Host name of the machine the process runs on.",
    },
    Column { name: "pid", kind: ColumnType::Int32, nullable: false, unit: "", doc: "Process id on that host." },
    Column {
        name: "rank",
        kind: ColumnType::Int32,
        nullable: true,
        unit: "",
        doc: "Global rank; NULL without a process group.",
    },
    Column {
        name: "local_rank",
        kind: ColumnType::Int32,
        nullable: true,
        unit: "",
        doc: "Rank within its host; NULL when the launcher does not set it.",
    },
    Column {
        name: "world_size",
        kind: ColumnType::Int32,
        nullable: true,
        unit: "ranks",
        doc: "Ranks in the default process group; NULL without one.",
    },
    Column { name: "role", kind: ColumnType::Text, nullable: false, unit: "", doc: "What the process is: trainer." },
];

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
