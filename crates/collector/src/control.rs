//! The Control service: what commands ask beside SQL.

use std::sync::Arc;

use probe_common::error::{Error, Result};
use probe_proto::v1::control_server::Control;
use probe_proto::v1::{AgentInfo, ConfigAnswer, ConfigCall, DescribeCall, Description, EvalCall, EvalEvent};
use probe_proto::v1::{CaptureCall, CaptureEvent, FinishCall, FinishProgress};
use probe_proto::v1::{HangAnswer, HangCall, StackMethod, StacksAnswer, StacksCall, WatchAnswer, WatchCall};
use probe_proto::{VERSION, config};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::captures::CaptureRunner;
use super::events::{RunEvent, Severity};
use super::hang::HangWatch;
use super::process_exits;
use super::shared::CollectorState;
use super::stack_sampling::StackSampling;
use super::stacks::StackCollector;
use crate::auth::TokenScope;
use crate::eval::SnippetBroker;
use crate::server::peer::{AuditedCaller, Caller};

/// The service that commands call.
#[derive(Debug, Clone)]
pub(crate) struct ControlService {
    pub shared: Arc<CollectorState>,
    pub broker: Arc<SnippetBroker>,
    pub stacks: Arc<StackCollector>,
    pub sampling: Arc<StackSampling>,
    pub hangs: Arc<HangWatch>,
    pub captures: Arc<CaptureRunner>,
    /// Snippets may come over TCP, from tokens that are for them.
    pub eval_over_tcp: bool,
}

impl ControlService {
    /// Refuses a call that acts on training where its caller may only read.
    fn require(&self, caller: &Caller, scope: TokenScope, what: &str) -> Result<()> {
        caller.require(scope, what).inspect_err(|error| self.note_refused(caller, error))
    }

    fn may_capture(&self, caller: &Caller) -> Result<(), Status> {
        self.require(caller, TokenScope::Eval, "switch torch.profiler on")?;
        if caller.over_tcp && !self.eval_over_tcp {
            let error = Error::denied("this collector makes no captures for a client that comes over TCP").hint(
                "it has to be started with --allow-eval; or ask on the collector's machine, over its unix socket",
            );
            self.note_refused(caller, &error);
            return Err(error.into());
        }
        Ok(())
    }

    fn note_refused(&self, caller: &Caller, error: &Error) {
        let message = format!("{} was refused: {error}", caller.asker.name());
        self.shared.events.record(RunEvent::new("refused", Severity::Warning, message));
    }
}

#[tonic::async_trait]
impl Control for ControlService {
    async fn describe(&self, _request: Request<DescribeCall>) -> Result<Response<Description>, Status> {
        let shared = &self.shared;
        let mut agents: Vec<AgentInfo> = shared
            .registry
            .all()
            .iter()
            .map(|agent| {
                let state = agent.state();
                AgentInfo {
                    host: state.identity.host.to_string(),
                    pid: u32::try_from(state.identity.pid).unwrap_or_default(),
                    rank: state.identity.rank,
                    world_size: state.identity.world_size,
                    state: state.presence.as_str().into(),
                    step: state.step,
                    steps_per_second: state.steps_per_second,
                    command: state.about.command.clone(),
                }
            })
            .collect();
        agents.sort_by_key(|agent| (agent.rank, agent.pid));
        Ok(Response::new(Description {
            collector_version: VERSION.into(),
            run: shared.run.to_string(),
            run_directory: shared.directory.display().to_string(),
            pid: std::process::id(),
            started_unix_ns: shared.started_unix_ns,
            command: shared.command.clone(),
            agents,
            listening: shared.listening.get().cloned().unwrap_or_default(),
        }))
    }

    type EvalStream = ReceiverStream<Result<EvalEvent, Status>>;

    async fn eval(&self, request: Request<EvalCall>) -> Result<Response<Self::EvalStream>, Status> {
        let caller = Caller::of(request.extensions());
        let call = request.into_inner();
        self.broker.wait_for_turn(&call, &caller.asker).await;
        if caller.over_tcp && !self.eval_over_tcp {
            let error = Error::denied("this collector runs no snippets that come over TCP").hint(
                "it has to be started with --allow-eval; or run it on the collector's machine, over its unix socket",
            );
            self.broker.refused(&call, &caller.asker, &error.to_string());
            return Err(error.into());
        }
        let events = self.broker.ask(call, &caller.asker, caller.over_tcp)?;
        Ok(Response::new(ReceiverStream::new(events)))
    }

    async fn config(&self, request: Request<ConfigCall>) -> Result<Response<ConfigAnswer>, Status> {
        let caller = Caller::of(request.extensions());
        let asked_by = caller.asker.clone();
        let values = request.into_inner().values;
        if !values.is_empty() {
            self.require(&caller, TokenScope::Eval, "change what is recorded")?;
        }
        if values.contains_key(config::CAPTURE_ON) {
            self.may_capture(&caller)?;
        }
        let set: Vec<String> = values.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let answer = self.shared.settings.set(values, &self.shared.registry).await?;
        if !set.is_empty() {
            let message = format!("{} asked for {}", asked_by.name(), set.join(" "));
            self.shared.events.record(RunEvent::new("config", Severity::Info, message));
        }
        Ok(Response::new(answer))
    }

    async fn watch(&self, request: Request<WatchCall>) -> Result<Response<WatchAnswer>, Status> {
        let caller = Caller::of(request.extensions());
        self.require(&caller, TokenScope::Eval, "change what is recorded")?;
        let call = request.into_inner();
        let answer = self.shared.settings.watch(call, &self.shared.registry.live())?;
        let message = format!(
            "{} asked for detail in {} steps and for operators in {}",
            caller.asker.name(),
            call.detail_steps,
            call.operator_steps
        );
        self.shared.events.record(RunEvent::new("config", Severity::Info, message));
        Ok(Response::new(answer))
    }

    async fn hang(&self, request: Request<HangCall>) -> Result<Response<HangAnswer>, Status> {
        let asked_by = AuditedCaller::of(request.extensions());
        Ok(Response::new(self.hangs.ask(&asked_by).await?))
    }

    async fn stacks(&self, request: Request<StacksCall>) -> Result<Response<StacksAnswer>, Status> {
        let caller = Caller::of(request.extensions());
        let call = request.into_inner();
        if call.main_threads {
            return Ok(Response::new(self.sampling.ask(&call).await?));
        }
        if matches!(call.method(), StackMethod::Paused | StackMethod::Native) {
            self.require(&caller, TokenScope::Eval, "stop training to read its stacks")?;
        }
        Ok(Response::new(self.stacks.ask(call, &caller.asker).await?))
    }

    type CaptureStream = ReceiverStream<Result<CaptureEvent, Status>>;

    async fn capture(&self, request: Request<CaptureCall>) -> Result<Response<Self::CaptureStream>, Status> {
        let caller = Caller::of(request.extensions());
        self.may_capture(&caller)?;
        let events = self.captures.ask(request.into_inner(), caller).await?;
        Ok(Response::new(ReceiverStream::new(events)))
    }

    type FinishStream = ReceiverStream<Result<FinishProgress, Status>>;

    async fn finish(&self, request: Request<FinishCall>) -> Result<Response<Self::FinishStream>, Status> {
        let caller = Caller::of(request.extensions());
        if caller.over_tcp {
            let error = Error::denied("a run is ended by its launcher, over the unix socket, and not over TCP");
            self.note_refused(&caller, &error);
            return Err(error.into());
        }
        let call = request.into_inner();
        process_exits::take_wait_status(&self.shared, call.pid, call.wait_status);
        Ok(Response::new(ReceiverStream::new(self.shared.finish.note_command_end(call.wait_status))))
    }
}
