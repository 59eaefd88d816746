//! What has been set for the run (`probe ENDPOINT config KEY=VALUE`): told to live agents, and to those that come later.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use probe_proto::config;
use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::{AgentConfig, ConfigAnswer, Configure};
use tokio::time::timeout;

use super::registry::Registry;
use crate::error::{Error, Result};

/// How long agents are given to say that a setting is in force.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings of the run.
#[derive(Debug, Default)]
pub(crate) struct Settings(Mutex<BTreeMap<String, String>>);

impl Settings {
    /// All that has been set.
    pub(crate) fn all(&self) -> HashMap<String, String> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.clone().into_iter().collect()
    }

    /// Sets `values` on every agent, waits until those that are live say so, and says what is in force in each. An
    /// agent that did not say so in time is shown with what it last said.
    pub(crate) async fn set(&self, values: HashMap<String, String>, registry: &Registry) -> Result<ConfigAnswer> {
        for (key, value) in &values {
            let known = config::KEYS.iter().map(|key| format!("{}={}", key.name, key.values.join("|")));
            config::check(key, value).map_err(|what| {
                Error::usage(what).hint(format!("settings are {}", known.collect::<Vec<_>>().join(", ")))
            })?;
        }
        let told = if values.is_empty() {
            registry.live()
        } else {
            // Remembered first: an agent that connects from now on hears it in its Welcome.
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(values.clone());
            let mut told = registry.live();
            told.retain(|agent| agent.send(Frame::Configure(Configure { values: values.clone() })).is_ok());
            told
        };
        let mut changes = registry.changes();
        let everywhere = async {
            loop {
                changes.mark_unchanged();
                let in_force = told.iter().all(|agent| {
                    let state = agent.state();
                    let holds = |(key, value): (&String, &String)| state.settings.get(key) == Some(value);
                    state.presence != super::agent::Presence::Live || values.iter().all(holds)
                });
                if in_force || changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = timeout(CONFIRMATION_TIMEOUT, everywhere).await;
        let mut agents: Vec<AgentConfig> = registry
            .live()
            .iter()
            .map(|agent| {
                let state = agent.state();
                let pid = u32::try_from(state.identity.pid).unwrap_or_default();
                AgentConfig { rank: state.identity.rank, pid, values: state.settings.clone().into_iter().collect() }
            })
            .collect();
        agents.sort_by_key(|agent| (agent.rank, agent.pid));
        Ok(ConfigAnswer { agents })
    }
}
