//! Flight SQL: what clients ask queries with.

use std::sync::Arc;

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::sql::SqlInfo;
use arrow_flight::sql::server::FlightSqlService;

use crate::query::Engine;

/// The service, ready for a tonic server.
pub fn service(engine: Arc<Engine>) -> FlightServiceServer<impl FlightService> {
    FlightServiceServer::new(Service { engine })
}

#[derive(Debug, Clone)]
struct Service {
    #[allow(dead_code)]
    engine: Arc<Engine>,
}

#[tonic::async_trait]
impl FlightSqlService for Service {
    type FlightService = Self;
    async fn register_sql_info(&self, _id: i32, _info: &SqlInfo) {}
}
