//! The words for where a snippet runs and how it ended: on the command line, in tables, in JSON and in Python.

use crate::v1::{At, Outcome};

impl At {
    /// All placements, in the order in which help shows them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Now, Self::Step];

    /// The word for the placement.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Now => "now",
            Self::Step => "step",
        }
    }

    /// What the placement means, for help.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Auto => "Chosen by what the snippet does",
            Self::Now => "At once, beside training, on its own thread",
            Self::Step => "Between two steps, on the training thread",
        }
    }

    /// The placement with this word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|at| at.as_str() == text)
    }
}

impl Outcome {
    /// The word for the outcome, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::OutputLimit => "output_limit",
            Self::NoBoundary => "no_boundary",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Unspecified => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_is_read_as_it_is_written() {
        assert!(At::ALL.into_iter().all(|at| At::parse(at.as_str()) == Some(at)));
        assert_eq!(At::parse("Now"), None);
    }
}
