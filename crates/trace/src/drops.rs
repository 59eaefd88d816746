//! Why rows are missing, as drops are counted.

/// `python.checkpoints`, as drops are counted.
pub const CHECKPOINTS: &str = "python.checkpoints";
/// Why rows are missing after a ring had no room.
pub const RING_FULL: &str = "ring full";
/// Why the row of a step is missing in which a clock stood still.
pub(super) const CLOCK_STOPPED: &str = "a clock stood still";
/// Why rows are missing of intervals whose end never came.
pub(super) const INCOMPLETE: &str = "incomplete";
