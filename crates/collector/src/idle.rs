//! When a collector that an agent started is not needed any more.

use std::time::{Duration, Instant};

use super::registry::{AgentConnections, AgentRegistry};

/// Resolves when no agent has been connected for `quiet`, or none ever came within `first`.
pub(super) async fn wait(registry: &AgentRegistry, quiet: Duration, first: Duration) {
    let mut changes = registry.changes();
    loop {
        changes.mark_unchanged();
        let over = match registry.attendance() {
            AgentConnections::Live => None,
            AgentConnections::Left(at) => Some(at + quiet),
            AgentConnections::NeverCame(since) => Some(since + first),
        };
        let changed = match over {
            Some(over) if over <= Instant::now() => return,
            Some(over) => tokio::time::timeout_at(over.into(), changes.changed()).await.unwrap_or(Ok(())),
            None => changes.changed().await,
        };
        if changed.is_err() {
            return;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::agent::AgentDescription;
    use probe_proto::v1;
    use probe_store::ProcessIdentity;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(20);

    fn identity() -> Arc<ProcessIdentity> {
        let text = || Arc::<str>::from("");
        Arc::new(ProcessIdentity {
            run: text(),
            host: text(),
            pid: 1,
            rank: None,
            local_rank: None,
            world_size: None,
            role: text(),
        })
    }

    #[tokio::test]
    async fn nobody_ever_came() {
        let registry = AgentRegistry::new();
        timeout(LONG, wait(&registry, LONG, SHORT)).await.unwrap();
        assert!(timeout(SHORT, wait(&registry, SHORT, LONG)).await.is_err(), "the first one is waited for");
    }

    #[tokio::test]
    async fn the_last_one_left() {
        let registry = AgentRegistry::new();
        let (downlink, _frames) = mpsc::channel(1);
        let (agent, _) = registry.connect("a", identity(), AgentDescription::default(), 1).unwrap();
        registry.welcome(&agent, 1, downlink, v1::Welcome::default()).unwrap();
        assert!(timeout(SHORT, wait(&registry, SHORT, SHORT)).await.is_err(), "somebody is there");
        let leaving = async {
            registry.disconnect(&agent, 1, true);
        };
        let (idle, ()) = tokio::join!(timeout(LONG, wait(&registry, SHORT, LONG)), leaving);
        idle.unwrap();
    }
}
