//! Messages of the agent to the person who runs the program.

/// Writes a line to standard error, with `probe:` before it.
pub(crate) fn say(message: &str) {
    use std::io::Write;
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "probe: {message}");
}
