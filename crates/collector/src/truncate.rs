//! The longest text that is taken from another process, and how a longer one is cut.

/// Longest text of an agent that is shown (bytes): a problem, a reason, a name.
pub(crate) const MAX_TEXT: usize = 1024;

/// The text, cut to at most `most` bytes.
pub(crate) fn truncate(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}
