//! Whether an agent is connected: the column `state` of `probe.agents`.

/// Whether an agent is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentConnection {
    Live,
    /// The agent said Bye.
    Ended,
    /// The agent's stream broke, and no other has come.
    Lost,
}

impl AgentConnection {
    /// The word in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Ended => "ended",
            Self::Lost => "lost",
        }
    }
}
