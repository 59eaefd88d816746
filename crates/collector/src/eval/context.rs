//! The parts of the collector that snippets need.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::routes::ReplyRoutes;
use crate::registry::AgentRegistry;

/// The run, its processes, and the routes to them.
#[derive(Debug)]
pub(super) struct EvalContext {
    pub run: Arc<str>,
    pub registry: Arc<AgentRegistry>,
    pub routes: Arc<ReplyRoutes>,
    /// Held by the one snippet that is between two steps: two of them could make ranks wait for each other.
    pub turn: Arc<Mutex<()>>,
}
