//! The bounds of one query: those of the engine, or lower ones of its client.

use std::sync::Arc;
use std::time::Duration;

use probe_common::error::{Error, Result};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::limits::{QueryLimits, QuerySettings};

/// The limits of one query: the engine's, or the client's where these are lower.
#[derive(Debug, Clone)]
pub(super) struct QueryBounds {
    pub(super) limits: Arc<QueryLimits>,
    timeout: Option<Duration>,
    /// The time at which `timeout` is over.
    deadline: Option<Instant>,
    rows: u64,
    bytes: u64,
    pub(super) memory: usize,
    /// Cancelled when the client loses the permission to query.
    revoked: CancellationToken,
    /// Cancelled when the answer has been dropped.
    pub(super) gone: CancellationToken,
    /// Cancelled when the query has allocated more than it may have.
    pub(super) exhausted: CancellationToken,
}

impl QueryBounds {
    /// The bounds of a query that begins now.
    pub(super) fn new(limits: &Arc<QueryLimits>, asked: &QuerySettings) -> Self {
        let timeout = limits.lower(asked.timeout, limits.timeout);
        Self {
            timeout,
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            rows: limits.lower(asked.rows, Some(limits.rows)).unwrap_or(limits.rows),
            bytes: limits.lower(asked.bytes, Some(limits.bytes)).unwrap_or(limits.bytes),
            memory: limits.lower(asked.memory, Some(limits.memory)).unwrap_or(limits.memory),
            revoked: asked.revoked.clone(),
            gone: CancellationToken::new(),
            exhausted: CancellationToken::new(),
            limits: Arc::clone(limits),
        }
    }

    /// Resolves when the query has to end, with the error that says why.
    pub(super) async fn ended(&self) -> Error {
        let late = async {
            match self.deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = late => self.too_late(),
            () = self.revoked.cancelled() => revoked(),
            () = self.exhausted.cancelled() => self.too_much_memory(),
        }
    }

    /// Why the query is over; None while it may go on.
    pub(super) fn passed(&self) -> Option<Error> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Some(self.too_late());
        }
        if self.revoked.is_cancelled() {
            return Some(revoked());
        }
        if self.exhausted.is_cancelled() {
            return Some(self.too_much_memory());
        }
        self.gone.is_cancelled().then(|| Error::failed("the client has disconnected"))
    }

    /// The result of `work`, unless the query has to end before.
    pub(super) async fn until_ended<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            error = self.ended() => Err(error),
        }
    }

    /// Checks that an answer may have this many rows and bytes.
    pub(super) fn check(&self, rows: u64, bytes: u64) -> Result<()> {
        if rows > self.rows {
            return Err(self.limits.too_many_rows(self.rows));
        }
        if bytes > self.bytes {
            return Err(self.limits.too_many_bytes(self.bytes));
        }
        Ok(())
    }

    fn too_late(&self) -> Error {
        self.limits.too_late(self.timeout.unwrap_or_default())
    }

    /// The error of a query that needs more memory than it may have.
    pub(super) fn too_much_memory(&self) -> Error {
        self.limits.too_much_memory(self.memory)
    }
}

fn revoked() -> Error {
    Error::denied("the token was revoked")
}
