//! What Python's side and the background thread of one uplink share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use probe_proto::v1::{Hello, TableSchema};
use pyo3::FromPyObject;
use tokio::sync::{Notify, watch};

use crate::address::Address;
use crate::recording::clock::unix_ns;
use crate::recording::keep;
use crate::seconds::Seconds;
use crate::shared::{ATTACHED, lock};
use crate::words::Words;

use super::commands::Commands;
use super::revive::Revival;

/// The command line is cut here (characters, and bytes).
const MAX_COMMAND_LENGTH: usize = 4096;

/// What is fixed when the uplink starts, as `probe_agent.settings` has it.
#[derive(Debug, Clone, FromPyObject)]
pub struct Settings {
    /// Where the collector is: `unix:PATH` or `HOST:PORT`.
    pub collector: String,
    /// File with the token that a collector on TCP asks for.
    pub token_file: Option<PathBuf>,
    /// What `PROBE_TLS_PIN` said when the agent was started.
    pub tls_pin: Option<String>,
    /// Snippets that come over TCP are run.
    pub eval_over_tcp: bool,
    /// How long nothing is said about a collector that is not there: one that was just started needs a moment.
    #[pyo3(attribute("patience_s"))]
    pub patience: Seconds,
    /// What to do where it is not there.
    pub hint: String,
    /// How a collector that died is started again; None where that is somebody else's business.
    pub revival: Option<Revival>,
    /// Random, made once in the life of the agent.
    pub instance: String,
    /// The run's name; empty: the collector's own run.
    pub run: String,
    /// Host name.
    pub host: String,
    /// The command line, of which arguments may be any bytes.
    pub command: Words<MAX_COMMAND_LENGTH>,
    /// Version of the interpreter.
    pub python_version: String,
    /// Version of torch.
    pub torch_version: String,
    /// Who this process is at first.
    pub identity: Identity,
}

/// What may become known later, as `probe_agent.settings` has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromPyObject)]
pub struct Identity {
    /// Global rank.
    pub rank: Option<i32>,
    /// Rank within its host.
    pub local_rank: Option<i32>,
    /// Ranks in the default process group.
    pub world_size: Option<i32>,
}

/// That the uplink is to end.
#[derive(Debug, Clone)]
pub struct Stop {
    /// What has not been sent by then stays unsent.
    pub deadline: Instant,
    /// `exit` or `detached`.
    pub reason: &'static str,
}

/// How far it is, for `probe_agent.status()`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Phase {
    /// No connection yet, or not any more; why, where that is known.
    Connecting(Option<String>),
    /// Connected to the collector of this run.
    Connected(String),
    /// The collector wants nothing of this agent, and says why.
    Refused(String),
    /// Stopped.
    #[default]
    Ended,
}

impl Phase {
    /// As `probe_agent.status()` says it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Connecting(_) => "connecting",
            Self::Connected(_) => "connected",
            Self::Refused(_) => "refused",
            Self::Ended => "ended",
        }
    }

    /// The run that it sends to.
    pub fn run(&self) -> Option<&str> {
        match self {
            Self::Connected(run) => Some(run),
            _ => None,
        }
    }
}

/// One uplink, from start to stop.
#[derive(Debug)]
pub struct Link {
    /// Where the collector is.
    pub address: Address,
    /// What is fixed.
    pub settings: Settings,
    /// Snippets and replies.
    pub commands: Commands,
    /// Something waits to be sent.
    pub wake: Notify,
    stop: watch::Sender<Option<Stop>>,
    identity: Mutex<Identity>,
    identity_version: AtomicU64,
    phase: Mutex<Phase>,
    phase_changed: Condvar,
}

impl Link {
    /// One that has not begun.
    pub fn new(address: Address, settings: Settings) -> Self {
        Self {
            address,
            identity: Mutex::new(settings.identity),
            settings,
            commands: Commands::default(),
            wake: Notify::new(),
            stop: watch::Sender::new(None),
            identity_version: AtomicU64::new(1),
            phase: Mutex::new(Phase::Connecting(None)),
            phase_changed: Condvar::new(),
        }
    }

    /// Says who this process is, where that has changed.
    pub fn identify(&self, identity: Identity) {
        let mut current = lock(&self.identity);
        if *current != identity {
            *current = identity;
            self.identity_version.fetch_add(1, Ordering::Relaxed);
            self.wake.notify_one();
        }
    }

    /// Grows with every change of the identity.
    pub fn identity_version(&self) -> u64 {
        self.identity_version.load(Ordering::Relaxed)
    }

    /// The Hello that holds now.
    pub fn hello(&self, tables: Vec<TableSchema>) -> Hello {
        let identity = *lock(&self.identity);
        let settings = &self.settings;
        let command = &settings.command.0;
        Hello {
            protocol: probe_proto::PROTOCOL,
            instance: settings.instance.clone(),
            run: settings.run.clone(),
            host: settings.host.clone(),
            pid: std::process::id(),
            rank: identity.rank,
            local_rank: identity.local_rank,
            world_size: identity.world_size,
            role: "trainer".into(),
            agent_version: probe_proto::VERSION.into(),
            python_version: settings.python_version.clone(),
            torch_version: settings.torch_version.clone(),
            command: command[..command.floor_char_boundary(MAX_COMMAND_LENGTH)].to_owned(),
            tables,
            unix_ns: unix_ns(),
            eval_over_tcp: settings.eval_over_tcp,
            attached: ATTACHED.load(Ordering::Relaxed),
            says_arrived: true,
            rings: keep::descriptor().filter(|_| matches!(self.address, Address::Unix(_))),
        }
    }

    /// Asks the thread to flush and end.
    pub fn request_stop(&self, timeout: Duration, reason: &'static str) {
        self.stop.send_replace(Some(Stop { deadline: Instant::now() + timeout, reason }));
        self.wake.notify_one();
    }

    /// That it was asked to end.
    pub fn stop_requested(&self) -> Option<Stop> {
        self.stop.borrow().clone()
    }

    /// Waits for [`Link::request_stop`].
    pub async fn stopping(&self) -> Stop {
        let mut stop = self.stop.subscribe();
        loop {
            if let Some(stop) = stop.borrow_and_update().clone() {
                return stop;
            }
            if stop.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Sets how far it is.
    pub fn set_phase(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.phase_changed.notify_all();
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        lock(&self.phase).clone()
    }

    /// Whether a collector has welcomed it and the connection stands.
    pub fn is_connected(&self) -> bool {
        matches!(*lock(&self.phase), Phase::Connected(_))
    }

    /// Waits until `reached` holds; false where it does not by then.
    pub fn wait_for(&self, timeout: Duration, reached: impl Fn(&Phase) -> bool) -> bool {
        let phase = lock(&self.phase);
        let waited = self.phase_changed.wait_timeout_while(phase, timeout, |phase| !reached(phase));
        !waited.unwrap_or_else(std::sync::PoisonError::into_inner).1.timed_out()
    }
}
