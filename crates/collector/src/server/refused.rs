//! Reads what a refused call had asked, for its audit row. Only calls with a known token are read, and what can't be understood
//! is left out.

use std::time::Duration;

use arrow_flight::sql::{ActionCreatePreparedStatementRequest, Any, CommandStatementQuery, TicketStatementQuery};
use arrow_flight::{Action, FlightDescriptor, Ticket};
use http_body_util::{BodyExt, Limited};
use probe_proto::v1::EvalCall;
use prost::Message;
use tonic::body::Body;

use super::flight::sql_of_handle;

/// How much of a call is read (bytes), and for how long.
const MAX_READ_BYTES: usize = 128 << 10;
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of gRPC before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The text of a query or a snippet; empty where it is not known.
#[derive(Debug, Default)]
pub(super) struct RefusedText(pub(super) String);

/// Takes the body of a call, and reads the text from it.
pub(super) async fn text(request: &mut http::Request<Body>) -> RefusedText {
    let path = request.uri().path().to_owned();
    let body = std::mem::replace(request.body_mut(), Body::empty());
    // The caller may keep its side open: the first message is all that is needed, and it comes first.
    let read = tokio::time::timeout(READ_TIMEOUT, first(Limited::new(body, MAX_READ_BYTES)));
    RefusedText(read.await.ok().flatten().and_then(|message| of(&path, &message)).unwrap_or_default())
}

async fn first(mut body: Limited<Body>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(prefix) = bytes.first_chunk::<PREFIX>() {
            let [0, length @ ..] = *prefix else { return None };
            let length = u32::from_be_bytes(length) as usize;
            if length > MAX_READ_BYTES {
                return None;
            }
            if let Some(message) = bytes.get(PREFIX..PREFIX + length) {
                return Some(message.to_vec());
            }
        }
        let frame = body.frame().await?.ok()?;
        bytes.extend_from_slice(&frame.into_data().ok()?);
    }
}

fn of(path: &str, message: &[u8]) -> Option<String> {
    let any = |bytes: &[u8]| Any::decode(bytes).ok();
    match path.rsplit('/').next()? {
        "Eval" => Some(EvalCall::decode(message).ok()?.code),
        "GetFlightInfo" | "GetSchema" => {
            let command = any(&FlightDescriptor::decode(message).ok()?.cmd)?;
            Some(command.unpack::<CommandStatementQuery>().ok()??.query)
        }
        "DoGet" => {
            let ticket = any(&Ticket::decode(message).ok()?.ticket)?;
            sql_of_handle(&ticket.unpack::<TicketStatementQuery>().ok()??.statement_handle)
        }
        "DoAction" => {
            let action = any(&Action::decode(message).ok()?.body)?;
            Some(action.unpack::<ActionCreatePreparedStatementRequest>().ok()??.query)
        }
        _ => None,
    }
}
