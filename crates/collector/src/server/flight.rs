//! Flight SQL: the protocol by which clients ask queries, probe's own and others (ADBC, JDBC, Grafana).
//!
//! A ticket, or the handle of a prepared statement, is the query itself with its scope, and is good without anything that is
//! kept. Drivers have it planned for its schema, and the plan waits a short time for the call that runs it ([`super::plans`]).
//! Probe's client makes the ticket itself ([`ticket`]): one call.

mod query;
mod running;

use std::pin::Pin;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
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
use probe_query::{CATALOG, Parameters, QueryEngine, schemas_of, views};
use probe_store::arrow_schema;
use prost::Message;
use prost::bytes::Bytes;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

use super::audit::QueryAudit;
use super::peer::Caller;
use super::plans::WaitingPlans;
use crate::auth::token;
use query::QueryTicket;

pub(super) use query::sql_of_handle;
pub use query::{BYTES, MEMORY, PID, QueryRequest, ROWS, TIMEOUT, ticket};

/// Request metadata with the token.
const AUTHORIZATION: &str = "authorization";

/// Longest message from a client (bytes): a query or a handle.
const MAX_REQUEST: usize = 16 << 20;

/// The `table_type` of a table.
const TABLE: &str = "TABLE";
/// The `table_type` of a view.
const VIEW: &str = "VIEW";

/// The service, ready for a tonic server. Its queries are recorded in `audit`.
pub fn service(engine: Arc<QueryEngine>, audit: Arc<QueryAudit>) -> FlightServiceServer<impl FlightService> {
    FlightServiceServer::new(FlightSqlHandler { engine, audit, plans: Arc::default() })
        .max_decoding_message_size(MAX_REQUEST)
        .max_encoding_message_size(usize::MAX)
}

#[derive(Debug, Clone)]
struct FlightSqlHandler {
    engine: Arc<QueryEngine>,
    audit: Arc<QueryAudit>,
    plans: Arc<WaitingPlans>,
}

type HandshakeStream = Pin<Box<dyn Stream<Item = Result<HandshakeResponse, Status>> + Send>>;
type FlightStream = Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>;

type FlightReply<T> = Result<Response<T>, Status>;

/// The answer to a client that asks where to get the rows of a command.
fn info(schema: &Schema, ticket: Any, request: Request<FlightDescriptor>) -> FlightReply<FlightInfo> {
    let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(ticket.encode_to_vec()));
    let info = FlightInfo::new().try_with_schema(schema).map_err(internal)?;
    Ok(Response::new(info.with_endpoint(endpoint).with_descriptor(request.into_inner())))
}

/// A schema as Flight SQL has it in its messages.
fn message(schema: &Schema) -> Result<Bytes, Status> {
    let message: IpcMessage = SchemaAsIpc::new(schema, &IpcWriteOptions::default()).try_into().map_err(internal)?;
    Ok(message.0)
}

fn one(batch: RecordBatch) -> FlightReply<FlightStream> {
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
impl FlightSqlService for FlightSqlHandler {
    type FlightService = Self;

    /// Returns the token for drivers that log in with a user and a password. The gate has let the call in already.
    async fn do_handshake(&self, request: Request<Streaming<HandshakeRequest>>) -> FlightReply<HandshakeStream> {
        let shown = request.metadata().get(AUTHORIZATION);
        let token = shown.and_then(|shown| token(shown.as_encoded_bytes()));
        let answer = HandshakeResponse { protocol_version: 0, payload: Bytes::new() };
        let mut response = Response::new(Box::pin(futures::stream::iter([Ok(answer)])) as HandshakeStream);
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
    ) -> FlightReply<FlightInfo> {
        let query = QueryTicket::new(command.query, request.metadata())?;
        let ticket = TicketStatementQuery { statement_handle: query.handle() };
        self.info(&query, ticket.as_any(), request).await
    }

    async fn do_get_statement(
        &self,
        ticket: TicketStatementQuery,
        request: Request<Ticket>,
    ) -> FlightReply<FlightStream> {
        self.run(QueryTicket::from_handle(&ticket.statement_handle)?, request.extensions()).await
    }

    async fn do_action_create_prepared_statement(
        &self,
        command: ActionCreatePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let query = QueryTicket::new(command.query, request.metadata())?;
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
    ) -> FlightReply<FlightInfo> {
        let query = QueryTicket::from_handle(&command.prepared_statement_handle)?;
        self.info(&query, command.as_any(), request).await
    }

    async fn do_get_prepared_statement(
        &self,
        command: CommandPreparedStatementQuery,
        request: Request<Ticket>,
    ) -> FlightReply<FlightStream> {
        self.run(QueryTicket::from_handle(&command.prepared_statement_handle)?, request.extensions()).await
    }

    async fn do_put_prepared_statement_query(
        &self,
        command: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<DoPutPreparedStatementResult, Status> {
        let mut query = QueryTicket::from_handle(&command.prepared_statement_handle)?;
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
        let query = QueryTicket::new(command.query, request.metadata())?;
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
    ) -> FlightReply<FlightInfo> {
        info(&command.into_builder().schema(), command.as_any(), request)
    }

    async fn do_get_catalogs(&self, command: CommandGetCatalogs, _: Request<Ticket>) -> FlightReply<FlightStream> {
        let mut catalogs = command.into_builder();
        catalogs.append(CATALOG);
        one(catalogs.build().map_err(internal)?)
    }

    async fn get_flight_info_schemas(
        &self,
        command: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> FlightReply<FlightInfo> {
        info(&command.clone().into_builder().schema(), command.as_any(), request)
    }

    async fn do_get_schemas(&self, command: CommandGetDbSchemas, _: Request<Ticket>) -> FlightReply<FlightStream> {
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
    ) -> FlightReply<FlightInfo> {
        info(&command.clone().into_builder().schema(), command.as_any(), request)
    }

    async fn do_get_tables(&self, command: CommandGetTables, _: Request<Ticket>) -> FlightReply<FlightStream> {
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
    ) -> FlightReply<FlightInfo> {
        info(&command.into_builder().schema(), command.as_any(), request)
    }

    async fn do_get_table_types(&self, command: CommandGetTableTypes, _: Request<Ticket>) -> FlightReply<FlightStream> {
        let mut types = command.into_builder();
        types.append(TABLE);
        types.append(VIEW);
        one(types.build().map_err(internal)?)
    }

    async fn get_flight_info_sql_info(
        &self,
        command: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> FlightReply<FlightInfo> {
        info(&command.clone().into_builder(&sql_info()?).schema(), command.as_any(), request)
    }

    async fn do_get_sql_info(&self, command: CommandGetSqlInfo, _: Request<Ticket>) -> FlightReply<FlightStream> {
        one(command.into_builder(&sql_info()?).build().map_err(internal)?)
    }

    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}
