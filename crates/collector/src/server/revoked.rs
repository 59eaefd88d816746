//! Answers that end when the token of their call is revoked.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body as HttpBody, Frame};
use probe_common::error::Error;
use prost::bytes::Bytes;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body;

/// The body of an answer, which ends when the token is revoked.
pub(super) struct RevocableBody {
    body: Body,
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: bool,
}

impl RevocableBody {
    pub(super) fn new(body: Body, gone: CancellationToken) -> Self {
        Self { body, gone: Box::pin(gone.cancelled_owned()), ended: false }
    }
}

impl HttpBody for RevocableBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.gone.as_mut().poll(cx).is_ready() {
            self.ended = true;
            // Dropping the body stops the work on the answer.
            self.body = Body::empty();
            let status = Status::from(Error::denied("the token was revoked"));
            let mut trailers = http::HeaderMap::new();
            return Poll::Ready(match status.add_header(&mut trailers) {
                Ok(()) => Some(Ok(Frame::trailers(trailers))),
                Err(status) => Some(Err(status)),
            });
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }
}
