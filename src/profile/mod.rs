//! What captures say of operators, kernels, modules and lines: the page of `probe profile`, and stacks of operators.

mod ask;
mod stacks;

pub(crate) use self::ask::{By, Profile, Selection, ask};
pub(crate) use self::stacks::{Weight, folded};
