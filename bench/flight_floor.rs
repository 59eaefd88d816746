//! `bench-flight-floor SOCKET`: a Flight SQL server on a unix socket that plans nothing and answers every query with the same
//! row. `make bench-reader` measures with it what a question costs the client and the protocol alone. It has the calls of a driver
//! that prepares every statement, as ADBC does in Python.

use std::pin::Pin;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::flight_service_server::FlightServiceServer;
use arrow_flight::sql::server::FlightSqlService;
use arrow_flight::sql::{
    ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult,
    CommandPreparedStatementQuery, ProstMessageExt, SqlInfo,
};
use arrow_flight::{Action, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, IpcMessage, SchemaAsIpc, Ticket};
use futures::{Stream, TryStreamExt};
use prost::Message;
use prost::bytes::Bytes;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

type FlightStream = Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send>>;

/// Answers `SELECT 1`, whatever is asked.
#[derive(Debug, Clone, Copy)]
struct ConstantAnswer;

fn schema() -> Schema {
    Schema::new(vec![Field::new("Int64(1)", DataType::Int64, false)])
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::internal(error.to_string())
}

#[tonic::async_trait]
impl FlightSqlService for ConstantAnswer {
    type FlightService = Self;

    async fn do_action_create_prepared_statement(
        &self,
        _: ActionCreatePreparedStatementRequest,
        _: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let schema = schema();
        let message: IpcMessage =
            SchemaAsIpc::new(&schema, &IpcWriteOptions::default()).try_into().map_err(internal)?;
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: Bytes::new(),
            dataset_schema: message.0,
            parameter_schema: Bytes::new(),
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
    ) -> Result<Response<FlightInfo>, Status> {
        let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(command.as_any().encode_to_vec()));
        let info = FlightInfo::new().try_with_schema(&schema()).map_err(internal)?;
        Ok(Response::new(info.with_endpoint(endpoint).with_descriptor(request.into_inner())))
    }

    async fn do_get_prepared_statement(
        &self,
        _: CommandPreparedStatementQuery,
        _: Request<Ticket>,
    ) -> Result<Response<FlightStream>, Status> {
        let batch = RecordBatch::try_new(schema().into(), vec![Arc::new(Int64Array::from(vec![1]))]);
        let batches = futures::stream::iter([Ok(batch.map_err(internal)?)]);
        Ok(Response::new(Box::pin(FlightDataEncoderBuilder::new().build(batches).map_err(Status::from))))
    }

    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let socket = std::env::args_os().nth(1).ok_or("usage: bench-flight-floor SOCKET")?;
    let listener = UnixListener::bind(socket)?;
    let service = FlightServiceServer::new(ConstantAnswer);
    Server::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener)).await?;
    Ok(())
}
