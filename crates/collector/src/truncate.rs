//! How long a text of somebody else may be, and how it is made so.

/// Longest text of an agent that is shown (bytes): a problem, a reason, a name.
pub(crate) const MAX_TEXT: usize = 1024;

/// Text of at most `most` bytes.
pub(crate) fn truncate(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text
}
