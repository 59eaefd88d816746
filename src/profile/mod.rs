//! Profiles of captures by operator, kernel, module and line: the page of `probe profile`, and stacks of operators.

mod queries;
mod stacks;

pub(crate) use self::queries::{CaptureSelection, Profile, ProfileRows, ask};
pub(crate) use self::stacks::{StackWeight, folded};
