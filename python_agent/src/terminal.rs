//! What the agent says to the person who runs the program.

/// Tells the person at the terminal: one line, `probe:` before it.
pub(crate) fn say(message: &str) {
    use std::io::Write;
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "probe: {message}");
}
