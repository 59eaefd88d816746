//! [`Collector`]: starts all services of a run.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use probe_common::clock;
use probe_common::error::{Error, Result};
use probe_common::paths::{ListenAddress, ProbeDirectories};
use probe_proto::MAX_FRAME;
use probe_proto::credentials::CertificatePin;
use probe_proto::v1::agent_server::AgentServer;
use probe_proto::v1::control_server::ControlServer;
use probe_query::{QueryEngine, QueryLimits};
use probe_store::journal::{self, Journal};
use probe_store::runs::{RunInfo, RunReservation};
use probe_store::{Store, StoreWriter, SystemTable};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::service::Routes as Services;

use super::background::keep_running;
use super::captures::{CaptureRunner, SlowStepCaptures};
use super::events::RunEvents;
use super::finish::RunFinish;
use super::recovery::{self, RecoveredRun};
use super::registry::AgentRegistry;
use super::settings::SharedSettings;
use super::shared::CollectorState;
use super::stack_sampling::StackSampling;
use super::{control, governor, gpus, hang, idle, self_ingest, service, stack_sampling, stacks};
use crate::auth::{TcpProtection, TokenFile, Tokens};
use crate::eval::{EvalLog, SnippetBroker};
use crate::server::{AccessChecks, BoundListener, ListenerSecurity, QueryAudit, Servers, flight};

/// What a collector is started with.
#[derive(Debug, Clone)]
pub struct CollectorOptions {
    /// The run's name: without a number, or with it where a run is to go on.
    pub run: String,
    /// What `probe run` starts; empty for `probe serve`.
    pub command: String,
    /// Where to listen, beside the run's own socket in the runtime directory, which is always there.
    pub listen: Vec<ListenAddress>,
    /// Go on with this run ("gpt@2"), whose collector died, instead of beginning one.
    pub resume: bool,
    /// Where a run of this name is live, take another name: "gpt-2".
    pub may_rename: bool,
    /// Bytes that rows may take in memory.
    pub memory: usize,
    /// Bytes that the run may take on disk.
    pub disk: u64,
    /// How TCP is protected; it needs a token in any case.
    pub protection: TcpProtection,
    /// Snippets may come over TCP.
    pub allow_eval: bool,
}

/// A running collector. If it is dropped without [`Collector::stop`], it writes nothing, and its run counts as lost.
#[derive(Debug)]
pub struct Collector {
    pub(super) shared: Arc<CollectorState>,
    pub(super) keeper: StoreWriter,
    pub(super) system: Vec<Arc<dyn SystemTable>>,
    engine: Arc<QueryEngine>,
    pub(super) reservation: RunReservation,
    pub(super) info: RunInfo,
    pub(super) sampling: Arc<StackSampling>,
    pub(super) servers: Servers,
    endpoint: ListenAddress,
    pin: Option<CertificatePin>,
    /// Ends the streams of agents when it is dropped.
    _stopping: DropGuard,
}

impl Collector {
    /// Takes the run's directory, listens and serves. Call it within a tokio runtime.
    ///
    /// # Errors
    /// A run of that name is live; the name, the tokens, the certificate or an address to listen at is refused; the file
    /// system's.
    pub async fn start(options: CollectorOptions) -> Result<Self> {
        Self::start_in(&ProbeDirectories::from_environment()?, options).await
    }

    /// Starts a collector with run directories and sockets below `directories`.
    ///
    /// # Errors
    /// As [`Collector::start`].
    pub async fn start_in(directories: &ProbeDirectories, options: CollectorOptions) -> Result<Self> {
        let limits = QueryLimits::of_collector(options.memory)?;
        let hang_after = hang::stopped_after()?;
        let gpu_interval = gpus::interval()?;
        let samples_stacks = stack_sampling::is_on()?;
        let file = TokenFile::of(directories);
        let over_tcp = options.listen.iter().any(|listen| matches!(listen, ListenAddress::Tcp(_)));
        let locks = ListenerSecurity {
            has_tokens: over_tcp && !file.read()?.is_empty(),
            insecure: options.protection == TcpProtection::InsecureNoTls,
            identity: if over_tcp { options.protection.identity(directories)? } else { None },
        };
        let reservation = match (options.resume, options.may_rename) {
            (true, _) => RunReservation::resume(directories, &options.run)?,
            (false, true) => RunReservation::reserve_free(directories, &options.run)?,
            (false, false) => RunReservation::reserve(directories, &options.run)?,
        };
        let run = reservation.name().to_string();
        let run: Arc<str> = run.into();
        let listeners = match bind(directories, &run, &options.listen, &locks).await {
            Ok(listeners) => listeners,
            Err(error) => {
                reservation.abandon();
                return Err(error);
            }
        };
        let directory = reservation.directory().to_owned();
        let (info, resumed) = match options.resume {
            true => {
                let before = RunInfo::read(&directory)?;
                let event = recovery::resumed_event(before.state);
                (before.resumed(), Some(event))
            }
            false => (RunInfo::begin(reservation.name(), &options.command), None),
        };
        if let Err(error) = info.write(&directory) {
            reservation.abandon();
            return Err(error);
        }
        // Queries and rows share one budget.
        let memory = options.memory.saturating_sub(limits.memory).max(options.memory / 2);
        let name = Arc::clone(&run);
        let recovering = tokio::task::spawn_blocking(move || begin(&directory, &name, memory, options.disk));
        let OpenedStore { store, registry, log, events, queries, journal, keeper } =
            recovering.await.unwrap_or_else(|error| Err(Error::caused(error)))?;
        let shared = Arc::new(CollectorState {
            run,
            directory: reservation.directory().to_owned(),
            command: info.command.clone(),
            started_unix_ns: clock::unix_ns(),
            listening: OnceLock::from(listeners.iter().map(|bound| bound.listen().to_string()).collect::<Vec<_>>()),
            store: Arc::clone(&store),
            journal,
            registry,
            events,
            settings: SharedSettings::default(),
            routes: Arc::default(),
            finish: RunFinish::default(),
            stopping: CancellationToken::new(),
        });
        if let Some(event) = resumed {
            shared.events.record(event);
            // It is on disk before the first client is answered, so that it is kept if this collector is killed at once.
            let journal = Arc::clone(&shared.journal);
            let synced = tokio::task::spawn_blocking(move || journal.sync());
            // The journal itself reports a disk that takes nothing.
            drop(synced.await.map_err(Error::caused)?);
        }
        let registry = Arc::clone(&shared.registry);
        let system = recovery::system_tables(&shared.run, &registry, &store, &log, &shared.events, &queries);
        let engine = Arc::new(QueryEngine::with_limits(store, system.clone(), limits)?);
        let events = Arc::clone(&shared.events);
        let gate = AccessChecks::new(Tokens::new(file), Arc::clone(&queries), Arc::clone(&log), events);
        let broker = Arc::new(SnippetBroker::new(Arc::clone(&shared.run), registry, Arc::clone(&shared.routes), log));
        let agent = service::AgentService(Arc::clone(&shared));
        let captures = if options.resume { stacks::captures(&engine).await? } else { 0 };
        let keep = |table| {
            let (store, journal) = (Arc::clone(&shared.store), Arc::clone(&shared.journal));
            self_ingest::SelfIngest::new(table, store, journal, Arc::clone(&shared.registry))
        };
        let stacks = stacks::StackCollector::new(
            Arc::clone(&shared.registry),
            Arc::clone(&broker),
            keep(&probe_proto::tables::stacks::TABLE),
            Arc::clone(&shared.run),
            captures,
        );
        let stacks = Arc::new(stacks);
        let sampling = StackSampling::begin(
            Arc::clone(&shared.registry),
            Arc::clone(&stacks),
            keep(&probe_proto::tables::stack_samples::TABLE),
            Arc::clone(&shared.events),
            samples_stacks,
        )?;
        let sampling = Arc::new(sampling);
        let hangs = Arc::new(hang::HangWatch {
            registry: Arc::clone(&shared.registry),
            stacks: Arc::clone(&stacks),
            broker: Arc::clone(&broker),
            events: Arc::clone(&shared.events),
        });
        if let Some(after) = hang_after {
            let (hangs, shared) = (Arc::clone(&hangs), Arc::clone(&shared));
            tokio::spawn(async move {
                let watch = || Arc::clone(&hangs).watch(after, shared.stopping.clone());
                keep_running("the watch for hangs", &shared.events, watch).await;
            });
        }
        if let Some(interval) = gpu_interval {
            let (registry, events) = (Arc::clone(&shared.registry), Arc::clone(&shared.events));
            let ingest = keep(&probe_proto::tables::gpu_metrics::TABLE);
            let sampler = Arc::new(gpus::GpuSampler::new(registry, events, ingest, Arc::clone(&shared.run)));
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let watch = || Arc::clone(&sampler).watch(interval, shared.stopping.clone());
                keep_running("the reading of GPUs", &shared.events, watch).await;
            });
        }
        let eval_over_tcp = options.allow_eval;
        let captures = CaptureRunner::new(Arc::clone(&shared), Arc::clone(&broker), Arc::clone(&engine));
        let captures = Arc::new(captures);
        let when_slow = SlowStepCaptures::new(Arc::clone(&shared), Arc::clone(&captures));
        let control = control::ControlService {
            shared: Arc::clone(&shared),
            broker,
            stacks,
            sampling: Arc::clone(&sampling),
            hangs,
            captures,
            eval_over_tcp,
        };
        let services = Services::new(AgentServer::new(agent).max_decoding_message_size(MAX_FRAME))
            .add_service(ControlServer::new(control))
            .add_service(flight::service(Arc::clone(&engine), queries));
        // The last socket that was asked for, or otherwise the run's own.
        let unix =
            listeners.iter().rev().map(BoundListener::listen).find(|listen| matches!(listen, ListenAddress::Unix(_)));
        let endpoint = unix.ok_or_else(|| Error::failed("no socket was bound"))?;
        let servers = Servers::start(listeners, &services, &gate);
        let _stopping = shared.stopping.clone().drop_guard();
        tokio::spawn({
            let (shared, sampling) = (Arc::clone(&shared), Arc::clone(&sampling));
            async move {
                let govern = || governor::run(&shared, &when_slow, &sampling);
                keep_running("the choice of detail", &shared.events, govern).await;
            }
        });
        let pin = locks.identity.map(|identity| identity.pin);
        Ok(Self { shared, keeper, system, engine, reservation, info, sampling, servers, endpoint, pin, _stopping })
    }

    /// The run with its number: "gpt@2".
    pub fn run(&self) -> &str {
        &self.shared.run
    }

    /// Where agents and commands of this machine reach the collector: "unix:/…".
    pub fn endpoint(&self) -> String {
        self.endpoint.to_string()
    }

    /// All addresses where the collector listens.
    pub fn listening(&self) -> &[String] {
        self.shared.listening.get().map_or(&[], Vec::as_slice)
    }

    /// SHA-256 of the certificate that the collector shows over TCP; None without TLS.
    pub fn pin(&self) -> Option<&CertificatePin> {
        self.pin.as_ref()
    }

    /// The engine that answers SQL.
    pub fn engine(&self) -> &Arc<QueryEngine> {
        &self.engine
    }

    /// The events of the run, to which callers may add.
    pub fn events(&self) -> &Arc<RunEvents> {
        &self.shared.events
    }

    /// Agents that are or were connected.
    pub fn agent_count(&self) -> usize {
        self.shared.registry.all().len()
    }

    /// Resolves when the collector is not needed any more: there was an agent and none has been live for `quiet`, or none came
    /// within `first`.
    pub async fn idle(&self, quiet: Duration, first: Duration) {
        idle::wait(&self.shared.registry, quiet, first).await;
    }

    /// Resolves when the launcher says that the command has ended, with its exit status in shell form (128 + signal).
    pub async fn command_ended(&self) -> i32 {
        self.shared.finish.command_ended().await
    }
}

/// The parts of a collector that keep rows.
pub(super) struct OpenedStore {
    pub(super) store: Arc<Store>,
    pub(super) registry: Arc<AgentRegistry>,
    pub(super) log: Arc<EvalLog>,
    pub(super) events: Arc<RunEvents>,
    pub(super) queries: Arc<QueryAudit>,
    pub(super) journal: Arc<Journal>,
    pub(super) keeper: StoreWriter,
}

/// Opens the parts that keep rows, and loads existing rows (none for a new run).
pub(super) fn begin(directory: &Path, run: &Arc<str>, memory: usize, disk: u64) -> Result<OpenedStore> {
    let recovered = recovery::recover(directory, run, disk)?;
    let RecoveredRun { store, registry, log, events, queries, begin, remarks, left_over } = recovered;
    for remark in remarks {
        tracing::warn!("{run}: {remark}");
    }
    left_over.set_aside()?;
    let journal = Journal::begin(&journal::directory(directory), begin)?;
    log.attach_journal(Arc::clone(&journal));
    events.attach_journal(Arc::clone(&journal));
    queries.attach_journal(Arc::clone(&journal));
    let keeper = store.start_writer(directory, Arc::clone(&journal), memory, disk)?;
    if journal.overdue().is_some() {
        // What the collector before has left is past the journal's share of the disk: its rows become files first.
        // Where they can't, the keeper's thread says so.
        let _ = store.keep_up(true);
    }
    Ok(OpenedStore { store, registry, log, events, queries, journal, keeper })
}

/// Binds the run's own socket first, then the addresses in `listen`.
async fn bind(
    directories: &ProbeDirectories,
    run: &str,
    listen: &[ListenAddress],
    locks: &ListenerSecurity,
) -> Result<Vec<BoundListener>> {
    directories.checked_runtime()?;
    let own = ListenAddress::Unix(directories.socket_for(run));
    let mut listeners = Vec::with_capacity(1 + listen.len());
    for listen in std::iter::once(&own).chain(listen.iter().filter(|listen| **listen != own)) {
        listeners.push(BoundListener::bind(listen, locks).await?);
    }
    Ok(listeners)
}
