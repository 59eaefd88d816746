//! The stages of training that rows of `python.torch_trace` and `python.operators` belong to.

/// A stage of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Forward,
    /// A forward call that activation checkpointing repeats within the backward pass.
    Recompute,
    Backward,
    /// The step of an optimizer.
    Step,
    /// A forward call in evaluation mode or without gradients.
    Validation,
}

impl Stage {
    /// The word in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Recompute => "recompute",
            Self::Backward => "backward",
            Self::Step => "step",
            Self::Validation => "validation",
        }
    }
}
