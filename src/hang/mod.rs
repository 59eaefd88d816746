//! Why no step is finished: told from how far each rank is on its process groups, and from where its threads are.

mod page;
mod verdict;

pub(crate) use page::page;
pub(crate) use verdict::{Member, judge};
