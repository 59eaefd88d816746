//! Plans queries, and runs them: each query of a client has one audit row.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Instant;

use arrow::datatypes::{Schema, SchemaRef};
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::sql::Any;
use arrow_flight::{FlightDescriptor, FlightInfo};
use futures::{StreamExt, TryStreamExt};
use probe_common::error::Error;
use probe_query::{PlannedQuery, from_datafusion};
use tonic::{Extensions, Request, Response, Status};

use super::super::audit::QueryEntry;
use super::super::peer::Caller;
use super::query::QueryTicket;
use super::{FlightReply, FlightSqlHandler, FlightStream, info};

impl FlightSqlHandler {
    pub(super) async fn info(
        &self,
        query: &QueryTicket,
        ticket: Any,
        request: Request<FlightDescriptor>,
    ) -> FlightReply<FlightInfo> {
        let caller = Caller::of(request.extensions());
        let plan = match self.plans.take_plan(&caller.asker, &query.handle(), Instant::now()) {
            Some(prepared) => prepared,
            None => self.plan(query, request.extensions()).await?,
        };
        let schema = Arc::clone(plan.schema());
        self.plans.insert(&caller.asker, query.handle(), plan, query.timeout());
        info(&schema, ticket, request)
    }

    /// The plan of a query. One that can't be planned is never run, so its audit row is added here.
    pub(super) async fn plan(&self, query: &QueryTicket, extensions: &Extensions) -> Result<PlannedQuery, Status> {
        let caller = Caller::of(extensions);
        let plan = self.engine.plan(&query.sql, query.settings_for(&caller)?).await;
        self.noted(&caller, query, plan).await
    }

    /// The columns of an answer and of the parameters, which have no values yet.
    pub(super) async fn prepare(
        &self,
        query: &QueryTicket,
        extensions: &Extensions,
    ) -> Result<(SchemaRef, Schema), Status> {
        let caller = Caller::of(extensions);
        let prepared = self.engine.prepare(&query.sql, query.settings_for(&caller)?).await;
        let (plan, parameters) = self.noted(&caller, query, prepared).await?;
        let schema = Arc::clone(plan.schema());
        if parameters.fields().is_empty() {
            self.plans.insert(&caller.asker, query.handle(), plan, query.timeout());
        }
        Ok((schema, parameters))
    }

    async fn noted<T>(&self, caller: &Caller, query: &QueryTicket, planned: Result<T, Error>) -> Result<T, Status> {
        if let Err(error) = &planned {
            self.note_failed(caller, query, error).await;
        }
        Ok(planned?)
    }

    pub(super) async fn note_failed(&self, caller: &Caller, query: &QueryTicket, error: &Error) {
        self.audit.wait_for_turn(&caller.asker, &query.sql).await;
        self.audit.failed(&caller.asker, &query.sql, query.pid, error);
    }

    pub(super) async fn run(&self, query: QueryTicket, extensions: &Extensions) -> FlightReply<FlightStream> {
        let caller = Caller::of(extensions);
        self.audit.wait_for_turn(&caller.asker, &query.sql).await;
        let mut entry = self.audit.begin(&caller.asker, &query.sql, query.pid);
        let asked = query.settings_for(&caller)?;
        let rows = match self.plans.take_plan(&caller.asker, &query.handle(), Instant::now()) {
            Some(plan) => self.engine.ask_by(plan, &query.sql, asked).await,
            None => self.engine.ask(&query.sql, asked).await,
        };
        let rows = rows.inspect_err(|error| entry.finish(Some(error)))?;
        let schema = rows.schema();
        let written = Arc::new(Mutex::new(entry));
        let (taken, sent) = (Arc::clone(&written), Arc::clone(&written));
        let rows = rows.map(move |batch| match batch {
            Ok(batch) => {
                lock(&taken).count_sent(batch.num_rows() as u64, 0);
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
            lock(&sent).count_sent(0, (message.data_header.len() + message.data_body.len()) as u64);
        });
        // Reached only when the client has taken everything before it.
        let end = futures::stream::poll_fn(move |_| {
            lock(&written).finish(None);
            Poll::Ready(None)
        });
        Ok(Response::new(Box::pin(messages.chain(end))))
    }
}

fn lock(entry: &Mutex<QueryEntry>) -> MutexGuard<'_, QueryEntry> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::RecordBatch;
    use arrow_flight::decode::FlightRecordBatchStream;
    use arrow_flight::sql::{ProstMessageExt, TicketStatementQuery};
    use probe_query::QueryEngine;
    use probe_store::Store;
    use tonic::metadata::MetadataMap;

    use super::*;
    use crate::auth::TokenScopes;
    use crate::server::peer::AuditedCaller;

    #[tokio::test]
    async fn the_call_that_gets_the_rows_runs_what_the_call_before_it_planned() {
        let engine = Arc::new(QueryEngine::new(Store::new(1 << 20), Vec::new()).unwrap());
        let service = FlightSqlHandler { engine, audit: Arc::default(), plans: Arc::default() };
        let asker = AuditedCaller { who: "uid:0".into(), peer: Some("pid:7".into()) };
        let (scopes, gone) = (TokenScopes::default(), Default::default());
        let mut extensions = Extensions::new();
        extensions.insert(Caller { asker: asker.clone(), scopes, over_tcp: false, gone });
        let query = QueryTicket::new("SELECT COUNT(*) FROM python.steps".into(), &MetadataMap::new()).unwrap();
        let handle = query.handle();
        let ticket = TicketStatementQuery { statement_handle: handle.clone() };
        // As drivers do that prepare a statement first, and as others do.
        for prepares in [true, false] {
            let mut request = Request::new(FlightDescriptor::default());
            *request.extensions_mut() = extensions.clone();
            if prepares {
                service.prepare(&query, &extensions).await.unwrap();
                let prepared = service.plans.take_plan(&asker, &handle, Instant::now()).unwrap();
                service.plans.insert(&asker, handle.clone(), prepared, None);
            }
            service.info(&query, ticket.as_any(), request).await.unwrap();
            let plan = service.plans.take_plan(&asker, &handle, Instant::now()).unwrap();
            assert!(service.plans.take_plan(&asker, &handle, Instant::now()).is_none(), "planned once");
            service.plans.insert(&asker, handle.clone(), plan, None);
            let answer = service.run(query.clone(), &extensions).await.unwrap();
            assert!(service.plans.take_plan(&asker, &handle, Instant::now()).is_none());
            let batches = FlightRecordBatchStream::new_from_flight_data(answer.into_inner().map_err(FlightError::from));
            let batches: Vec<RecordBatch> = batches.try_collect().await.unwrap();
            assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 1);
        }
    }
}
