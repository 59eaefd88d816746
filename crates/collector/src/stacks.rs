//! Stacks of the run's processes on this node: which processes are read and how, and what is kept in `python.stacks`.

mod thread_rows;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use probe_common::clock;
use probe_common::error::{Error, ErrorKind, Result};
use probe_common::paths::host_name;
use probe_inspect::stacks::sampler::{self, SamplingPlan};
use probe_inspect::stacks::{InspectedProcess, StackReaders, agent, each, permission};
use probe_proto::v1::{At, EvalCall, ProcessStacks, StackMethod, StacksAnswer, StacksCall};
use probe_query::QueryEngine;
use probe_store::ProcessIdentity;

use self::thread_rows::ThreadRows;
use super::agent::AgentState;
use super::inspection_turns::{InspectionTurn, InspectionTurns};
use super::newest_number::newest_number;
use super::registry::AgentRegistry;
use super::self_ingest::SelfIngest;
use crate::eval::SnippetBroker;
use crate::server::peer::AuditedCaller;

/// How long an agent may take to say where its threads are (s).
const AGENT_SECONDS: f64 = 5.0;
/// Most output of an agent's answer that is read (bytes).
const AGENT_BYTES: u64 = 16 << 20;
/// Rows of one batch.
const ROWS: usize = 8192;

/// Reads stacks, or asks agents for them, and keeps them.
#[derive(Debug)]
pub(crate) struct StackCollector {
    registry: Arc<AgentRegistry>,
    broker: Arc<SnippetBroker>,
    readers: Arc<StackReaders>,
    ingest: SelfIngest,
    run: Arc<str>,
    host: String,
    turns: InspectionTurns,
    /// Number of the last capture.
    captures: AtomicI64,
}

/// A process of the run, and the identity of the rows of its stacks.
#[derive(Debug, Clone)]
pub(crate) struct RunProcess {
    pub identity: Arc<ProcessIdentity>,
    pub subject: InspectedProcess,
    /// The process at the other end of the agent's connection ([`AgentState::kernel_pid`]).
    pub kernel_pid: Option<i32>,
}

impl StackCollector {
    /// Begins with the number of captures that the run has already.
    pub(crate) fn new(
        registry: Arc<AgentRegistry>,
        broker: Arc<SnippetBroker>,
        ingest: SelfIngest,
        run: Arc<str>,
        captures: i64,
    ) -> Self {
        let host = host_name();
        let (readers, turns) = (Arc::default(), InspectionTurns::default());
        Self { registry, broker, readers, ingest, run, host, turns, captures: AtomicI64::new(captures) }
    }

    /// Waits for the turn of an inspection that a client asks for.
    ///
    /// # Errors
    /// Too many wait already.
    pub(crate) async fn wait_for_turn(&self, asked_by: &AuditedCaller) -> Result<InspectionTurn<'_>> {
        self.turns.wait_for_turn(&asked_by.who).await
    }

    /// Does what a client asks, when it is its turn.
    ///
    /// # Errors
    /// No agent is connected, or what is asked can't be done. Why one process could not be read is in its part of the answer.
    pub(crate) async fn ask(&self, call: StacksCall, asked_by: &AuditedCaller) -> Result<StacksAnswer> {
        // Samplings do not wait for the turn: they take long, and little of a process's time.
        let _turn = if call.duration_s == 0.0 { Some(self.wait_for_turn(asked_by).await?) } else { None };
        self.ask_without_turn(call, asked_by).await
    }

    /// Does what is asked at once, without a turn.
    ///
    /// # Errors
    /// Those of [`StackCollector::ask`].
    pub(crate) async fn ask_without_turn(&self, call: StacksCall, asked_by: &AuditedCaller) -> Result<StacksAnswer> {
        let method = StackMethod::try_from(call.method)
            .map_err(|_| Error::usage("unknown way to read stacks; known: auto, memory, paused, native, agent"))?;
        let chosen = self.choose(call.pid, call.rank)?;
        let unix_ns = clock::unix_ns();
        let processes = if call.duration_s == 0.0 {
            self.once(&chosen, method, asked_by).await?
        } else {
            let plan = SamplingPlan::new(call.duration_s, call.rate)?;
            if !matches!(method, StackMethod::Auto | StackMethod::Memory) {
                return Err(Error::usage("sampling reads processes while they run: it would stop them too often"));
            }
            self.sample(&chosen, plan, asked_by).await?
        };
        let capture = self.keep(&chosen, &processes, unix_ns)?;
        Ok(StacksAnswer { capture, unix_ns, processes, ..StacksAnswer::default() })
    }

    /// The live processes that are asked for, by rank.
    fn choose(&self, pid: Option<u32>, rank: Option<i32>) -> Result<Vec<RunProcess>> {
        let mut all: Vec<RunProcess> =
            self.registry.live().iter().map(|agent| RunProcess::new(&agent.state())).collect();
        if all.is_empty() {
            return Err(Error::unreachable(format!("no training process is connected to {}", self.run))
                .hint("probe PID stack reads a process that has no agent; probe list shows what there is"));
        }
        all.sort_by_key(|process| (process.subject.rank, process.subject.pid));
        let there: Vec<String> = all.iter().map(RunProcess::name).collect();
        all.retain(|process| {
            let same = |pid: u32| i64::from(pid) == i64::from(process.subject.pid);
            pid.is_none_or(same) && rank.is_none_or(|rank| process.subject.rank == Some(rank))
        });
        if all.is_empty() {
            let what = match (rank, pid) {
                (Some(rank), _) => format!("there is no live rank {rank} in {}", self.run),
                (None, pid) => format!("process {} is not connected to {}", pid.unwrap_or_default(), self.run),
            };
            return Err(Error::usage(what).hint(format!("available: {}", there.join(", "))));
        }
        Ok(all)
    }

    /// Reads those that can be read, all at one time, and asks the others.
    async fn once(
        &self,
        chosen: &[RunProcess],
        method: StackMethod,
        asked_by: &AuditedCaller,
    ) -> Result<Vec<ProcessStacks>> {
        let mut why_not = vec![None; chosen.len()];
        for (why_not, process) in why_not.iter_mut().zip(chosen) {
            *why_not = match method {
                StackMethod::Agent => Some(None),
                _ => self.unreadable(process).map(Some),
            };
        }
        let here = chosen.iter().zip(&why_not).filter(|(_, why_not)| why_not.is_none());
        let here: Vec<InspectedProcess> = here.map(|(process, _)| process.subject.clone()).collect();
        let (readers, how) =
            (Arc::clone(&self.readers), if method == StackMethod::Auto { StackMethod::Memory } else { method });
        let reading = tokio::task::spawn_blocking(move || readers.read_all(&here, how));
        let asked =
            futures::future::join_all(chosen.iter().zip(why_not).map(async |(process, why_not)| match why_not {
                None => None,
                Some(Some(error)) if method != StackMethod::Auto => Some(process.subject.failed(method, &error)),
                Some(error) => Some(self.ask_agent(&process.subject, error, asked_by).await),
            }));
        let (read, asked) = tokio::join!(reading, asked);
        let mut read = read.map_err(|error| Error::failed("stacks could not be read").because(error))?.into_iter();
        Ok(asked.into_iter().filter_map(|asked| asked.or_else(|| read.next())).collect())
    }

    pub(crate) fn readers(&self) -> &StackReaders {
        &self.readers
    }

    /// Why a process can't be read from here. Only the process that the kernel names is read: an agent can say any number, and a
    /// client that may query would then see the stacks of another process.
    pub(crate) fn unreadable(&self, RunProcess { subject, kernel_pid, .. }: &RunProcess) -> Option<Error> {
        if *subject.host != *self.host {
            let what = format!("it runs on {}, and this collector on {}", subject.host, self.host);
            return Some(Error::failed(what).hint("a collector on that node reads its memory"));
        }
        match *kernel_pid {
            None => {
                let what = "it is connected over TCP, where nothing but its word says which process it is";
                return Some(Error::failed(what).hint("agents of this node can use the collector's unix socket"));
            }
            Some(pid) if pid != subject.pid => {
                let what = format!("it has number {pid} here, and {} where it runs", subject.pid);
                return Some(Error::failed(what).hint(format!("probe {pid} stack reads it")));
            }
            Some(_) => {}
        }
        // Any error but a refusal is better explained by the reader.
        permission::check(subject.pid)
            .err()
            .filter(|error| matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unreachable))
    }

    /// Asks the agent, and puts into the answer why it was asked.
    async fn ask_agent(
        &self,
        subject: &InspectedProcess,
        why: Option<Error>,
        asked_by: &AuditedCaller,
    ) -> ProcessStacks {
        let mut stacks = match self.printed(subject, asked_by).await.and_then(|text| agent::understand(subject, &text))
        {
            Ok(stacks) => stacks,
            Err(error) => subject.failed(StackMethod::Agent, &error),
        };
        if let Some(why) = why {
            stacks.problem = match stacks.problem.as_str() {
                "" => format!("{why}, so the agent in the process was asked"),
                problem => format!("{why}, and the agent in the process does not say either: {problem}"),
            };
            stacks.hint = why.hint_text().unwrap_or_default().to_owned();
        }
        stacks
    }

    async fn printed(&self, subject: &InspectedProcess, asked_by: &AuditedCaller) -> Result<Vec<u8>> {
        let call = EvalCall {
            code: agent::CODE.into(),
            at: At::Now.into(),
            timeout_s: AGENT_SECONDS,
            max_output: AGENT_BYTES,
            pid: u32::try_from(subject.pid).ok(),
            ..EvalCall::default()
        };
        self.broker.printed(call, &asked_by.within("stack")).await
    }

    async fn sample(
        &self,
        chosen: &[RunProcess],
        plan: SamplingPlan,
        asked_by: &AuditedCaller,
    ) -> Result<Vec<ProcessStacks>> {
        let subjects: Vec<InspectedProcess> = chosen.iter().map(|process| process.subject.clone()).collect();
        let unreadable: Vec<Option<Error>> = chosen.iter().map(|process| self.unreadable(process)).collect();
        let readers = Arc::clone(&self.readers);
        let sampling = self.turns.sampling(&asked_by.who, plan.duration)?;
        let sampled = sampling.run(move |over| {
            each(&subjects, StackMethod::Memory, |subject| {
                let index = subjects.iter().position(|other| other == subject);
                match index.and_then(|index| unreadable[index].as_ref()) {
                    Some(error) => subject.failed(StackMethod::Memory, error),
                    None => sampler::sample(&readers, subject, plan, over),
                }
            })
        });
        sampled.await
    }

    /// Keeps a capture. Returns its number, or 0 where there was nothing to keep.
    fn keep(&self, chosen: &[RunProcess], processes: &[ProcessStacks], unix_ns: i64) -> Result<i64> {
        if processes.iter().all(|process| process.threads.is_empty()) {
            return Ok(0);
        }
        let capture = self.captures.fetch_add(1, Ordering::Relaxed) + 1;
        for process in processes {
            let origin = chosen.iter().find(|origin| {
                i64::from(origin.subject.pid) == i64::from(process.pid) && *origin.subject.host == process.host
            });
            let Some(origin) = origin else { continue };
            let mut threads = process.threads.iter().zip(0_i32..).peekable();
            while threads.peek().is_some() {
                self.ingest.store_rows(&origin.identity, |rows, texts| {
                    while rows.rows() < ROWS
                        && let Some((thread, number)) = threads.next()
                    {
                        ThreadRows { capture, unix_ns, process, thread, number }.push(rows, texts);
                    }
                })?;
            }
        }
        Ok(capture)
    }
}

/// The newest capture that the run's tables have.
///
/// # Errors
/// They can't be read.
pub(crate) async fn captures(engine: &QueryEngine) -> Result<i64> {
    newest_number(engine, "SELECT MAX(capture) FROM python.stacks").await
}

impl RunProcess {
    pub(crate) fn new(state: &AgentState) -> Self {
        let identity = Arc::clone(&state.identity);
        let subject = InspectedProcess { host: Arc::clone(&identity.host), pid: identity.pid, rank: identity.rank };
        Self { identity, subject, kernel_pid: state.kernel_pid }
    }

    fn name(&self) -> String {
        match self.subject.rank {
            Some(rank) => format!("rank {rank} (pid {})", self.subject.pid),
            None => format!("process {}", self.subject.pid),
        }
    }
}
