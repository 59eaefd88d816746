//! The events of a snippet on their way to the client: in order and in bounded memory. The snippet never waits for the client.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use probe_proto::v1::{EvalEvent, Output, RankOutput, eval_event::Event};
use tokio::sync::mpsc;
use tonic::Status;

/// Pieces of output are joined up to this size and larger ones cut (bytes); gRPC's clients take 4 MB.
const PIECE: usize = 256 << 10;

/// Where events for a client wait until it takes them.
#[derive(Debug)]
pub(super) struct ClientFeed {
    waiting: VecDeque<WaitingEvent>,
    client: mpsc::Sender<Result<EvalEvent, Status>>,
    /// Bytes of output that may still come.
    left: u64,
    /// Bytes of output that came.
    pub bytes: u64,
}

#[derive(Debug)]
enum WaitingEvent {
    Event(Event),
    Output { rank: Option<i32>, stderr: bool, data: BytesMut },
}

/// The client is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClientGone;

impl ClientFeed {
    /// A feed to `client`, for at most `limit` bytes of output.
    pub(super) fn new(client: mpsc::Sender<Result<EvalEvent, Status>>, limit: u64) -> Self {
        Self { waiting: VecDeque::new(), client, left: limit, bytes: 0 }
    }

    /// Adds an event that is no output.
    pub(super) fn push(&mut self, event: Event) {
        self.waiting.push_back(WaitingEvent::Event(event));
    }

    /// Adds output; false where it did not fit any more and was cut.
    pub(super) fn output(&mut self, rank: Option<i32>, output: &Output) -> bool {
        let fits = usize::try_from(self.left).unwrap_or(usize::MAX).min(output.data.len());
        self.left -= fits as u64;
        self.bytes += fits as u64;
        let mut rest = &output.data[..fits];
        while !rest.is_empty() {
            let room = match self.waiting.back_mut() {
                Some(WaitingEvent::Output { rank: last, stderr, data })
                    if (*last, *stderr) == (rank, output.stderr) && data.len() < PIECE =>
                {
                    let (now, later) = rest.split_at(rest.len().min(PIECE - data.len()));
                    data.extend_from_slice(now);
                    rest = later;
                    continue;
                }
                _ => BytesMut::new(),
            };
            self.waiting.push_back(WaitingEvent::Output { rank, stderr: output.stderr, data: room });
        }
        fits == output.data.len()
    }

    /// Hands over events as fast as the client takes them; when none is left, waits for the client to go. May be dropped at any
    /// await.
    pub(super) async fn pump(&mut self) -> ClientGone {
        if self.flush().await.is_ok() {
            self.client.closed().await;
        }
        ClientGone
    }

    /// Ends the feed: the client sees the end of its events.
    pub(super) fn hang_up(&mut self) {
        self.waiting.clear();
        self.client = mpsc::channel(1).0;
    }

    /// Hands over everything; an error where the client is gone. May be dropped at any await.
    pub(super) async fn flush(&mut self) -> Result<(), ClientGone> {
        while !self.waiting.is_empty() {
            let permit = self.client.reserve().await.map_err(|_| ClientGone)?;
            if let Some(next) = self.waiting.pop_front() {
                permit.send(Ok(next.into()));
            }
        }
        Ok(())
    }
}

impl From<WaitingEvent> for EvalEvent {
    fn from(waiting: WaitingEvent) -> Self {
        let event = match waiting {
            WaitingEvent::Event(event) => event,
            WaitingEvent::Output { rank, stderr, data } => {
                let output = Output { stderr, data: Bytes::from(data) };
                Event::Output(RankOutput { rank, output: Some(output) })
            }
        };
        Self { event: Some(event) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn stdout(text: &str) -> Output {
        Output { stderr: false, data: Bytes::copy_from_slice(text.as_bytes()) }
    }

    #[tokio::test]
    async fn output_is_joined_cut_and_limited() {
        let (sender, mut receiver) = mpsc::channel(16);
        let mut feed = ClientFeed::new(sender, PIECE as u64 + 10);
        for _ in 0..5 {
            assert!(feed.output(Some(0), &stdout("a")));
        }
        assert!(feed.output(Some(1), &stdout("b")));
        assert!(!feed.output(Some(1), &stdout(&"c".repeat(PIECE + 100))), "past the limit");
        assert!(!feed.output(Some(1), &stdout("d")));
        assert_eq!(feed.bytes, PIECE as u64 + 10);
        feed.flush().await.unwrap();
        drop(feed);
        let mut pieces = Vec::new();
        while let Some(Ok(EvalEvent { event: Some(Event::Output(output)) })) = receiver.recv().await {
            pieces.push((output.rank, output.output.unwrap().data.len()));
        }
        assert_eq!(pieces, [(Some(0), 5), (Some(1), PIECE), (Some(1), 5)]);
    }

    #[tokio::test]
    async fn a_client_that_goes_is_noticed() {
        let (sender, receiver) = mpsc::channel(1);
        let mut feed = ClientFeed::new(sender, 10);
        assert!(feed.output(None, &stdout("a")));
        drop(receiver);
        assert_eq!(feed.pump().await, ClientGone);
        assert_eq!(feed.flush().await, Err(ClientGone));
    }
}
