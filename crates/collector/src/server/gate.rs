//! The gate before all services: it decides which callers may use which service, and records the calls that it refuses.
//!
//! No service can be reached without passing it. The path of a call decides what the call needs, and an unknown path needs as
//! much as a query.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use probe_common::error::{Error, Result};
use probe_proto::v1::EvalCall;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::audit::QueryAudit;
use super::peer::{AuditedCaller, Caller, ConnectionPeer};
use super::refused::{self, RefusedText};
use super::revoked::RevocableBody;
use crate::auth::{AuthFailures, TokenGrant, TokenScope, TokenScopes, Tokens};
use crate::eval::EvalLog;
use crate::events::{RunEvent, RunEvents, Severity};

/// How often the file of tokens is read, so that running calls notice revoked tokens.
pub(super) const REFRESH: Duration = Duration::from_secs(1);

/// The state of the gate.
#[derive(Debug)]
pub struct AccessChecks {
    tokens: Arc<Tokens>,
    failures: Arc<AuthFailures>,
    queries: Arc<QueryAudit>,
    evals: Arc<EvalLog>,
    events: Arc<RunEvents>,
}

/// The service that is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CalledService {
    Agent,
    Eval,
    Control,
    Query,
}

impl CalledService {
    fn of(path: &str) -> Self {
        match path {
            "/probe.v1.Control/Eval" => Self::Eval,
            path if path.starts_with("/probe.v1.Agent/") => Self::Agent,
            path if path.starts_with("/probe.v1.Control/") => Self::Control,
            _ => Self::Query,
        }
    }

    const fn needs(self) -> TokenScope {
        match self {
            Self::Agent => TokenScope::Ingest,
            Self::Eval => TokenScope::Eval,
            Self::Control | Self::Query => TokenScope::Query,
        }
    }

    /// Completes "may not …".
    const fn what(self) -> &'static str {
        match self {
            Self::Agent => "send rows",
            Self::Eval => "run code in the training process",
            Self::Control => "ask what is live",
            Self::Query => "query",
        }
    }
}

impl AccessChecks {
    pub fn new(
        tokens: Arc<Tokens>,
        queries: Arc<QueryAudit>,
        evals: Arc<EvalLog>,
        events: Arc<RunEvents>,
    ) -> Arc<Self> {
        Arc::new(Self { tokens, failures: Arc::default(), queries, evals, events })
    }

    /// The events, which have refused callers.
    pub(super) fn events(&self) -> &Arc<RunEvents> {
        &self.events
    }

    /// Ends running calls when their token is revoked, for as long as it is polled.
    pub(super) async fn watch_tokens(&self) {
        loop {
            tokio::time::sleep(REFRESH).await;
            self.tokens.refresh();
        }
    }

    /// Lets a call in, or returns the error. The returned token is cancelled when the call has to end.
    async fn admit(&self, request: &mut http::Request<Body>) -> Result<Option<CancellationToken>> {
        let called = CalledService::of(request.uri().path());
        let peer = ConnectionPeer::of(request.extensions());
        if peer.is_ours() {
            let (asker, gone) = (peer.asker("unix"), CancellationToken::new());
            let caller = Caller { asker, scopes: TokenScopes::ALL, over_tcp: false, gone };
            request.extensions_mut().insert(caller);
            return Ok(None);
        }
        let shown = request.headers().get(http::header::AUTHORIZATION);
        let (who, why) = match (&peer, shown) {
            (ConnectionPeer::Socket { .. }, _) => ("unix", "this collector's socket is for its own user and root"),
            (ConnectionPeer::Tcp(_), None) => ("no token", "this endpoint asks for a token"),
            (ConnectionPeer::Tcp(_), Some(shown)) => match self.tokens.find(shown.as_bytes()) {
                Some(grant) => return self.admit_token(called, &peer, grant, request).await.map(Some),
                None => ("unknown token", "the token is none of this collector's"),
            },
        };
        let asker = peer.asker(who);
        let failure = self.failures.add(peer.origin(), Instant::now());
        let count = failure.count;
        if failure.is_noted() {
            // The call's body is not read or kept, because its sender is unknown.
            let why = if count == 1 { why.to_owned() } else { format!("{why} ({count} attempts from there)") };
            self.note(called, &asker, &RefusedText::default(), &why);
        }
        let Some(delay) = failure.delay else {
            return Err(Error::limit(format!("too many attempts without a valid token ({count})"))
                .hint("try again in some seconds"));
        };
        tokio::time::sleep(delay).await;
        let hint = match peer {
            ConnectionPeer::Socket { .. } => "ask as the user who started it",
            ConnectionPeer::Tcp(_) => "name a file that probe token make wrote: --token-file FILE, or PROBE_TOKEN_FILE",
        };
        Err(Error::denied(why).hint(hint))
    }

    async fn admit_token(
        &self,
        called: CalledService,
        peer: &ConnectionPeer,
        grant: TokenGrant,
        request: &mut http::Request<Body>,
    ) -> Result<CancellationToken> {
        let asker = peer.asker(&format!("token:{}", grant.name));
        let caller = Caller { asker, scopes: grant.scopes, over_tcp: true, gone: grant.gone.clone() };
        if let Err(error) = caller.require(called.needs(), called.what()) {
            let text = match called {
                CalledService::Eval | CalledService::Query => refused::text(request).await,
                CalledService::Agent | CalledService::Control => RefusedText::default(),
            };
            // A caller that may not ask must not crowd out the rows of those that may.
            match called {
                CalledService::Eval => self.evals.wait_for_turn(&caller.asker, &text.0).await,
                CalledService::Agent | CalledService::Control | CalledService::Query => {
                    self.queries.wait_for_turn(&caller.asker, &text.0).await
                }
            }
            self.note(called, &caller.asker, &text, &error.to_string());
            return Err(error);
        }
        request.extensions_mut().insert(caller);
        Ok(grant.gone)
    }

    fn note(&self, called: CalledService, asker: &AuditedCaller, text: &RefusedText, why: &str) {
        match called {
            CalledService::Query => self.queries.refuse(asker, &text.0, why),
            CalledService::Eval => {
                let call = EvalCall { code: text.0.clone(), ..EvalCall::default() };
                self.evals.refuse(asker, &call, why);
            }
            CalledService::Agent | CalledService::Control => {
                let message = format!("{} was refused: {why}", asker.name());
                self.events.record(RunEvent::new("refused", Severity::Warning, message));
            }
        }
    }
}

/// Puts the gate before services.
#[derive(Debug, Clone)]
pub(super) struct GateLayer(pub(super) Arc<AccessChecks>);

impl<S> Layer<S> for GateLayer {
    type Service = GatedService<S>;

    fn layer(&self, inner: S) -> GatedService<S> {
        GatedService { keeper: Arc::clone(&self.0), inner }
    }
}

/// Services behind the gate.
#[derive(Debug, Clone)]
pub(super) struct GatedService<S> {
    keeper: Arc<AccessChecks>,
    inner: S,
}

impl<S> Service<http::Request<Body>> for GatedService<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let keeper = Arc::clone(&self.keeper);
        // `poll_ready` holds for this instance, so it is called, and its clone stays for the next call.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        Box::pin(async move {
            match keeper.admit(&mut request).await {
                Ok(None) => inner.call(request).await,
                Ok(Some(gone)) => Ok(inner.call(request).await?.map(|body| Body::new(RevocableBody::new(body, gone)))),
                Err(error) => Ok(Status::from(error).into_http()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_needs_as_much_as_a_query() {
        for (path, needs) in [
            ("/probe.v1.Agent/Session", TokenScope::Ingest),
            ("/probe.v1.Control/Eval", TokenScope::Eval),
            ("/probe.v1.Control/Describe", TokenScope::Query),
            ("/probe.v1.Control/New", TokenScope::Query),
            ("/arrow.flight.protocol.FlightService/DoGet", TokenScope::Query),
            ("/", TokenScope::Query),
            ("/probe.v1.Control//Eval", TokenScope::Query),
        ] {
            assert_eq!(CalledService::of(path).needs(), needs, "{path}");
        }
    }
}
