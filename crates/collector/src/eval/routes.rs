//! Routes the answers of agents to the snippets that they belong to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use probe_proto::v1::{EvalReply, eval_reply::Reply};
use tokio::sync::mpsc;

/// A message from an agent while a snippet is running.
#[derive(Debug)]
pub struct AgentMessage {
    /// The agent's `key`.
    pub agent: u64,
    pub signal: AgentReply,
}

/// An answer, or the end of the agent that should have given it.
#[derive(Debug)]
pub enum AgentReply {
    Answer {
        /// Identifier of the commands that this answers.
        id: u64,
        reply: Reply,
    },
    Gone,
}

/// Running snippets, by the identifiers that their commands carry. An identifier is used for one attempt, so a late answer to an
/// abandoned attempt is not taken for the next one's.
#[derive(Debug, Default)]
pub struct ReplyRoutes {
    by_id: Mutex<HashMap<u64, mpsc::UnboundedSender<AgentMessage>>>,
    newest: AtomicU64,
}

impl ReplyRoutes {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, mpsc::UnboundedSender<AgentMessage>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new identifier whose answers go to `to`, until the route is dropped.
    ///
    /// The channel has no bound because senders may not wait: a session that did would keep rows from being stored. Its reader
    /// takes everything at once and bounds what it keeps.
    pub fn open(self: &Arc<Self>, to: &mpsc::UnboundedSender<AgentMessage>) -> ReplyRoute {
        let id = self.newest.fetch_add(1, Ordering::Relaxed) + 1;
        self.lock().insert(id, to.clone());
        ReplyRoute { id, routes: Arc::clone(self) }
    }

    /// Delivers an answer of an agent, or drops it where its route is closed.
    pub fn deliver(&self, agent: u64, answer: EvalReply) {
        let Some(reply) = answer.reply else { return };
        if let Some(route) = self.lock().get(&answer.id) {
            // The reader may have just gone.
            let _ = route.send(AgentMessage { agent, signal: AgentReply::Answer { id: answer.id, reply } });
        }
    }

    /// Tells all routes that an agent is gone.
    pub fn agent_gone(&self, agent: u64) {
        for route in self.lock().values() {
            let _ = route.send(AgentMessage { agent, signal: AgentReply::Gone });
        }
    }
}

/// An identifier in use.
#[derive(Debug)]
pub struct ReplyRoute {
    pub id: u64,
    routes: Arc<ReplyRoutes>,
}

impl Drop for ReplyRoute {
    fn drop(&mut self) {
        self.routes.lock().remove(&self.id);
    }
}
