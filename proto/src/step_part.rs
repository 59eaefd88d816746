//! The parts of a step's time, as `python.steps` and the tables beside it name them.

/// A part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepPart {
    /// Waiting for a batch.
    Data,
    /// Calls of modules.
    Forward,
    /// Passes of autograd.
    Backward,
    /// Steps of optimizers.
    Optimizer,
    /// Waiting for other ranks, and for the data that they send.
    Comm,
    /// Calls in evaluation mode or without gradients, and what belongs to them.
    Validation,
    /// Saves of checkpoints.
    Checkpoint,
    /// All else.
    Other,
}

impl StepPart {
    /// All parts, in the order of the columns of `python.steps`. They sum to the duration of a step.
    pub const ALL: [Self; 8] = [
        Self::Data,
        Self::Forward,
        Self::Backward,
        Self::Optimizer,
        Self::Comm,
        Self::Validation,
        Self::Checkpoint,
        Self::Other,
    ];

    /// The word in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
            Self::Comm => "comm",
            Self::Validation => "validation",
            Self::Checkpoint => "checkpoint",
            Self::Other => "other",
        }
    }

    /// Its time (s), as an expression over `python.steps`. What agents of earlier versions did not record is a part of the others.
    pub const fn time(self) -> &'static str {
        match self {
            Self::Data => "data_time",
            Self::Forward => "forward_time",
            Self::Backward => "backward_time",
            Self::Optimizer => "optimizer_time",
            Self::Comm => "comm_time",
            Self::Validation => "COALESCE(validation_time, 0)",
            Self::Checkpoint => "COALESCE(checkpoint_time, 0)",
            Self::Other => "other_time",
        }
    }
}
