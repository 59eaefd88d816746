//! Snippets: from whoever asks to the training processes, and their output back.
