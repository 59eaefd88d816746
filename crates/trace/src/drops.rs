//! Names of tables and reasons for which drops are counted.

/// The reason for rows that are missing after a ring had no room.
pub const RING_FULL: &str = "ring full";
/// The reason for the missing row of a step in which a clock stood still.
pub(super) const CLOCK_STOPPED: &str = "a clock stood still";
/// The reason for missing rows of intervals whose end never came.
pub(super) const INCOMPLETE: &str = "incomplete";
