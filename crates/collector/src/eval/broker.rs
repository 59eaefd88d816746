//! [`SnippetBroker`]: checks calls, and starts a snippet for each.

use std::sync::Arc;
use std::time::Duration;

use probe_common::error::{Error, Result};
use probe_proto::v1::{At, EvalCall, EvalEvent, Outcome};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::context::EvalContext;
use super::log::{EvalLog, MAX_CODE_LENGTH, MAX_SESSION_NAME_LENGTH};
use super::printed::printed;
use super::routes::ReplyRoutes;
use super::snippet::SnippetRun;
use super::{complete, group};
use crate::registry::AgentRegistry;
use crate::server::peer::AuditedCaller;
use crate::truncate::truncate;

/// Default deadline, and the longest (seconds).
const DEFAULT_TIMEOUT: f64 = 30.0;
const MAX_TIMEOUT: f64 = 86_400.0;
/// Default limit of output, and the largest (bytes).
const DEFAULT_OUTPUT: u64 = 16 << 20;
const MAX_OUTPUT_BYTES: u64 = 64 << 20;
/// Most snippets that may run at a time.
const MAX_RUNNING: usize = 32;
/// Events between a snippet and the client's connection; more of them wait in the feed, which is bounded.
const MAX_QUEUED_EVENTS: usize = 16;

/// The events that a client gets.
pub type EvalEvents = mpsc::Receiver<Result<EvalEvent, Status>>;

/// Brings snippets to agents.
#[derive(Debug)]
pub struct SnippetBroker {
    context: Arc<EvalContext>,
    log: Arc<EvalLog>,
    running: Arc<Semaphore>,
}

impl SnippetBroker {
    pub fn new(run: Arc<str>, registry: Arc<AgentRegistry>, routes: Arc<ReplyRoutes>, log: Arc<EvalLog>) -> Self {
        let running = Arc::new(Semaphore::new(MAX_RUNNING));
        let context = Arc::new(EvalContext { run, registry, routes, turn: Arc::default() });
        Self { context, log, running }
    }

    /// Resolves when it is the caller's turn ([`EvalLog::wait_for_turn`]). Completions take no turn, as they are not recorded.
    pub async fn wait_for_turn(&self, call: &EvalCall, asked_by: &AuditedCaller) {
        if call.complete.is_empty() || !call.code.is_empty() {
            self.log.wait_for_turn(asked_by, &call.code).await;
        }
    }

    /// Starts a snippet, which is cancelled when the returned events are dropped. A call that came `over_tcp` runs only in
    /// processes that allow it.
    ///
    /// # Errors
    /// The call is not valid: nothing has run.
    pub fn ask(self: &Arc<Self>, call: EvalCall, asked_by: &AuditedCaller, over_tcp: bool) -> Result<EvalEvents> {
        // A completion runs no code of the client, so it has no row.
        let listed = call.complete.is_empty() || !call.code.is_empty();
        let mut entry = if listed { self.log.begin(asked_by, &call) } else { self.log.unlisted(asked_by, &call) };
        let started = self.prepare(call).and_then(|call| {
            let group = group::choose(&self.context.registry.live(), &call, &self.context.run)?;
            if over_tcp {
                group.check_over_tcp()?;
            }
            let permit = Arc::clone(&self.running).try_acquire_owned();
            let permit = permit.map_err(|_| Error::limit(format!("{MAX_RUNNING} snippets are running already")))?;
            Ok((call, group, permit))
        });
        let (call, group, permit) = match started {
            Ok(started) => started,
            Err(error) => {
                entry.finish(Outcome::Refused, &error.to_string());
                return Err(error);
            }
        };
        let (client, events) = mpsc::channel(MAX_QUEUED_EVENTS);
        let snippet = SnippetRun::new(Arc::clone(&self.context), call, over_tcp, group, entry, client);
        tokio::spawn(snippet.run(permit));
        Ok(events)
    }

    /// Runs a snippet of the collector's own in one process, and returns what it prints.
    ///
    /// # Errors
    /// The snippet could not begin, or failed; the text is one line.
    pub async fn printed(self: &Arc<Self>, call: EvalCall, asked_by: &AuditedCaller) -> Result<Vec<u8>> {
        let events = ReceiverStream::new(self.ask(call, asked_by, false)?);
        match printed(events).await? {
            (printed, Some(finished)) if finished.outcome() == Outcome::Ok => Ok(printed),
            (_, Some(finished)) => {
                let last = finished.error.lines().rev().find(|line| !line.trim().is_empty());
                Err(Error::failed(last.unwrap_or("the agent does not answer").trim()))
            }
            (_, None) => Err(Error::failed("the agent disconnected")),
        }
    }

    /// Whether a snippet is between two steps, where training waits for it.
    pub fn is_between_steps(&self) -> bool {
        self.context.turn.try_lock().is_err()
    }

    /// Records a call that was refused before it came to the broker.
    pub fn refused(&self, call: &EvalCall, asked_by: &AuditedCaller, why: &str) {
        self.log.refuse(asked_by, call, why);
    }

    fn prepare(&self, mut call: EvalCall) -> Result<EvalCall> {
        if !is_session_name(&call.session) {
            let session = truncate(call.session, MAX_SESSION_NAME_LENGTH);
            return Err(Error::usage(format!("'{session}' can't name a session"))
                .hint(format!("a name has letters, digits and . _ -, {MAX_SESSION_NAME_LENGTH} of them at most")));
        }
        if call.end_session && call.session.is_empty() {
            return Err(Error::usage("--end-session needs a session").hint("name it: --session NAME"));
        }
        if !call.complete.is_empty() {
            complete::check(&call)?;
            call.at = At::Now.into();
        }
        if call.code.trim().is_empty() && !call.end_session && call.complete.is_empty() {
            return Err(Error::usage("there is no code to run"));
        }
        if call.code.len() > MAX_CODE_LENGTH {
            return Err(Error::usage(format!(
                "the snippet has {} bytes; the limit is {MAX_CODE_LENGTH}",
                call.code.len()
            )));
        }
        if At::try_from(call.at).is_err() {
            return Err(Error::usage("the placement must be auto, now or step"));
        }
        if call.timeout_s == 0.0 {
            call.timeout_s = DEFAULT_TIMEOUT;
        }
        if !(call.timeout_s > 0.0 && call.timeout_s <= MAX_TIMEOUT) {
            let longest = Duration::from_secs_f64(MAX_TIMEOUT).as_secs();
            return Err(Error::usage(format!(
                "a deadline is above 0 and at most {longest} s, not {} s",
                call.timeout_s
            )));
        }
        if call.max_output == 0 {
            call.max_output = DEFAULT_OUTPUT;
        }
        if call.max_output > MAX_OUTPUT_BYTES {
            return Err(Error::usage(format!("output can be limited to at most {MAX_OUTPUT_BYTES} bytes")));
        }
        Ok(call)
    }
}

/// Whether a session can have this name; the empty name means no session.
fn is_session_name(name: &str) -> bool {
    name.len() <= MAX_SESSION_NAME_LENGTH && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}
