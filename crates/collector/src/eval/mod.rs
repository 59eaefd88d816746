//! Snippets: from the client to the training processes, and their output back.
//!
//! [`SnippetBroker::ask`] checks a call, chooses the processes ([`group`]) and starts a [`snippet`], which speaks with their
//! agents by commands and answers ([`routes`]), and passes on what they say ([`feed`]). All of it is in `probe.evals`
//! ([`log`]).

mod broker;
mod complete;
mod context;
mod feed;
mod group;
mod log;
mod printed;
mod routes;
mod snippet;
mod verdict;

pub use broker::{EvalEvents, SnippetBroker};
pub use log::EvalLog;
pub use printed::printed;
pub use routes::ReplyRoutes;
