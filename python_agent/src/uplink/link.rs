//! State that Python's side and the background thread of one uplink share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use probe_proto::v1::{Hello, TableSchema};
use tokio::sync::{Notify, watch};

use crate::address::CollectorAddress;
use crate::recording::analyser_checkpoint;
use crate::recording::clock::unix_ns;
use crate::shared::{ATTACHED, lock};

use super::commands::CommandQueues;
use super::settings::{Identity, MAX_COMMAND_LENGTH, Settings};

/// A request to end the uplink.
#[derive(Debug, Clone)]
pub struct StopRequest {
    /// Time after which nothing more is sent.
    pub deadline: Instant,
    /// `exit` or `detached`.
    pub reason: &'static str,
}

/// What other threads ask of the background thread. They do not wake it themselves: tokio would write to a descriptor, whose number
/// is that of another file in their table, or of none.
#[derive(Debug, Default)]
struct UplinkRequests {
    wake: bool,
    stop: Option<StopRequest>,
    is_over: bool,
}

/// State of the uplink, for `probe_agent.status()`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum UplinkPhase {
    /// There is no connection yet, or not any more, for this reason if it is known.
    Connecting(Option<String>),
    /// The uplink is connected to the collector of this run.
    Connected(String),
    /// The collector refused this agent for this reason.
    Refused(String),
    /// The uplink has ended.
    #[default]
    Ended,
}

impl UplinkPhase {
    /// The word for the phase in `probe_agent.status()`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Connecting(_) => "connecting",
            Self::Connected(_) => "connected",
            Self::Refused(_) => "refused",
            Self::Ended => "ended",
        }
    }

    /// The run that the uplink sends to; None while it is not connected.
    pub fn run(&self) -> Option<&str> {
        match self {
            Self::Connected(run) => Some(run),
            _ => None,
        }
    }
}

/// One uplink, from start to stop.
#[derive(Debug)]
pub struct Uplink {
    /// Address of the collector.
    pub address: CollectorAddress,
    /// Settings that are fixed from the start.
    pub settings: Settings,
    /// Snippets and replies.
    pub commands: CommandQueues,
    /// Notified by threads that have the descriptors of the uplink when something waits to be sent.
    pub(super) woken: Notify,
    stop: watch::Sender<Option<StopRequest>>,
    asked: Mutex<UplinkRequests>,
    was_asked: Condvar,
    identity: Mutex<Identity>,
    identity_version: AtomicU64,
    phase: Mutex<UplinkPhase>,
    phase_changed: Condvar,
}

impl Uplink {
    /// An uplink that has not begun.
    pub fn new(address: CollectorAddress, settings: Settings) -> Self {
        Self {
            address,
            identity: Mutex::new(settings.identity),
            settings,
            commands: CommandQueues::default(),
            woken: Notify::new(),
            stop: watch::Sender::new(None),
            asked: Mutex::default(),
            was_asked: Condvar::new(),
            identity_version: AtomicU64::new(1),
            phase: Mutex::new(UplinkPhase::Connecting(None)),
            phase_changed: Condvar::new(),
        }
    }

    /// Sets the identity of this process, if it has changed.
    pub fn identify(&self, identity: Identity) {
        let mut current = lock(&self.identity);
        if *current != identity {
            *current = identity;
            self.identity_version.fetch_add(1, Ordering::Relaxed);
            self.wake();
        }
    }

    /// Grows with every change of the identity.
    pub fn identity_version(&self) -> u64 {
        self.identity_version.load(Ordering::Relaxed)
    }

    /// The Hello message with what is known now.
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
            rings: analyser_checkpoint::descriptor()
                .filter(|_| matches!(self.address, CollectorAddress::Unix(_)))
                .and_then(|number| u32::try_from(number).ok()),
        }
    }

    /// Asks the thread to flush and end.
    pub fn request_stop(&self, timeout: Duration, reason: &'static str) {
        lock(&self.asked).stop = Some(StopRequest { deadline: Instant::now() + timeout, reason });
        self.was_asked.notify_one();
    }

    /// Says that something waits to be sent.
    pub fn wake(&self) {
        lock(&self.asked).wake = true;
        self.was_asked.notify_one();
    }

    /// Passes on what other threads ask, until [`Uplink::end_passing_on`]. Runs on a thread that has the descriptors of the uplink.
    pub(super) fn pass_on(&self) {
        let mut asked = lock(&self.asked);
        while !asked.is_over {
            let UplinkRequests { wake, stop, .. } = std::mem::take(&mut *asked);
            drop(asked);
            let is_asked = wake || stop.is_some();
            if stop.is_some() {
                self.stop.send_replace(stop);
            }
            if is_asked {
                self.woken.notify_one();
            }
            let is_quiet = |asked: &mut UplinkRequests| !asked.wake && asked.stop.is_none() && !asked.is_over;
            let waited = self.was_asked.wait_while(lock(&self.asked), is_quiet);
            asked = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Ends [`Uplink::pass_on`].
    pub(super) fn end_passing_on(&self) {
        lock(&self.asked).is_over = true;
        self.was_asked.notify_one();
    }

    /// The request to end, if there was one.
    pub fn stop_requested(&self) -> Option<StopRequest> {
        self.stop.borrow().clone()
    }

    /// Waits for [`Uplink::request_stop`].
    pub async fn stopping(&self) -> StopRequest {
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

    /// Sets the state of the uplink.
    pub fn set_phase(&self, phase: UplinkPhase) {
        *lock(&self.phase) = phase;
        self.phase_changed.notify_all();
    }

    /// State of the uplink.
    pub fn phase(&self) -> UplinkPhase {
        lock(&self.phase).clone()
    }

    /// Whether a collector has welcomed this agent and the connection still exists.
    pub fn is_connected(&self) -> bool {
        matches!(*lock(&self.phase), UplinkPhase::Connected(_))
    }

    /// Waits up to `timeout` until `reached` holds for the phase; false where it does not by then.
    pub fn wait_for(&self, timeout: Duration, reached: impl Fn(&UplinkPhase) -> bool) -> bool {
        let phase = lock(&self.phase);
        let waited = self.phase_changed.wait_timeout_while(phase, timeout, |phase| !reached(phase));
        !waited.unwrap_or_else(std::sync::PoisonError::into_inner).1.timed_out()
    }
}
