//! Agents without a connection, for tests.

use std::sync::Arc;

use probe_store::ProcessIdentity;

use crate::agent::{Agent, AgentDescription};

/// An agent for each of `ranks`, with process ids from 100 on.
pub(crate) fn agents(ranks: &[Option<i32>], world_size: Option<i32>) -> Vec<Arc<Agent>> {
    let agent = |(index, rank): (usize, &Option<i32>)| {
        let identity = ProcessIdentity {
            run: "gpt@1".into(),
            host: "h".into(),
            pid: 100 + index as i32,
            rank: *rank,
            local_rank: *rank,
            world_size,
            role: "trainer".into(),
        };
        Arc::new(Agent::new(index as u64 + 1, "i", Arc::new(identity), AgentDescription::default()))
    };
    ranks.iter().enumerate().map(agent).collect()
}
