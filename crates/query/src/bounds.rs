//! What one question may take: what the engine allows, or less where its client says so.

use std::sync::Arc;
use std::time::Duration;

use probe_common::error::{Error, Result};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::limits::{Asked, Limits};

/// The limits of one query: the engine's, or the client's where these are lower.
#[derive(Debug, Clone)]
pub(super) struct Bounds {
    pub(super) limits: Arc<Limits>,
    timeout: Option<Duration>,
    /// When that is over.
    deadline: Option<Instant>,
    rows: u64,
    bytes: u64,
    pub(super) memory: usize,
    /// Cancelled when whoever asked may not ask any more.
    revoked: CancellationToken,
    /// Cancelled when nobody waits for the answer any more.
    pub(super) gone: CancellationToken,
    /// Cancelled when more was allocated than it may have.
    pub(super) exhausted: CancellationToken,
}

impl Bounds {
    /// From now on.
    pub(super) fn new(limits: &Arc<Limits>, asked: &Asked) -> Self {
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

    /// Resolves when the question has to end, with why.
    pub(super) async fn over(&self) -> Error {
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

    /// Why the question is over, where it is.
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
        self.gone.is_cancelled().then(|| Error::failed("nobody waits for the answer"))
    }

    /// The result of `work`, unless the question has to end before.
    pub(super) async fn hold<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            error = self.over() => Err(error),
        }
    }

    /// Whether an answer may have so many rows and bytes.
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

    /// It takes more than it may.
    pub(super) fn too_much_memory(&self) -> Error {
        self.limits.too_much_memory(self.memory)
    }
}

fn revoked() -> Error {
    Error::denied("the token was revoked")
}
