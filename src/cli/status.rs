//! Exit statuses of commands.

/// How a command that did not fail ends: 0, or what it passes on (the snippet's 1, a child's own status).
pub(super) type CommandStatus = u8;

/// Ended by Ctrl-C, as shells say it: 128 + SIGINT.
pub(super) const INTERRUPTED: CommandStatus = 130;
