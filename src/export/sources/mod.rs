//! The tables that are drawn: the columns that are asked for, and how a row is drawn.

mod captured;
mod counters;
mod source;
mod trained;

pub(super) use self::source::DrawnTable;

/// All tables that are drawn. Of rows that begin and end together, those of an earlier table contain the others.
pub(super) const SOURCES: &[&DrawnTable] = &[
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
