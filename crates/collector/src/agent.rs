//! One agent as the collector knows it, from its first Hello until the collector ends.

pub(crate) mod batches;
mod description;
pub(crate) mod pace;
mod state;
mod status;

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use probe_common::clock;
use probe_proto::agent_connection::AgentConnection;
use probe_proto::v1::{self, CollectorFrame, collector_frame};
use probe_store::ProcessIdentity;
use probe_store::journal::MAX_ENTRIES;
use probe_store::journal::replay::BatchRanges;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

pub(crate) use self::description::{AgentDescription, ProcessLife, RowLoss};
use self::pace::StepPace;
use self::status::MAX_LATE;
pub(crate) use self::status::truncate_status;
use super::written::AllWritten;

/// Frames on their way down to an agent.
pub(crate) type Downlink = mpsc::Sender<Result<CollectorFrame, Status>>;

/// An agent, connected or gone.
#[derive(Debug)]
pub struct Agent {
    /// The agent's number in the order of first connections.
    pub key: u64,
    /// `Hello.instance`.
    pub instance: Arc<str>,
    /// Cancelled when the process has ended: what has not come by then does not come any more.
    pub over: CancellationToken,
    state: Mutex<AgentState>,
}

/// The part of an agent that changes.
#[derive(Debug)]
pub struct AgentState {
    pub identity: Arc<ProcessIdentity>,
    pub about: AgentDescription,
    /// The newest Hello, without its tables: those belong to the connection.
    pub hello: v1::Hello,
    pub presence: AgentConnection,
    /// The process at the other end of the newest connection, by the kernel's word; None over TCP.
    pub kernel_pid: Option<i32>,
    /// Whether the process is watched, and how it ended.
    pub life: ProcessLife,
    /// The wait status of the process, where a launcher is its parent and has told it.
    pub wait_status: Option<i32>,
    /// Number of the connection that speaks for the agent; an older one may still be open.
    pub connection: u64,
    downlink: Option<Downlink>,
    /// Newest batch that is stored, or lost and counted.
    pub done_seq: u64,
    /// Newest batch whose record is on disk: it need not be sent again.
    durable_seq: u64,
    /// Batches from `durable_seq` to `done_seq`, by their position in the journal.
    unsynced: VecDeque<(u64, u64)>,
    /// By table, newer batches that files have: a disk that failed for a while had taken no journal.
    ahead: BTreeMap<String, BatchRanges>,
    /// By table, rows ever stored.
    pub stored: BTreeMap<String, u64>,
    /// By table, rows recorded by the newest batch's word.
    pub recorded: BTreeMap<String, u64>,
    /// What the agent lost, by table and reason, by its word.
    pub lost_there: BTreeMap<(String, String), RowLoss>,
    /// What the collector lost, by table and reason.
    pub lost_here: BTreeMap<(String, Cow<'static, str>), RowLoss>,
    pub step: i64,
    /// What is added to the agent's count of steps to get the count that all ranks share; None where that is not known, because
    /// the agent counts from when it was attached.
    pub step_offset: Option<i64>,
    pub pace: StepPace,
    /// How far the process is on each process group.
    pub groups: Vec<v1::GroupState>,
    /// When the agent made its newest record, by its clock (ns since 1970); `said_ns` is when it said so, by the same clock.
    pub last_record_ns: i64,
    /// Whether the newest record was made in validation.
    pub validates: bool,
    pub said_ns: i64,
    pub steps_per_second: f64,
    /// When the agent reported `step`.
    pub reported: Instant,
    pub layers: BTreeMap<String, String>,
    /// What recording costs the process, and how fast it trains.
    pub cost: Option<v1::Cost>,
    /// Number of the newest plan that the agent heard of, and whether that was too late.
    pub plan: (u64, bool),
    /// How many plans the agent heard of too late.
    late_plans: u64,
    /// Settings in force.
    pub settings: BTreeMap<String, String>,
    pub first_seen: i64,
    pub last_seen: i64,
    pub clock_offset: Option<f64>,
    /// What is wrong, by the agent's word.
    pub problem: String,
    /// What was wrong with the frames that the agent sent.
    problem_here: String,
}

/// Why a frame was not sent to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameNotSent;

/// Why a connection was not welcomed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotWelcomed {
    Superseded,
    /// The other end of the connection does not read frames any more.
    Gone,
}

impl Agent {
    /// An agent that connects for the first time.
    pub fn new(key: u64, instance: &str, identity: Arc<ProcessIdentity>, about: AgentDescription) -> Self {
        let now = clock::unix_ns();
        let step_offset = (!about.attached).then_some(0);
        let state = AgentState {
            identity,
            about,
            hello: v1::Hello::default(),
            presence: AgentConnection::Lost,
            kernel_pid: None,
            life: ProcessLife::Unknown,
            wait_status: None,
            connection: 0,
            downlink: None,
            done_seq: 0,
            durable_seq: 0,
            unsynced: VecDeque::new(),
            ahead: BTreeMap::new(),
            stored: BTreeMap::new(),
            recorded: BTreeMap::new(),
            lost_there: BTreeMap::new(),
            lost_here: BTreeMap::new(),
            step: 0,
            step_offset,
            pace: StepPace::default(),
            groups: Vec::new(),
            last_record_ns: 0,
            validates: false,
            said_ns: 0,
            steps_per_second: 0.0,
            reported: Instant::now(),
            layers: BTreeMap::new(),
            cost: None,
            plan: (0, false),
            late_plans: 0,
            settings: BTreeMap::new(),
            first_seen: now,
            last_seen: now,
            clock_offset: None,
            problem: String::new(),
            problem_here: String::new(),
        };
        Self { key, instance: instance.into(), over: CancellationToken::new(), state: Mutex::new(state) }
    }

    /// An agent that the collector before knew, with what files have of its rows.
    pub fn restore(key: u64, run: &Arc<str>, instance: &str, record: &v1::AgentRecord, all: &AllWritten) -> Self {
        let hello = record.hello.clone().unwrap_or_default();
        let agent = Self::new(
            key,
            instance,
            Arc::new(ProcessIdentity::of_hello(run, &hello)),
            AgentDescription::of_hello(hello),
        );
        if let Some(status) = &record.status {
            // Its late plans were noted when they came.
            let _ = agent.report(status.clone());
        }
        {
            let mut state = agent.state();
            state.presence = if record.bye { AgentConnection::Ended } else { AgentConnection::Lost };
            if let Some(ended) = &record.ended {
                state.life = ProcessLife::Ended(ended.clone());
            }
            state.done_seq = record.done_seq;
            state.durable_seq = record.done_seq;
            state.stored = record.stored.iter().map(|(table, rows)| (table.clone(), *rows)).collect();
            state.recorded = record.recorded.iter().map(|(table, rows)| (table.clone(), *rows)).collect();
            for lost in &record.lost {
                let loss = RowLoss { rows: lost.rows, last: lost.unix_ns };
                state.lost_here.insert((lost.table.clone(), lost.reason.clone().into()), loss);
            }
            for ((_, table), written) in all.iter().filter(|((of, _), _)| of == instance) {
                let ahead = written.ranges.iter().filter(|(_, last)| *last > record.done_seq);
                state.ahead.insert(table.clone(), ahead.copied().collect());
            }
            state.first_seen = record.first_seen;
            state.last_seen = record.last_seen;
            state.clock_offset = record.clock_offset_ns.map(clock::seconds);
        }
        agent
    }

    /// Locks the state. It is valid at every point, so a thread that panicked with the lock does no harm.
    pub fn state(&self) -> MutexGuard<'_, AgentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds a connection to the agent, and closes an older one. Returns the newest sequence number that need not be sent
    /// again. Nothing is sent down the connection before [`Agent::welcome`].
    pub fn connect(&self, connection: u64) -> u64 {
        let mut state = self.state();
        state.connection = connection;
        state.downlink = None;
        state.durable_seq
    }

    /// Sends the first frame down a connection that speaks for the agent: the agent expects no other before it. From now on the
    /// agent is live.
    pub fn welcome(&self, connection: u64, downlink: Downlink, welcome: v1::Welcome) -> Result<(), NotWelcomed> {
        let mut state = self.state();
        if state.connection != connection {
            return Err(NotWelcomed::Superseded);
        }
        let frame = CollectorFrame { frame: Some(collector_frame::Frame::Welcome(welcome)) };
        downlink.try_send(Ok(frame)).map_err(|_| NotWelcomed::Gone)?;
        state.presence = AgentConnection::Live;
        state.downlink = Some(downlink);
        Ok(())
    }

    /// Binds `connection`, which brings the leftovers of the dead process, and closes any other.
    pub fn take_over(&self, connection: u64) {
        let mut state = self.state();
        state.connection = connection;
        state.downlink = None;
        if state.presence == AgentConnection::Live {
            state.presence = AgentConnection::Lost;
        }
    }

    /// Ends a connection. Returns whether it still spoke for the agent.
    pub fn disconnect(&self, connection: u64, said_bye: bool) -> bool {
        let mut state = self.state();
        if state.connection != connection {
            return false;
        }
        state.presence = if said_bye { AgentConnection::Ended } else { AgentConnection::Lost };
        state.downlink = None;
        true
    }

    /// Sends a frame to the agent, without waiting.
    pub fn send(&self, frame: collector_frame::Frame) -> Result<(), FrameNotSent> {
        let state = self.state();
        let downlink = state.downlink.as_ref().ok_or(FrameNotSent)?;
        downlink.try_send(Ok(CollectorFrame { frame: Some(frame) })).map_err(|_| FrameNotSent)
    }

    /// Whether the agent is connected.
    pub fn is_live(&self) -> bool {
        self.state().presence == AgentConnection::Live
    }

    /// Takes a report, which is [cut](truncate_status). Returns late plans that no report had named before.
    pub fn report(&self, status: v1::Status) -> Vec<v1::LatePlan> {
        let now = clock::unix_ns();
        let mut state = self.state();
        let more = status.step.saturating_sub(state.step);
        state.pace.add_report(status.step, more, Instant::now());
        state.step = status.step;
        state.groups = status.groups;
        (state.last_record_ns, state.said_ns) = (status.last_record_ns, status.unix_ns);
        state.validates = status.validates;
        state.steps_per_second =
            if status.steps_per_second.is_finite() { status.steps_per_second.max(0.0) } else { 0.0 };
        state.reported = Instant::now();
        state.last_seen = now;
        state.clock_offset = Some(clock::seconds(status.unix_ns.saturating_sub(now)));
        state.problem = status.problem;
        state.layers = status.layers.into_iter().collect();
        state.settings = status.config.into_iter().collect();
        state.cost = status.cost;
        state.plan = (status.plan, status.plan_late);
        let more = usize::try_from(status.late_plans.saturating_sub(state.late_plans)).unwrap_or(usize::MAX);
        state.late_plans = state.late_plans.max(status.late_plans);
        let known = status.late.len().saturating_sub(more);
        for (table, rows) in status.recorded {
            state.recorded(&table, rows);
        }
        for drop in status.drops {
            let key = (drop.table, drop.reason);
            if state.lost_there.len() >= MAX_ENTRIES && !state.lost_there.contains_key(&key) {
                continue;
            }
            let loss = state.lost_there.entry(key).or_default();
            if drop.rows != loss.rows {
                *loss = RowLoss { rows: drop.rows, last: now };
            }
        }
        status.late.into_iter().skip(known).take(MAX_LATE).collect()
    }
}
