//! What is drawn of each table: the columns that are asked for, and what a row becomes.

mod captured;
mod counters;
mod source;
mod trained;

pub(super) use self::source::Source;

/// All of them. Where rows begin and end together, those of an earlier one have the others within.
pub(super) const SOURCES: &[&Source] = &[
    &trained::STEPS,
    &trained::CHECKPOINTS,
    &trained::SPANS,
    &trained::MODULES,
    &trained::BATCHES,
    &trained::PAUSES,
    &trained::COPIES,
    &trained::SYNC_POINTS,
    &trained::COLLECTIVES,
    &trained::EXCEPTIONS,
    &trained::EVENTS,
    &captured::FRAMES,
    &captured::OPERATORS,
    &captured::LAUNCHES,
    &captured::KERNELS,
    &counters::MEMORY,
    &counters::METRICS,
    &counters::PROCESSES,
    &counters::GPUS,
];
