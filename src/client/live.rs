//! A live collector: one channel, Flight SQL for queries and the control service for everything else.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::sql::client::FlightSqlServiceClient;
use futures::TryStreamExt;
use probe_proto::v1::{self, control_client::ControlClient};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use super::{Answer, Bounds};
use crate::endpoint::{Place, live_hint};
use crate::error::{Error, Result};
use crate::server::flight;

/// How long a collector may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct Live {
    channel: Channel,
    pid: Option<u32>,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Live {
    pub(super) async fn connect(place: &Place, pid: Option<u32>, token_file: Option<&Path>) -> Result<Self> {
        let unreachable = |error: &dyn std::error::Error| {
            let mut deepest = error;
            while let Some(source) = deepest.source() {
                deepest = source;
            }
            Error::unreachable(format!("nothing answers at {place}: {deepest}")).hint(live_hint())
        };
        let (address, authorization) = match place {
            Place::Tcp(address) => (format!("http://{address}"), Some(authorization(address, token_file)?)),
            place => (place.to_string(), None),
        };
        let endpoint = Endpoint::from_shared(address).map_err(|error| unreachable(&error))?.connect_timeout(CONNECT);
        let channel = endpoint.connect().await.map_err(|error| unreachable(&error))?;
        Ok(Self { channel, pid, authorization })
    }

    pub(super) async fn query(&mut self, sql: &str, bounds: Bounds) -> Result<Answer> {
        // A row can be larger than gRPC's 4 MiB (a snippet in probe.evals); whose rows these are is trusted anyway.
        let service = FlightServiceClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let mut client = FlightSqlServiceClient::new_from_inner(service);
        if let Some(pid) = self.pid {
            client.set_header(flight::PID, pid.to_string());
        }
        let asked = [
            (flight::TIMEOUT, bounds.timeout.map(|timeout| timeout.as_millis().to_string())),
            (flight::ROWS, bounds.rows.map(|rows| rows.to_string())),
            (flight::BYTES, bounds.bytes.map(|bytes| bytes.to_string())),
        ];
        for (key, value) in asked {
            if let Some(value) = value {
                client.set_header(key, value);
            }
        }
        if let Some(value) = &self.authorization {
            client.set_header("authorization", value.to_str().unwrap_or_default());
        }
        let info = client.execute(sql.to_owned(), None).await.map_err(flight_error)?;
        let ticket = info.endpoint.into_iter().next().and_then(|endpoint| endpoint.ticket);
        let ticket = ticket.ok_or_else(|| Error::failed("the collector gave no ticket for this query"))?;
        let mut stream = client.do_get(ticket).await.map_err(flight_error)?;
        // The schema comes with the first message; peeking for it here keeps an empty answer's columns.
        let first = stream.try_next().await.map_err(flight_error)?;
        let schema = match (&first, stream.schema()) {
            (Some(batch), _) => batch.schema(),
            (None, Some(schema)) => schema.clone(),
            (None, None) => return Err(Error::failed("the collector sent no columns for this query")),
        };
        let rest = stream.map_err(flight_error);
        let batches = futures::stream::iter(first.map(Ok)).chain(rest);
        Ok(Answer { schema, batches: Box::pin(batches) })
    }

    pub(super) async fn describe(&mut self) -> Result<v1::Description> {
        let request = self.request(v1::DescribeCall {});
        Ok(self.control().describe(request).await?.into_inner())
    }

    pub(super) async fn eval(&mut self, call: v1::EvalCall) -> Result<tonic::Streaming<v1::EvalEvent>> {
        let request = self.request(call);
        Ok(self.control().eval(request).await?.into_inner())
    }

    pub(super) async fn config(&mut self, values: HashMap<String, String>) -> Result<v1::ConfigAnswer> {
        let request = self.request(v1::ConfigCall { values });
        Ok(self.control().config(request).await?.into_inner())
    }

    pub(super) async fn stacks(&mut self, call: v1::StacksCall) -> Result<v1::StacksAnswer> {
        let request = self.request(call);
        // Ten seconds of a busy process can be more than gRPC's 4 MiB.
        let mut control = self.control().max_decoding_message_size(usize::MAX);
        Ok(control.stacks(request).await?.into_inner())
    }

    pub(super) async fn hang(&mut self) -> Result<v1::HangAnswer> {
        let request = self.request(v1::HangCall {});
        Ok(self.control().hang(request).await?.into_inner())
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

use futures::StreamExt;

fn authorization(address: &str, token_file: Option<&Path>) -> Result<MetadataValue<Ascii>> {
    let Some(path) = token_file else {
        return Err(Error::denied(format!("{address} asks for a token"))
            .hint(format!("give its file: --token-file FILE, or {}", probe_proto::env::PROBE_TOKEN_FILE)));
    };
    let token = std::fs::read_to_string(path).map_err(|error| Error::usage(format!("{}: {error}", path.display())))?;
    let mut value = MetadataValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| Error::usage(format!("{} holds no token: only ASCII letters may be in one", path.display())))?;
    value.set_sensitive(true);
    Ok(value)
}

/// An error of arrow-flight's client, whose depths hold the collector's own.
fn flight_error(error: arrow_flight::error::FlightError) -> Error {
    use arrow_flight::error::FlightError;
    match error {
        FlightError::Tonic(status) => from_status(*status),
        FlightError::Arrow(error) => arrow_error(error),
        FlightError::ExternalError(error) => match error.downcast::<Status>() {
            Ok(status) => from_status(*status),
            Err(error) => Error::failed(error.to_string()),
        },
        other => Error::failed(other.to_string()),
    }
}

/// What a collector said comes without a cause; what has one happened to the connection.
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
            Err(inner) => Error::failed(inner.to_string()),
        },
        other => Error::failed(other.to_string()),
    }
}
