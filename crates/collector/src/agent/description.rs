//! What is known of an agent and its process.

use probe_proto::v1;

/// Whether an agent's process lives.
#[derive(Debug, Clone, PartialEq)]
pub enum ProcessLife {
    /// The process is not watched: it runs on another node, or may not be watched.
    Unknown,
    /// The process is watched, and lives.
    Watched,
    /// The process has ended, and what it left in memory is being read.
    Recovering,
    /// The process has ended.
    Ended(v1::Ended),
}

/// What an agent says about itself beside its identity.
#[derive(Debug, Clone, Default)]
pub struct AgentDescription {
    pub agent_version: String,
    pub python_version: String,
    pub torch_version: String,
    pub command: String,
    /// The process runs snippets that come over TCP.
    pub eval_over_tcp: bool,
    /// The agent was attached to a program that trained already.
    pub attached: bool,
    /// The agent says where its process waits between two steps.
    pub says_arrived: bool,
}

/// Rows lost for one reason, and when their number last grew (ns since 1970).
#[derive(Debug, Clone, Copy, Default)]
pub struct RowLoss {
    pub rows: u64,
    pub last: i64,
}
