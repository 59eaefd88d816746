//! A live collector: one channel, Flight SQL for queries and the control service for everything else.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::FlightSqlServiceClient;
use futures::{StreamExt, TryStreamExt};
use hyper_util::rt::TokioIo;
use probe_collector::server::flight::{self, QueryRequest};
use probe_common::error::{Error, ErrorKind, Result};
use probe_proto::credentials::{Credentials, CredentialsProblem, TcpSecurity};
use probe_proto::v1::{self, control_client::ControlClient};
use probe_proto::{env, tcp};
use tokio::net::UnixStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tower::service_fn;

use probe_query::Parameters;

use crate::answer::{AnswerBounds, QueryAnswer};
use crate::endpoint::{RunLocation, live_hint};

/// The hint for a connection without TLS that breaks.
const NO_PIN: &str = "if it uses TLS, its pin has to be in the token file, or in PROBE_TLS_PIN";
/// How long a collector may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct LiveCollector {
    channel: Channel,
    pid: Option<u32>,
    authorization: Option<MetadataValue<Ascii>>,
    /// Whether this is TCP without TLS; if the connection breaks, the collector may expect TLS.
    plain: bool,
}

impl LiveCollector {
    pub(super) async fn connect(location: &RunLocation, pid: Option<u32>, token_file: Option<&Path>) -> Result<Self> {
        // The name is for the HTTP/2 header only; the connector opens the connection.
        let endpoint = Endpoint::from_static("http://collector").connect_timeout(CONNECT);
        let (channel, authorization, plain) = match location {
            RunLocation::Tcp(address) => {
                let (credentials, way) = credentials(address, token_file)?;
                let plain = !matches!(way, TcpSecurity::Tls(_));
                let address = address.clone();
                let connector = service_fn(move |_| {
                    let (address, way) = (address.clone(), way.clone());
                    async move { tcp::connect(&address, &way).await.map(TokioIo::new) }
                });
                (endpoint.connect_with_connector(connector).await, Some(authorization(&credentials)?), plain)
            }
            RunLocation::Socket(path) | RunLocation::Directory(path) => {
                let path = path.clone();
                let connector = service_fn(move |_| {
                    let path = path.clone();
                    async move {
                        let stream = UnixStream::connect(path).await?;
                        check_owner(&stream)?;
                        Ok::<_, std::io::Error>(TokioIo::new(stream))
                    }
                });
                (endpoint.connect_with_connector(connector).await, None, false)
            }
        };
        let channel = channel.map_err(|error| not_connected(location, &error, plain))?;
        Ok(Self { channel, pid, authorization, plain })
    }

    pub(super) async fn query(
        &mut self,
        sql: &str,
        bounds: AnswerBounds,
        parameters: &Parameters,
    ) -> Result<QueryAnswer> {
        // A row can be larger than gRPC's 4 MiB (a snippet in probe.evals); the collector is trusted anyway.
        let service = FlightServiceClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let mut client = FlightSqlServiceClient::new_from_inner(service);
        if let Some(value) = &self.authorization {
            client.set_header("authorization", value.to_str().unwrap_or_default());
        }
        let AnswerBounds { timeout, rows, bytes } = bounds;
        let ticket = flight::ticket(&QueryRequest { sql, pid: self.pid, timeout, rows, bytes, parameters })?;
        let mut stream = client.do_get(ticket).await.map_err(|error| self.hinted(flight_error(error)))?;
        // The schema comes with the first message; peeking for it here keeps an empty answer's columns.
        let first = stream.try_next().await.map_err(flight_error)?;
        let schema = match (&first, stream.schema()) {
            (Some(batch), _) => batch.schema(),
            (None, Some(schema)) => schema.clone(),
            (None, None) => return Err(Error::failed("the collector sent no columns for this query")),
        };
        let rest = stream.map_err(flight_error);
        let batches = futures::stream::iter(first.map(Ok)).chain(rest);
        Ok(QueryAnswer { schema, batches: Box::pin(batches) })
    }

    pub(super) async fn describe(&mut self) -> Result<v1::Description> {
        let request = self.request(v1::DescribeCall {});
        self.unwrap_answer(self.control().describe(request).await)
    }

    pub(super) async fn eval(&mut self, call: v1::EvalCall) -> Result<tonic::Streaming<v1::EvalEvent>> {
        let request = self.request(call);
        self.unwrap_answer(self.control().eval(request).await)
    }

    pub(super) async fn config(&mut self, values: HashMap<String, String>) -> Result<v1::ConfigAnswer> {
        let request = self.request(v1::ConfigCall { values });
        self.unwrap_answer(self.control().config(request).await)
    }

    pub(super) async fn watch(&mut self, call: v1::WatchCall) -> Result<v1::WatchAnswer> {
        let request = self.request(call);
        self.unwrap_answer(self.control().watch(request).await)
    }

    pub(super) async fn stacks(&mut self, call: v1::StacksCall) -> Result<v1::StacksAnswer> {
        let request = self.request(call);
        // Ten seconds of a busy process can be more than gRPC's 4 MiB.
        let mut control = self.control().max_decoding_message_size(usize::MAX);
        self.unwrap_answer(control.stacks(request).await)
    }

    pub(super) async fn capture(&mut self, call: v1::CaptureCall) -> Result<tonic::Streaming<v1::CaptureEvent>> {
        let request = self.request(call);
        self.unwrap_answer(self.control().capture(request).await)
    }

    pub(super) async fn hang(&mut self) -> Result<v1::HangAnswer> {
        let request = self.request(v1::HangCall {});
        self.unwrap_answer(self.control().hang(request).await)
    }

    pub(super) async fn finish(&mut self, call: v1::FinishCall) -> Result<tonic::Streaming<v1::FinishProgress>> {
        let request = self.request(call);
        self.unwrap_answer(self.control().finish(request).await)
    }

    fn unwrap_answer<T>(&self, answer: std::result::Result<Response<T>, Status>) -> Result<T> {
        answer.map(Response::into_inner).map_err(|status| self.hinted(from_status(status)))
    }

    fn hinted(&self, error: Error) -> Error {
        if self.plain && error.kind() == ErrorKind::Unreachable { error.hint(NO_PIN) } else { error }
    }

    fn control(&self) -> ControlClient<Channel> {
        ControlClient::new(self.channel.clone())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(value) = &self.authorization {
            request.metadata_mut().insert("authorization", value.clone());
        }
        request
    }
}

fn credentials(address: &str, token_file: Option<&Path>) -> Result<(Credentials, TcpSecurity)> {
    let Some(path) = token_file else {
        return Err(Error::denied(format!("{address} asks for a token"))
            .hint(format!("give its file: --token-file FILE, or {}", env::PROBE_TOKEN_FILE)));
    };
    let to_error = |problem: CredentialsProblem| {
        let kind = if problem.denied { ErrorKind::Denied } else { ErrorKind::Usage };
        Error::new(kind, problem.message).hint(problem.hint)
    };
    let credentials = Credentials::read(path).map_err(to_error)?;
    let variable = std::env::var(env::PROBE_TLS_PIN).ok();
    let way = credentials.way(address, variable.as_deref()).map_err(to_error)?;
    Ok((credentials, way))
}

fn authorization(credentials: &Credentials) -> Result<MetadataValue<Ascii>> {
    let value = MetadataValue::try_from(credentials.authorization());
    let mut value = value.map_err(|_| Error::usage("the token can't be in a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Refuses a collector that belongs to another user: it would see the queries and choose the answers. Root's collector is
/// accepted, and root may ask any collector.
fn check_owner(stream: &UnixStream) -> std::io::Result<()> {
    let (uid, me) = (stream.peer_cred()?.uid(), nix::unistd::geteuid());
    if uid == 0 || uid == me.as_raw() || me.is_root() {
        return Ok(());
    }
    let what = format!("the collector there belongs to uid {uid}, not to you");
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, what))
}

fn not_connected(location: &RunLocation, error: &(dyn std::error::Error + 'static), plain: bool) -> Error {
    let (mut deepest, mut denied) = (error, false);
    loop {
        let io = deepest.downcast_ref::<std::io::Error>();
        denied |= io.is_some_and(|io| io.kind() == std::io::ErrorKind::PermissionDenied && io.raw_os_error().is_none());
        match deepest.source() {
            Some(source) => deepest = source,
            None => break,
        }
    }
    if denied {
        return Error::denied(format!("not asking {location}: {deepest}"));
    }
    let error = Error::unreachable(format!("nothing answers at {location}: {deepest}"));
    let refused =
        deepest.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused);
    if plain && !refused {
        return error.hint(NO_PIN);
    }
    error.hint(live_hint())
}

/// Converts an error of arrow-flight's client, which may contain the collector's own error.
fn flight_error(error: FlightError) -> Error {
    match error {
        FlightError::Tonic(status) => from_status(*status),
        FlightError::Arrow(error) => arrow_error(error),
        FlightError::ExternalError(error) => match error.downcast::<Status>() {
            Ok(status) => from_status(*status),
            Err(error) => Error::caused(error),
        },
        other => Error::failed(other.to_string()),
    }
}

/// Converts a status. The collector's own has no cause; a status with a cause is an error of the connection.
fn from_status(status: Status) -> Error {
    if std::error::Error::source(&status).is_none() {
        return Error::from(status);
    }
    let mut deepest: &dyn std::error::Error = &status;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    Error::unreachable(format!("the connection to the collector broke: {deepest}")).hint(live_hint())
}

fn arrow_error(error: arrow::error::ArrowError) -> Error {
    match error {
        arrow::error::ArrowError::ExternalError(inner) => match inner.downcast::<Status>() {
            Ok(status) => from_status(*status),
            Err(inner) => Error::caused(inner),
        },
        other => Error::caused(other),
    }
}
