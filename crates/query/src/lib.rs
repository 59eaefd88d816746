//! SQL over the store.
//!
//! - What a query can name (`catalog`), what it may do (`guard`) and what it may take (`limits`, `admission`).
//! - How it is planned (`planner`) and where it runs (`threads`).
//! - How it reads (`provider`, `source`, `prune`, `scan`, `row_filter`), groups (`by_process`, `group_by_id`, `totals`) and keeps
//!   sums (`grouped_sums`).
//! - What its client gets (`output`, `answer`), also when it fails (`errors`).
//!
//! The crate knows tables, rows and limits. It knows no agent, no connection, no run directory and no command: rows come from a
//! `Store` or a `SystemTable`.

mod adapted_input;
mod admission;
mod aggregate_rule;
mod allocator;
mod answer;
mod arguments;
mod bounds;
mod by_process;
mod catalog;
mod cell_state;
mod checked_arithmetic;
mod checked_sum;
mod codes;
mod column_names;
mod counting;
mod data_source;
mod described_types;
mod distinct_from;
mod engine;
mod epoch;
mod errors;
mod expanded;
mod extremes;
mod float_sort;
mod function_replacements;
mod group_by_id;
mod group_keys;
mod grouped_sums;
mod guard;
mod guarded_rules;
mod held_conditions;
mod id_bits;
mod ignored_clauses;
mod json;
mod kept_sum;
mod key_bounds;
mod known_aggregates;
mod known_subqueries;
mod lazy_conditions;
mod limits;
mod made;
mod memory;
mod names;
mod names_of_aggregates;
mod names_of_casts;
mod narrowed;
mod nested_projections;
mod output;
mod parameters;
mod partial_aggregate;
mod partition_sums;
mod percentile;
mod plain_argument;
mod plan_cache;
mod planner;
mod planning_stop;
mod provider;
mod prune;
mod quantile;
mod query_task;
mod queue;
mod read_only;
mod row_filter;
mod row_limits;
mod running;
mod scan;
mod scan_unit;
mod snapshots;
mod source;
mod statement_complexity;
mod stopping;
mod sums_cache;
mod sums_request;
mod table_functions;
mod text_complexity;
mod threads;
mod totals;
mod views;

pub use self::allocator::keep_little;
pub use self::catalog::{CATALOG, is_taken, schemas_of};
pub use self::counting::CountingAllocator;
pub use self::engine::QueryEngine;
pub use self::errors::from_datafusion;
pub use self::guard::understand;
pub use self::limits::{QueryLimits, QuerySettings};
pub use self::names::nearest;
pub use self::output::plain_schema;
pub use self::parameters::Parameters;
pub use self::planner::PlannedQuery;
pub use self::views::{relations, views};

/// The allocator of the program, so that tests count memory as it does.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
