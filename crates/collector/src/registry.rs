//! Every agent that is or was connected.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use probe_proto::agent_connection::AgentConnection;
use probe_proto::v1;
use probe_store::ProcessIdentity;
use probe_store::journal::JournalCheckpoint;
use tokio::sync::watch;

use super::agent::{Agent, AgentDescription, Downlink, NotWelcomed};
use super::instance::is_local;
use super::written::AllWritten;

/// Most agents that may be connected at a time.
pub(crate) const MAX_LIVE: usize = 1024;
/// Most agents that are remembered, those that are gone included.
const MAX_KNOWN: usize = 8192;

/// All agents, by the order in which they first came.
#[derive(Debug)]
pub struct AgentRegistry {
    agents: Mutex<RegisteredAgents>,
    connections: AtomicU64,
    open: AtomicUsize,
    changed: watch::Sender<u64>,
    began: Instant,
}

#[derive(Debug, Default)]
struct RegisteredAgents {
    in_order: Vec<Arc<Agent>>,
    by_instance: HashMap<String, Arc<Agent>>,
    next_key: u64,
    /// When the last live agent left.
    left: Option<Instant>,
}

/// Whether agents are connected, and since when none is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentConnections {
    /// An agent is connected.
    Live,
    /// No agent has connected since the collector began, which was then.
    NeverCame(Instant),
    /// The last agent left then.
    Left(Instant),
}

/// There are too many agents already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyAgents;

impl AgentRegistry {
    pub fn new() -> Self {
        Self {
            agents: Mutex::default(),
            connections: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            changed: watch::channel(0).0,
            began: Instant::now(),
        }
    }

    /// A registry with the agents that the collector before knew.
    pub fn restore(run: &Arc<str>, checkpoint: &JournalCheckpoint, written: &AllWritten) -> Self {
        let registry = Self::new();
        let mut known: Vec<_> = checkpoint.agents.iter().collect();
        known.sort_by_key(|(_, agent)| agent.first_seen);
        {
            let mut agents = registry.lock();
            for (instance, record) in known.into_iter().filter(|(instance, _)| !is_local(instance)) {
                agents.next_key += 1;
                let agent = Arc::new(Agent::restore(agents.next_key, run, instance, record, written));
                agents.in_order.push(Arc::clone(&agent));
                agents.by_instance.insert(instance.clone(), agent);
            }
        }
        registry
    }

    fn lock(&self) -> MutexGuard<'_, RegisteredAgents> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new connection.
    pub fn new_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Binds a connection to the agent `instance`, known or new; the agent is live from [`Self::welcome`] on. Returns the agent and
    /// its newest sequence number that need not be sent again.
    pub fn connect(
        &self,
        instance: &str,
        identity: Arc<ProcessIdentity>,
        about: AgentDescription,
        connection: u64,
    ) -> Result<(Arc<Agent>, u64), TooManyAgents> {
        let mut agents = self.lock();
        let agent = match agents.by_instance.get(instance) {
            Some(agent) => Arc::clone(agent),
            None => agents.admit(instance, &identity, &about)?,
        };
        let done = agent.connect(connection);
        let mut state = agent.state();
        state.identity = identity;
        state.about = about;
        drop(state);
        Ok((agent, done))
    }

    /// Welcomes a connection, as [`Agent::welcome`] describes it.
    pub fn welcome(
        &self,
        agent: &Agent,
        connection: u64,
        downlink: Downlink,
        welcome: v1::Welcome,
    ) -> Result<(), NotWelcomed> {
        agent.welcome(connection, downlink, welcome)?;
        self.notify();
        Ok(())
    }

    /// Ends a connection. Returns whether it still spoke for the agent.
    pub fn disconnect(&self, agent: &Agent, connection: u64, said_bye: bool) -> bool {
        let mut agents = self.lock();
        let gone = agent.disconnect(connection, said_bye);
        if gone && agents.live() == 0 {
            agents.left = Some(Instant::now());
        }
        drop(agents);
        self.notify();
        gone
    }

    /// Wakes the receivers of [`AgentRegistry::changes`].
    pub fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// A receiver that is woken at every change: an agent comes, goes or reports.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// All agents, by the order in which they first came.
    pub fn all(&self) -> Vec<Arc<Agent>> {
        self.lock().in_order.clone()
    }

    /// The agents that are connected.
    pub fn live(&self) -> Vec<Arc<Agent>> {
        self.all().into_iter().filter(|agent| agent.is_live()).collect()
    }

    /// Whether agents are connected, and since when none is.
    pub fn attendance(&self) -> AgentConnections {
        let agents = self.lock();
        match agents.left {
            _ if agents.live() > 0 => AgentConnections::Live,
            Some(left) => AgentConnections::Left(left),
            None => AgentConnections::NeverCame(self.began),
        }
    }

    /// Counts a stream as open for as long as the guard lives.
    pub fn open(self: &Arc<Self>) -> OpenStream {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenStream(Arc::clone(self))
    }

    /// Streams that are open.
    pub fn open_streams(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }
}

impl RegisteredAgents {
    fn live(&self) -> usize {
        self.in_order.iter().filter(|agent| agent.is_live()).count()
    }

    fn admit(
        &mut self,
        instance: &str,
        identity: &Arc<ProcessIdentity>,
        about: &AgentDescription,
    ) -> Result<Arc<Agent>, TooManyAgents> {
        if self.live() >= MAX_LIVE {
            return Err(TooManyAgents);
        }
        if self.in_order.len() >= MAX_KNOWN {
            self.forget_oldest();
        }
        self.next_key += 1;
        let agent = Arc::new(Agent::new(self.next_key, instance, Arc::clone(identity), about.clone()));
        self.in_order.push(Arc::clone(&agent));
        self.by_instance.insert(instance.to_owned(), Arc::clone(&agent));
        Ok(agent)
    }

    fn forget_oldest(&mut self) {
        let Some(index) = self.in_order.iter().position(|agent| agent.state().presence != AgentConnection::Live) else {
            return;
        };
        let gone = self.in_order.remove(index);
        self.by_instance.retain(|_, agent| agent.key != gone.key);
    }
}

/// An open stream; dropping it says that it is closed.
#[derive(Debug)]
pub struct OpenStream(Arc<AgentRegistry>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
        self.0.notify();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use probe_proto::v1::collector_frame::Frame;
    use tokio::sync::mpsc;

    use super::*;
    use crate::agent::FrameNotSent;

    #[test]
    fn the_first_frame_to_an_agent_is_welcome_whoever_sends_one_meanwhile() {
        let registry = AgentRegistry::new();
        let identity = Arc::new(ProcessIdentity::of_hello(&"gpt@1".into(), &v1::Hello::default()));
        let connect = |connection| {
            let (agent, _) =
                registry.connect("a", Arc::clone(&identity), AgentDescription::default(), connection).unwrap();
            agent
        };
        let configure = || Frame::Configure(v1::Configure::default());
        let welcome = v1::Welcome::default;
        let (downlink, mut frames) = mpsc::channel(2);
        let agent = connect(1);
        assert_eq!((agent.is_live(), agent.send(configure())), (false, Err(FrameNotSent)));
        registry.welcome(&agent, 1, downlink.clone(), welcome()).unwrap();
        assert_eq!((agent.is_live(), agent.send(configure())), (true, Ok(())));
        let mut next = || frames.try_recv().unwrap().unwrap().frame.unwrap();
        assert_eq!([next(), next()], [Frame::Welcome(welcome()), configure()]);
        // The agent comes again: what is sent now is for neither connection, and the older one is not welcomed any more.
        connect(2);
        assert_eq!(agent.send(configure()), Err(FrameNotSent));
        assert_eq!(registry.welcome(&agent, 1, downlink, welcome()), Err(NotWelcomed::Superseded));
        let (downlink, frames) = mpsc::channel(1);
        drop(frames);
        assert_eq!(registry.welcome(&agent, 2, downlink, welcome()), Err(NotWelcomed::Gone));
    }
}
