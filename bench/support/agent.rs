//! An agent that sends what a benchmark gives it.

use std::path::Path;
use std::time::Duration;

use probe_proto::v1::{self, agent_frame, collector_frame};
use tokio::sync::{mpsc, watch};
use tonic::transport::Channel;

use super::Result;

/// The newest batch that was acknowledged, or why there will be none.
type Acknowledged = std::result::Result<u64, String>;

/// A session of a made-up agent with a collector.
pub(crate) struct BenchAgent {
    frames: mpsc::Sender<v1::AgentFrame>,
    acknowledged: watch::Receiver<Acknowledged>,
}

/// A channel to the collector at `socket`, with windows as the agent has them.
pub(crate) async fn channel(socket: &Path) -> Result<Channel> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("unix:{}", socket.display()))?
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20);
    Ok(endpoint.connect().await?)
}

/// The first message of an agent called `instance` with that pid.
pub(crate) fn hello(instance: &str, pid: u32, tables: Vec<v1::TableSchema>) -> v1::Hello {
    v1::Hello {
        protocol: probe_proto::PROTOCOL,
        instance: instance.to_owned(),
        host: "bench".into(),
        pid,
        role: "trainer".into(),
        tables,
        ..Default::default()
    }
}

impl BenchAgent {
    pub(crate) async fn connect(channel: Channel, hello: v1::Hello) -> Result<Self> {
        let mut client = v1::agent_client::AgentClient::new(channel);
        let (frames, outgoing) = mpsc::channel(8);
        frames.send(v1::AgentFrame { frame: Some(agent_frame::Frame::Hello(hello)) }).await?;
        let mut incoming = client.session(tokio_stream::wrappers::ReceiverStream::new(outgoing)).await?.into_inner();
        let (newest, acknowledged) = watch::channel(Ok(0));
        tokio::spawn(async move {
            let ended = loop {
                match incoming.message().await {
                    Ok(Some(frame)) => match frame.frame {
                        Some(collector_frame::Frame::Ack(ack)) => drop(newest.send(Ok(ack.seq))),
                        Some(collector_frame::Frame::Refused(refused)) => break refused.message,
                        _ => {}
                    },
                    Ok(None) => break "the collector closed the stream".into(),
                    Err(error) => break error.to_string(),
                }
            };
            let _ = newest.send(Err(ended));
        });
        Ok(Self { frames, acknowledged })
    }

    pub(crate) async fn send(&self, frame: agent_frame::Frame) -> Result<()> {
        Ok(self.frames.send(v1::AgentFrame { frame: Some(frame) }).await?)
    }

    /// Waits until the batch with the number `seq` is stored.
    pub(crate) async fn acknowledged(&mut self, seq: u64) -> Result<()> {
        let stored = self.acknowledged.wait_for(|newest| newest.as_ref().map_or(true, |newest| *newest >= seq));
        let newest = tokio::time::timeout(Duration::from_secs(120), stored).await??;
        newest.as_ref().map(|_| ()).map_err(|why| why.clone().into())
    }
}
