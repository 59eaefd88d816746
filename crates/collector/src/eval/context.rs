//! The parts of the collector that snippets need.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::routes::Routes;
use crate::registry::Registry;

/// The run, its processes, and the routes to them.
#[derive(Debug)]
pub(super) struct Context {
    pub run: Arc<str>,
    pub registry: Arc<Registry>,
    pub routes: Arc<Routes>,
    /// Held by the one snippet that is between two steps: two of them could make ranks wait for each other.
    pub turn: Arc<Mutex<()>>,
}
