//! A query as tickets and handles of prepared statements have it, and the metadata of calls with its scope.

use std::str::FromStr;
use std::time::Duration;

use arrow_flight::Ticket;
use arrow_flight::sql::{ProstMessageExt, TicketStatementQuery};
use probe_common::error::Error;
use probe_query::{Parameters, QuerySettings};
use prost::Message;
use prost::bytes::Bytes;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::super::peer::Caller;

/// Request metadata with the process id to which a query is to be limited.
pub const PID: &str = "probe-pid";

/// Request metadata with how long the answer may take, in milliseconds.
pub const TIMEOUT: &str = "probe-timeout-ms";

/// Request metadata with how many rows the answer may have.
pub const ROWS: &str = "probe-max-rows";

/// Request metadata with how many bytes the answer may have.
pub const BYTES: &str = "probe-max-bytes";

/// Request metadata with how many bytes the query may hold on to while it runs.
pub const MEMORY: &str = "probe-max-memory";

/// A query and its scope, as tickets and handles have it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct QueryTicket {
    #[prost(string, tag = "1")]
    pub(super) sql: String,
    #[prost(int32, optional, tag = "2")]
    pub(super) pid: Option<i32>,
    #[prost(uint64, optional, tag = "3")]
    timeout_ms: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    rows: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    bytes: Option<u64>,
    #[prost(uint64, optional, tag = "6")]
    memory: Option<u64>,
    /// Values of its parameters, where they were bound.
    #[prost(bytes = "vec", tag = "7")]
    pub(super) parameters: Vec<u8>,
}

impl QueryTicket {
    pub(super) fn new(sql: String, metadata: &MetadataMap) -> Result<Self, Status> {
        Ok(Self {
            sql,
            pid: number(metadata, PID, "a process id")?,
            timeout_ms: number(metadata, TIMEOUT, "a number of milliseconds")?,
            rows: number(metadata, ROWS, "a number of rows")?,
            bytes: number(metadata, BYTES, "a number of bytes")?,
            memory: number(metadata, MEMORY, "a number of bytes")?,
            parameters: Vec::new(),
        })
    }

    /// The query with the limits of `caller`.
    pub(super) fn settings_for(&self, caller: &Caller) -> probe_common::error::Result<QuerySettings> {
        Ok(QuerySettings {
            pid: self.pid,
            parameters: Parameters::decode(&self.parameters)?,
            timeout: self.timeout(),
            rows: self.rows,
            bytes: self.bytes,
            memory: self.memory.map(|memory| usize::try_from(memory).unwrap_or(usize::MAX)),
            revoked: caller.gone.clone(),
        })
    }

    pub(super) fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }

    pub(super) fn from_handle(handle: &[u8]) -> Result<Self, Status> {
        Self::decode(handle).map_err(|_| Error::usage("this ticket or prepared statement is not from here").into())
    }

    pub(super) fn handle(&self) -> Bytes {
        self.encode_to_vec().into()
    }
}

/// The content of a ticket.
#[derive(Debug, Clone, Copy)]
pub struct QueryRequest<'a> {
    /// The query.
    pub sql: &'a str,
    /// Only this process's rows.
    pub pid: Option<u32>,
    /// How long the answer may take.
    pub timeout: Option<Duration>,
    /// How many rows it may have.
    pub rows: Option<u64>,
    /// How many bytes it may have.
    pub bytes: Option<u64>,
    /// Values of the query's $names.
    pub parameters: &'a Parameters,
}

/// The ticket of a question, as GetFlightInfo gives it: a client may ask for the rows by it at once. Permission, limits and the
/// audit row are decided when it asks for the rows. Collectors of other versions read the ticket too: the numbers of its fields
/// ([`QueryTicket`]) stay.
///
/// # Errors
/// A parameter has a value that no array can have.
pub fn ticket(question: &QueryRequest<'_>) -> probe_common::error::Result<Ticket> {
    let query = QueryTicket {
        sql: question.sql.to_owned(),
        pid: question.pid.map(|pid| pid as i32),
        timeout_ms: question.timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
        rows: question.rows,
        bytes: question.bytes,
        memory: None,
        parameters: question.parameters.encode()?,
    };
    Ok(Ticket::new(TicketStatementQuery { statement_handle: query.handle() }.as_any().encode_to_vec()))
}

/// A number of the metadata; None where it is not there.
fn number<T: FromStr>(metadata: &MetadataMap, key: &str, what: &str) -> Result<Option<T>, Status> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    let value = value.to_str().ok().and_then(|value| value.parse().ok());
    value.map(Some).ok_or_else(|| Error::usage(format!("{key} is not {what}")).into())
}

/// The SQL of a ticket or handle of this service.
pub(crate) fn sql_of_handle(handle: &[u8]) -> Option<String> {
    QueryTicket::decode(handle).ok().map(|query| query.sql)
}
