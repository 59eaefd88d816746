//! One stream of an agent, from its Hello to its end: each frame goes to its [`AgentSession`], which answers.

use std::sync::Arc;
use std::time::Duration;

use probe_proto::v1::{AgentFrame, CollectorFrame, agent_frame, collector_frame};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::agent::Downlink;
use super::process_exits::{self, PeerProcess};
use super::session::{AgentSession, StreamEnd};
use super::shared::CollectorState;

/// A stream that says nothing at first is closed after this long.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// When an agent's process has ended, the stream is closed after so long without a frame.
const REST_TIMEOUT: Duration = Duration::from_millis(200);
/// Speaks with an agent until the stream ends, or its token is `gone`.
pub(crate) async fn serve(
    shared: Arc<CollectorState>,
    mut inbound: Streaming<AgentFrame>,
    downlink: Downlink,
    peer: PeerProcess,
    gone: CancellationToken,
) {
    let _open = shared.registry.open();
    let connection = shared.registry.new_connection();
    let mut session = None;
    let end = tokio::select! {
        end = speak(&shared, &mut inbound, &downlink, (connection, peer), &mut session) => end,
        () = gone.cancelled() => StreamEnd::Closed(Status::permission_denied("the token was revoked")),
        () = shared.stopping.cancelled() => StreamEnd::Closed(Status::unavailable("the collector is stopping")),
    };
    if let Some(session) = &session {
        session.note_end(&end, &shared);
        let bye = matches!(end, StreamEnd::Bye);
        session.close(bye, &shared);
        if shared.registry.disconnect(&session.agent, connection, bye) {
            shared.routes.agent_gone(session.agent.key);
        }
    }
    let last = match end {
        StreamEnd::Bye | StreamEnd::Broken => return,
        StreamEnd::Closed(status) => Err(status),
        StreamEnd::Malformed(problem) | StreamEnd::BadBatch(problem) => {
            tracing::warn!("closed the stream of an agent that sent a malformed frame: {problem}");
            Err(Status::invalid_argument(format!("malformed frame: {problem}")))
        }
        StreamEnd::Refused(refused) => {
            tracing::warn!("refused an agent: {}", refused.message);
            Ok(CollectorFrame { frame: Some(collector_frame::Frame::Refused(refused)) })
        }
    };
    // An agent that does not read its frames does not get the reason either.
    let _ = downlink.try_send(last);
}

async fn speak(
    shared: &Arc<CollectorState>,
    inbound: &mut Streaming<AgentFrame>,
    downlink: &Downlink,
    (connection, peer): (u64, PeerProcess),
    session: &mut Option<AgentSession>,
) -> StreamEnd {
    let first = match timeout(HELLO_TIMEOUT, inbound.message()).await {
        Ok(first) => first,
        Err(_) => return StreamEnd::Closed(Status::deadline_exceeded("no Hello came")),
    };
    let hello = match first {
        Ok(Some(AgentFrame { frame: Some(agent_frame::Frame::Hello(hello)) })) => hello,
        Ok(Some(_)) => return StreamEnd::Malformed("the first frame is not Hello".into()),
        Ok(None) => return StreamEnd::Broken,
        Err(status) => return broken(status),
    };
    let begun = match AgentSession::begin(shared, hello, downlink, connection) {
        Ok(begun) => begun,
        Err(end) => return end,
    };
    let session = session.insert(begun);
    process_exits::watch(shared, &session.agent, &peer);
    let over = session.agent.over.clone();
    let mut durable = shared.journal.durable();
    loop {
        let frame = tokio::select! {
            frame = inbound.message() => frame,
            // A fork of the process may hold the connection open for longer than the process lives.
            () = over.cancelled() => match timeout(REST_TIMEOUT, inbound.message()).await {
                Ok(frame) => frame,
                Err(_) => return StreamEnd::Broken,
            },
            changed = durable.changed() => {
                if changed.is_err() {
                    return StreamEnd::Closed(Status::unavailable("the collector is stopping"));
                }
                let position = durable.borrow_and_update().position;
                session.acknowledge(position, downlink);
                continue;
            }
        };
        match frame {
            Ok(Some(AgentFrame { frame: Some(frame) })) => {
                if let Err(end) = session.receive(shared, frame) {
                    return end;
                }
            }
            // A kind of frame that a later version has: there is nothing to count as lost.
            Ok(Some(AgentFrame { frame: None })) => {}
            Ok(None) => return StreamEnd::Broken,
            Err(status) => return broken(status),
        }
        // An agent that brings more than memory or the disk takes waits here, and keeps the rest on its side.
        shared.store.wait_for_room().await;
        shared.journal.wait_for_room().await;
        // A stream that always has frames takes turns with the others.
        tokio::task::consume_budget().await;
    }
}

/// The end of a stream by an error: of the frame, or of the connection.
fn broken(status: Status) -> StreamEnd {
    // Errors of the connection carry their cause; those of decoding a frame are tonic's own words.
    let of_the_frame = std::error::Error::source(&status).is_none();
    match status.code() {
        Code::Internal | Code::OutOfRange | Code::ResourceExhausted if of_the_frame => {
            StreamEnd::Malformed(status.message().to_owned())
        }
        _ => StreamEnd::Broken,
    }
}
