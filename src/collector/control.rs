//! The Control service: what people's commands ask beside SQL.

use std::sync::Arc;

use probe_proto::VERSION;
use probe_proto::v1::control_server::Control;
use probe_proto::v1::{AgentInfo, ConfigAnswer, ConfigCall, DescribeCall, Description, EvalCall, EvalEvent};
use probe_proto::v1::{HangAnswer, HangCall, StacksAnswer, StacksCall};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

use super::Shared;
use super::events::{Event, Severity};
use super::hang::Hangs;
use super::stacks::Stacks;
use crate::error::Error;
use crate::eval::Broker;
use crate::server::peer::Asker;

/// What commands speak with.
#[derive(Debug, Clone)]
pub(crate) struct ControlService {
    pub(crate) shared: Arc<Shared>,
    pub(crate) broker: Arc<Broker>,
    pub(crate) stacks: Arc<Stacks>,
    pub(crate) hangs: Arc<Hangs>,
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
        let asked_by = Asker::of(request.extensions());
        let over_a_socket = request.extensions().get::<UdsConnectInfo>().is_some();
        let call = request.into_inner();
        if !over_a_socket {
            let why = "eval runs code in the training process and is not allowed over TCP";
            self.broker.refused(&call, &asked_by, why);
            return Err(Error::denied(why)
                .hint("run it on the machine that the collector is on, where the endpoint is a socket")
                .into());
        }
        let events = self.broker.ask(call, &asked_by)?;
        Ok(Response::new(ReceiverStream::new(events)))
    }

    async fn config(&self, request: Request<ConfigCall>) -> Result<Response<ConfigAnswer>, Status> {
        let asked_by = Asker::of(request.extensions());
        let values = request.into_inner().values;
        let set: Vec<String> = values.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let answer = self.shared.settings.set(values, &self.shared.registry).await?;
        if !set.is_empty() {
            let message = format!("{} asked for {}", asked_by.name(), set.join(" "));
            self.shared.events.note(Event::new("config", Severity::Info, message));
        }
        Ok(Response::new(answer))
    }

    async fn hang(&self, request: Request<HangCall>) -> Result<Response<HangAnswer>, Status> {
        let asked_by = Asker::of(request.extensions());
        Ok(Response::new(self.hangs.ask(&asked_by).await?))
    }

    async fn stacks(&self, request: Request<StacksCall>) -> Result<Response<StacksAnswer>, Status> {
        let asked_by = Asker::of(request.extensions());
        Ok(Response::new(self.stacks.take(request.into_inner(), &asked_by).await?))
    }
}
