//! Flight SQL: the protocol by which clients ask queries, probe's own and others (ADBC, JDBC, Grafana).
//!
//! A ticket, or the handle of a prepared statement, is the query itself with its scope, and is good without anything that is
//! kept. Drivers have it planned for its schema, and the plan waits a short time for the call that runs it ([`super::plans`]).
//! Probe's client makes the ticket itself ([`ticket`]): one call.

use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder};
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult,
    Any, CommandGetCatalogs, CommandGetDbSchemas, CommandGetSqlInfo, CommandGetTableTypes, CommandGetTables,
    CommandPreparedStatementQuery, CommandPreparedStatementUpdate, CommandStatementIngest, CommandStatementQuery,
    CommandStatementUpdate, DoPutPreparedStatementResult, ProstMessageExt, SqlInfo, TicketStatementQuery,
};
use arrow_flight::{
    Action, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest, HandshakeResponse, IpcMessage,
    SchemaAsIpc, Ticket,
};
use futures::{Stream, StreamExt, TryStreamExt};
use probe_common::error::Error;
use probe_query::{Asked, CATALOG, Engine, Parameters, Plan, from_datafusion, schemas_of, views};
use probe_store::arrow_schema;
use prost::Message;
use prost::bytes::Bytes;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Extensions, Request, Response, Status, Streaming};

use super::audit::{Audit, Entry};
use super::peer::Caller;
use super::plans::Plans;
use crate::auth::token;

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

/// Request metadata with the token.
const AUTHORIZATION: &str = "authorization";

/// Longest message from a client (bytes): a query or a handle.
const MAX_REQUEST: usize = 16 << 20;

/// The `table_type` of a table.
const TABLE: &str = "TABLE";
/// The `table_type` of a view.
const VIEW: &str = "VIEW";

/// The service, ready for a tonic server. Its queries are recorded in `audit`.
pub fn service(engine: Arc<Engine>, audit: Arc<Audit>) -> FlightServiceServer<impl FlightService> {
    FlightServiceServer::new(Service { engine, audit, plans: Arc::default() })
        .max_decoding_message_size(MAX_REQUEST)
        .max_encoding_message_size(usize::MAX)
}

#[derive(Debug, Clone)]
struct Service {
    engine: Arc<Engine>,
    audit: Arc<Audit>,
    plans: Arc<Plans>,
}

/// A query and its scope, as tickets and handles have it.
#[derive(Clone, PartialEq, Message)]
struct Query {
    #[prost(string, tag = "1")]
    sql: String,
    #[prost(int32, optional, tag = "2")]
    pid: Option<i32>,
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
    parameters: Vec<u8>,
}

impl Query {
    fn new(sql: String, metadata: &MetadataMap) -> Result<Self, Status> {
        Ok(Self {
            sql,
            pid: said(metadata, PID, "a process id")?,
            timeout_ms: said(metadata, TIMEOUT, "a number of milliseconds")?,
            rows: said(metadata, ROWS, "a number of rows")?,
            bytes: said(metadata, BYTES, "a number of bytes")?,
            memory: said(metadata, MEMORY, "a number of bytes")?,
            parameters: Vec::new(),
        })
    }

    /// The query with the limits of `caller`.
    fn asked(&self, caller: &Caller) -> probe_common::error::Result<Asked> {
        Ok(Asked {
            pid: self.pid,
            parameters: Parameters::decode(&self.parameters)?,
            timeout: self.timeout(),
            rows: self.rows,
            bytes: self.bytes,
            memory: self.memory.map(|memory| usize::try_from(memory).unwrap_or(usize::MAX)),
            revoked: caller.gone.clone(),
        })
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }

    fn from_handle(handle: &[u8]) -> Result<Self, Status> {
        Self::decode(handle).map_err(|_| Error::usage("this ticket or prepared statement is not from here").into())
    }

    fn handle(&self) -> Bytes {
        self.encode_to_vec().into()
    }
}

/// The content of a ticket.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
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
/// ([`Query`]) stay.
///
/// # Errors
/// A parameter has a value that no array can have.
pub fn ticket(question: &Question<'_>) -> probe_common::error::Result<Ticket> {
    let query = Query {
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

fn said<T: FromStr>(metadata: &MetadataMap, key: &str, what: &str) -> Result<Option<T>, Status> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    let value = value.to_str().ok().and_then(|value| value.parse().ok());
    value.map(Some).ok_or_else(|| Error::usage(format!("{key} is not {what}")).into())
}

/// The SQL of a ticket or handle of this service.
pub(super) fn sql_of_handle(handle: &[u8]) -> Option<String> {
    Query::decode(handle).ok().map(|query| query.sql)
}

type Handshake = Pin<Box<dyn Stream<Item = Result<HandshakeResponse, Status>> + Send>>;
type Answer = Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>;

impl Service {
    async fn info(&self, query: &Query, ticket: Any, request: Request<FlightDescriptor>) -> Reply<FlightInfo> {
        let caller = Caller::of(request.extensions());
        let plan = match self.plans.take(&caller.asker, &query.handle(), Instant::now()) {
            Some(prepared) => prepared,
            None => self.plan(query, request.extensions()).await?,
        };
        let schema = Arc::clone(plan.schema());
        self.plans.keep(&caller.asker, query.handle(), plan, query.timeout());
        info(&schema, ticket, request)
    }

    /// The plan of a query. One that can't be planned is never run, so its audit row is added here.
    async fn plan(&self, query: &Query, extensions: &Extensions) -> Result<Plan, Status> {
        let caller = Caller::of(extensions);
        let plan = self.engine.plan(&query.sql, query.asked(&caller)?).await;
        self.noted(&caller, query, plan).await
    }

    /// The columns of an answer and of the parameters, which have no values yet.
    async fn prepare(&self, query: &Query, extensions: &Extensions) -> Result<(SchemaRef, Schema), Status> {
        let caller = Caller::of(extensions);
        let prepared = self.engine.prepare(&query.sql, query.asked(&caller)?).await;
        let (plan, parameters) = self.noted(&caller, query, prepared).await?;
        let schema = Arc::clone(plan.schema());
        if parameters.fields().is_empty() {
            self.plans.keep(&caller.asker, query.handle(), plan, query.timeout());
        }
        Ok((schema, parameters))
    }

    async fn noted<T>(&self, caller: &Caller, query: &Query, planned: Result<T, Error>) -> Result<T, Status> {
        if let Err(error) = &planned {
            self.note_failed(caller, query, error).await;
        }
        Ok(planned?)
    }

    async fn note_failed(&self, caller: &Caller, query: &Query, error: &Error) {
        self.audit.turn(&caller.asker, &query.sql).await;
        self.audit.failed(&caller.asker, &query.sql, query.pid, error);
    }

    async fn run(&self, query: Query, extensions: &Extensions) -> Reply<Answer> {
        let caller = Caller::of(extensions);
        self.audit.turn(&caller.asker, &query.sql).await;
        let mut entry = self.audit.begin(&caller.asker, &query.sql, query.pid);
        let asked = query.asked(&caller)?;
        let rows = match self.plans.take(&caller.asker, &query.handle(), Instant::now()) {
            Some(plan) => self.engine.ask_by(plan, &query.sql, asked).await,
            None => self.engine.ask(&query.sql, asked).await,
        };
        let rows = rows.inspect_err(|error| entry.finish(Some(error)))?;
        let schema = rows.schema();
        let written = Arc::new(Mutex::new(entry));
        let (taken, sent) = (Arc::clone(&written), Arc::clone(&written));
        let rows = rows.map(move |batch| match batch {
            Ok(batch) => {
                lock(&taken).sent(batch.num_rows() as u64, 0);
                Ok(batch)
            }
            Err(error) => {
                let error = from_datafusion(&error);
                lock(&taken).finish(Some(&error));
                Err(FlightError::Tonic(Box::new(error.into())))
            }
        });
        let messages = FlightDataEncoderBuilder::new().with_schema(schema).build(rows).map_err(Status::from);
        let messages = messages.inspect_ok(move |message| {
            lock(&sent).sent(0, (message.data_header.len() + message.data_body.len()) as u64);
        });
        // Reached only when the client has taken everything before it.
        let end = futures::stream::poll_fn(move |_| {
            lock(&written).finish(None);
            Poll::Ready(None)
        });
        Ok(Response::new(Box::pin(messages.chain(end))))
    }
}

type Reply<T> = Result<Response<T>, Status>;

/// The answer to a client that asks where to get the rows of a command.
fn info(schema: &Schema, ticket: Any, request: Request<FlightDescriptor>) -> Reply<FlightInfo> {
    let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(ticket.encode_to_vec()));
    let info = FlightInfo::new().try_with_schema(schema).map_err(internal)?;
    Ok(Response::new(info.with_endpoint(endpoint).with_descriptor(request.into_inner())))
}

/// A schema as Flight SQL has it in its messages.
fn message(schema: &Schema) -> Result<Bytes, Status> {
    let message: IpcMessage = SchemaAsIpc::new(schema, &IpcWriteOptions::default()).try_into().map_err(internal)?;
    Ok(message.0)
}

fn one(batch: RecordBatch) -> Reply<Answer> {
    let batches = futures::stream::iter([Ok(batch)]);
    let schema_first = FlightDataEncoderBuilder::new();
    Ok(Response::new(Box::pin(schema_first.build(batches).map_err(Status::from))))
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}

fn read_only() -> Error {
    Error::denied("changing rows is not allowed: queries only read").hint("send it as a query if it is one")
}

fn lock(entry: &Mutex<Entry>) -> MutexGuard<'_, Entry> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sql_info() -> Result<SqlInfoData, Status> {
    let mut info = SqlInfoDataBuilder::new();
    info.append(SqlInfo::FlightSqlServerName, "probe");
    info.append(SqlInfo::FlightSqlServerVersion, probe_proto::VERSION);
    info.append(SqlInfo::FlightSqlServerArrowVersion, "1.3");
    info.append(SqlInfo::FlightSqlServerReadOnly, true);
    info.append(SqlInfo::FlightSqlServerSql, true);
    info.append(SqlInfo::FlightSqlServerSubstrait, false);
    info.append(SqlInfo::FlightSqlServerTransaction, 0_i32);
    info.append(SqlInfo::FlightSqlServerCancel, false);
    info.append(SqlInfo::FlightSqlServerBulkIngestion, false);
    info.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    info.build().map_err(internal)
}

#[tonic::async_trait]
impl FlightSqlService for Service {
    type FlightService = Self;

    /// Returns the token for drivers that log in with a user and a password. The gate has let the call in already.
    async fn do_handshake(&self, request: Request<Streaming<HandshakeRequest>>) -> Reply<Handshake> {
        let shown = request.metadata().get(AUTHORIZATION);
        let token = shown.and_then(|shown| token(shown.as_encoded_bytes()));
        let answer = HandshakeResponse { protocol_version: 0, payload: Bytes::new() };
        let mut response = Response::new(Box::pin(futures::stream::iter([Ok(answer)])) as Handshake);
        // A client of a unix socket has no token.
        if let Some(token) = token {
            let bearer = [b"Bearer ", token.as_ref()].concat();
            let mut bearer =
                MetadataValue::try_from(bearer).map_err(|_| Error::usage("the token can't be in a header"))?;
            bearer.set_sensitive(true);
            response.metadata_mut().insert(AUTHORIZATION, bearer);
        }
        Ok(response)
    }

    async fn get_flight_info_statement(
        &self,
        command: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Reply<FlightInfo> {
        let query = Query::new(command.query, request.metadata())?;
        let ticket = TicketStatementQuery { statement_handle: query.handle() };
        self.info(&query, ticket.as_any(), request).await
    }

    async fn do_get_statement(&self, ticket: TicketStatementQuery, request: Request<Ticket>) -> Reply<Answer> {
        self.run(Query::from_handle(&ticket.statement_handle)?, request.extensions()).await
    }

    async fn do_action_create_prepared_statement(
        &self,
        command: ActionCreatePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let query = Query::new(command.query, request.metadata())?;
        let (columns, parameters) = self.prepare(&query, request.extensions()).await?;
        let has_parameters = !parameters.fields().is_empty();
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: query.handle(),
            dataset_schema: message(&columns)?,
            parameter_schema: if has_parameters { message(&parameters)? } else { Bytes::new() },
        })
    }

    async fn do_action_close_prepared_statement(
        &self,
        _: ActionClosePreparedStatementRequest,
        _: Request<Action>,
    ) -> Result<(), Status> {
        Ok(())
    }

    async fn get_flight_info_prepared_statement(
        &self,
        command: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Reply<FlightInfo> {
        let query = Query::from_handle(&command.prepared_statement_handle)?;
        self.info(&query, command.as_any(), request).await
    }

    async fn do_get_prepared_statement(
        &self,
        command: CommandPreparedStatementQuery,
        request: Request<Ticket>,
    ) -> Reply<Answer> {
        self.run(Query::from_handle(&command.prepared_statement_handle)?, request.extensions()).await
    }

    async fn do_put_prepared_statement_query(
        &self,
        command: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<DoPutPreparedStatementResult, Status> {
        let mut query = Query::from_handle(&command.prepared_statement_handle)?;
        let messages = request.into_inner().map_err(FlightError::from);
        let batches = FlightRecordBatchStream::new_from_flight_data(messages);
        // Some drivers end with a batch without rows.
        let given = batches.try_filter(|batch| std::future::ready(batch.num_rows() > 0)).take(2);
        let batches: Vec<RecordBatch> = given.try_collect().await.map_err(Status::from)?;
        let [batch] = batches.as_slice() else {
            let error = if batches.is_empty() { "no row" } else { "more than one row" };
            return Err(Error::usage(format!("{error} of parameters is given, and a query takes one")).into());
        };
        query.parameters = Parameters::from_batch(batch)?.encode()?;
        Ok(DoPutPreparedStatementResult { prepared_statement_handle: Some(query.handle()) })
    }

    async fn do_put_statement_update(
        &self,
        command: CommandStatementUpdate,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        // Records which statement was refused. A statement that only reads is refused too, because it came by the call for
        // updates.
        let query = Query::new(command.query, request.metadata())?;
        self.plan(&query, request.extensions()).await?;
        let refused = read_only();
        self.note_failed(&Caller::of(request.extensions()), &query, &refused).await;
        Err(refused.into())
    }

    async fn do_put_prepared_statement_update(
        &self,
        _: CommandPreparedStatementUpdate,
        _: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        Err(read_only().into())
    }

    async fn do_put_statement_ingest(
        &self,
        _: CommandStatementIngest,
        _: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        Err(read_only().into())
    }

    async fn get_flight_info_catalogs(
        &self,
        command: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> Reply<FlightInfo> {
        info(&command.into_builder().schema(), command.as_any(), request)
    }

    async fn do_get_catalogs(&self, command: CommandGetCatalogs, _: Request<Ticket>) -> Reply<Answer> {
        let mut catalogs = command.into_builder();
        catalogs.append(CATALOG);
        one(catalogs.build().map_err(internal)?)
    }

    async fn get_flight_info_schemas(
        &self,
        command: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> Reply<FlightInfo> {
        info(&command.clone().into_builder().schema(), command.as_any(), request)
    }

    async fn do_get_schemas(&self, command: CommandGetDbSchemas, _: Request<Ticket>) -> Reply<Answer> {
        let mut found = command.into_builder();
        for schema in schemas_of(self.engine.tables().into_iter()) {
            found.append(CATALOG, schema);
        }
        one(found.build().map_err(internal)?)
    }

    async fn get_flight_info_tables(
        &self,
        command: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> Reply<FlightInfo> {
        info(&command.clone().into_builder().schema(), command.as_any(), request)
    }

    async fn do_get_tables(&self, command: CommandGetTables, _: Request<Ticket>) -> Reply<Answer> {
        let mut found = command.into_builder();
        let tables = self
            .engine
            .tables()
            .into_iter()
            .map(|table| (table, TABLE))
            .chain(views().into_iter().map(|view| (view, VIEW)));
        for (table, kind) in tables {
            // The schema as a query returns it: text is Utf8 there, whatever type the table has.
            let schema = probe_query::plain_schema(&arrow_schema(table));
            found.append(CATALOG, table.schema, table.name, kind, &schema).map_err(internal)?;
        }
        one(found.build().map_err(internal)?)
    }

    async fn get_flight_info_table_types(
        &self,
        command: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Reply<FlightInfo> {
        info(&command.into_builder().schema(), command.as_any(), request)
    }

    async fn do_get_table_types(&self, command: CommandGetTableTypes, _: Request<Ticket>) -> Reply<Answer> {
        let mut types = command.into_builder();
        types.append(TABLE);
        types.append(VIEW);
        one(types.build().map_err(internal)?)
    }

    async fn get_flight_info_sql_info(
        &self,
        command: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> Reply<FlightInfo> {
        info(&command.clone().into_builder(&sql_info()?).schema(), command.as_any(), request)
    }

    async fn do_get_sql_info(&self, command: CommandGetSqlInfo, _: Request<Ticket>) -> Reply<Answer> {
        one(command.into_builder(&sql_info()?).build().map_err(internal)?)
    }

    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use probe_store::Store;

    use super::super::peer::Asker;
    use super::*;
    use crate::auth::Scopes;

    #[tokio::test]
    async fn the_call_that_gets_the_rows_runs_what_the_call_before_it_planned() {
        let engine = Arc::new(Engine::new(Store::new(1 << 20), Vec::new()).unwrap());
        let service = Service { engine, audit: Arc::default(), plans: Arc::default() };
        let asker = Asker { who: "uid:0".into(), peer: Some("pid:7".into()) };
        let (scopes, gone) = (Scopes::default(), Default::default());
        let mut extensions = Extensions::new();
        extensions.insert(Caller { asker: asker.clone(), scopes, over_tcp: false, gone });
        let query = Query::new("SELECT COUNT(*) FROM python.steps".into(), &MetadataMap::new()).unwrap();
        let handle = query.handle();
        let ticket = TicketStatementQuery { statement_handle: handle.clone() };
        // As drivers do that prepare a statement first, and as others do.
        for prepares in [true, false] {
            let mut request = Request::new(FlightDescriptor::default());
            *request.extensions_mut() = extensions.clone();
            if prepares {
                service.prepare(&query, &extensions).await.unwrap();
                let prepared = service.plans.take(&asker, &handle, Instant::now()).unwrap();
                service.plans.keep(&asker, handle.clone(), prepared, None);
            }
            service.info(&query, ticket.as_any(), request).await.unwrap();
            let plan = service.plans.take(&asker, &handle, Instant::now()).unwrap();
            assert!(service.plans.take(&asker, &handle, Instant::now()).is_none(), "planned once");
            service.plans.keep(&asker, handle.clone(), plan, None);
            let answer = service.run(query.clone(), &extensions).await.unwrap();
            assert!(service.plans.take(&asker, &handle, Instant::now()).is_none());
            let batches = FlightRecordBatchStream::new_from_flight_data(answer.into_inner().map_err(FlightError::from));
            let batches: Vec<RecordBatch> = batches.try_collect().await.unwrap();
            assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
        }
    }
}
