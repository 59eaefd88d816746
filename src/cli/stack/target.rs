//! The target whose stacks are read: a run, by its collector; or one process that no collector knows, by this command.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use probe_client::Client;
use probe_client::discover;
use probe_client::endpoint::Endpoint;
use probe_common::error::{Error, ErrorKind, Result};
use probe_common::paths::host_name;
use probe_inspect::stacks::sampler::{self, SamplingPlan};
use probe_inspect::stacks::{InspectedProcess, StackReaders};
use probe_proto::v1::{StackMethod, StacksAnswer, StacksCall};

use super::super::connect::ConnectOptions;
use super::recorded;

/// The target of `probe stack`: a run through its collector, or one process.
pub(in crate::cli) enum StackTarget {
    Run { client: Box<Client>, name: String },
    Process { subject: InspectedProcess, name: String, readers: Arc<StackReaders> },
}

impl StackTarget {
    /// Finds ENDPOINT.
    pub(in crate::cli) async fn find(endpoint: Option<&str>, connection: &ConnectOptions) -> Result<Self> {
        let target = match discover::find(endpoint).await {
            Ok(target) => target,
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                let parsed = endpoint.and_then(|text| Endpoint::parse(text).ok());
                let Some(Endpoint::Pid(pid)) = parsed else { return Err(error) };
                return Self::process(pid).ok_or(error);
            }
            Err(error) => return Err(error),
        };
        let client = Client::open(&target, connection.token_file()).await?;
        Ok(Self::Run { client: Box::new(client), name: target.location.name() })
    }

    /// A process of this machine.
    fn process(pid: u32) -> Option<Self> {
        let number = i32::try_from(pid).ok()?;
        if !Path::new(&format!("/proc/{pid}")).exists() {
            return None;
        }
        let subject = InspectedProcess { host: host_name().into(), pid: number, rank: None };
        Some(Self::Process { subject, name: format!("process {pid}, which has no agent"), readers: Arc::default() })
    }

    /// Whether its processes can be read, as those of a run that has ended can't.
    pub(in crate::cli) fn is_live(&self) -> bool {
        match self {
            Self::Run { client, .. } => client.is_live(),
            Self::Process { .. } => true,
        }
    }

    /// The name of the target, for people.
    pub(in crate::cli) fn name(&self) -> &str {
        match self {
            Self::Run { name, .. } | Self::Process { name, .. } => name,
        }
    }

    /// Reads the stacks of a process, or asks the run's collector for them. Of a run that has ended, those that were read last.
    pub(in crate::cli) async fn stacks(&mut self, call: StacksCall) -> Result<StacksAnswer> {
        let (subject, readers) = match self {
            // Sampling, and a way to read them, are of what runs now.
            Self::Run { client, .. }
                if !client.is_live() && call.duration_s == 0.0 && call.method() == StackMethod::Auto =>
            {
                return recorded::newest(client, call.rank).await;
            }
            Self::Run { client, .. } => return client.stacks(call).await,
            Self::Process { subject, readers, .. } => (subject.clone(), Arc::clone(readers)),
        };
        if call.rank.is_some() {
            return Err(Error::usage(format!("process {} has no agent, so its rank is not known", subject.pid)));
        }
        let method = match StackMethod::try_from(call.method).unwrap_or_default() {
            StackMethod::Auto => StackMethod::Memory,
            StackMethod::Agent => return Err(Error::usage(format!("process {} has no agent to ask", subject.pid))),
            method => method,
        };
        let plan = (call.duration_s > 0.0).then(|| SamplingPlan::new(call.duration_s, call.rate)).transpose()?;
        let now = jiff::Timestamp::now().as_nanosecond();
        let reading = tokio::task::spawn_blocking(move || match plan {
            Some(plan) => sampler::sample(&readers, &subject, plan, &AtomicBool::new(false)),
            None => readers.read(&subject, method),
        });
        let process = reading.await.map_err(|error| Error::failed("it could not be read").because(error))?;
        let unix_ns = i64::try_from(now).unwrap_or_default();
        Ok(StacksAnswer { unix_ns, processes: vec![process], ..StacksAnswer::default() })
    }
}
