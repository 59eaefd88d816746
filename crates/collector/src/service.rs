//! The Agent service: one task for each stream.

use std::sync::Arc;

use probe_proto::v1::agent_server::Agent;
use probe_proto::v1::{AgentFrame, CollectorFrame, Refused, collector_frame};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::shared::CollectorState;
use super::{process_exits, stream};
use crate::server::peer::Caller;

/// Most frames that may wait for an agent to take them.
const MAX_QUEUED_FRAMES: usize = 256;
/// Most streams that may be open, those that have not said Hello included.
const MAX_STREAMS: usize = 2048;

/// The service that agents call.
#[derive(Debug, Clone)]
pub(crate) struct AgentService(pub Arc<CollectorState>);

#[tonic::async_trait]
impl Agent for AgentService {
    type SessionStream = ReceiverStream<Result<CollectorFrame, Status>>;

    async fn session(&self, request: Request<Streaming<AgentFrame>>) -> Result<Response<Self::SessionStream>, Status> {
        let gone = Caller::of(request.extensions()).gone;
        let (downlink, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
        if self.0.registry.open_streams() >= MAX_STREAMS {
            let refused = Refused { message: "too many streams are open".into(), retry: true, retry_after_ms: 2000 };
            // An empty channel has room.
            let _ = downlink.try_send(Ok(CollectorFrame { frame: Some(collector_frame::Frame::Refused(refused)) }));
        } else {
            let peer = process_exits::PeerProcess::of(request.extensions());
            tokio::spawn(stream::serve(Arc::clone(&self.0), request.into_inner(), downlink, peer, gone));
        }
        Ok(Response::new(ReceiverStream::new(frames)))
    }
}
