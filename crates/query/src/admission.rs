//! Decides which queries run now, which wait and which are refused. A query whose client reads nothing of the answer stalls:
//! it gives its slot to another query until the client goes on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use probe_common::error::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::bounds::QueryBounds;
use super::limits::QueryLimits;

/// Answers that may stall, waiting for their clients; of more, the one that has stalled longest is given up.
const MAX_STALLED: usize = 32;

/// The slots of one engine.
#[derive(Debug)]
pub(super) struct QueryAdmission {
    running: Arc<Semaphore>,
    /// Slots for queries that run and for those that wait.
    there: Arc<Semaphore>,
    /// Queries that have stalled, longest first.
    stalled: Mutex<VecDeque<CancellationToken>>,
}

/// The slot of a query that may run.
#[derive(Debug)]
pub(super) struct QueryPermit {
    admission: Arc<QueryAdmission>,
    // Dropped before `_running`: the query that runs next finds it free.
    _there: Option<OwnedSemaphorePermit>,
    _running: OwnedSemaphorePermit,
}

/// A query that has stalled and has no slot.
#[derive(Debug)]
pub(super) struct StalledQuery {
    admission: Arc<QueryAdmission>,
    end: CancellationToken,
}

impl QueryAdmission {
    /// As many slots as `limits` says.
    pub(super) fn new(limits: &QueryLimits) -> Self {
        let all = limits.running.saturating_add(limits.waiting).min(Semaphore::MAX_PERMITS);
        Self {
            running: Arc::new(Semaphore::new(limits.running)),
            there: Arc::new(Semaphore::new(all)),
            stalled: Mutex::default(),
        }
    }

    /// Waits for a slot.
    ///
    /// # Errors
    /// Too many queries wait already, or the wait takes too long.
    pub(super) async fn enter(self: &Arc<Self>, bounds: &QueryBounds) -> Result<QueryPermit> {
        let there = Arc::clone(&self.there).try_acquire_owned().map_err(|_| bounds.limits.too_many_queries())?;
        bounds.until_ended(self.wait(Some(there))).await?
    }

    async fn wait(self: &Arc<Self>, there: Option<OwnedSemaphorePermit>) -> Result<QueryPermit> {
        let running = Arc::clone(&self.running).acquire_owned().await;
        let running = running.map_err(|_| Error::failed("the engine has ended"))?;
        Ok(QueryPermit { admission: Arc::clone(self), _running: running, _there: there })
    }
}

impl QueryPermit {
    /// Gives the slot to another query for as long as the client reads nothing.
    pub(super) fn stall(self) -> StalledQuery {
        let end = CancellationToken::new();
        let mut stalled = self.admission.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        if stalled.len() >= MAX_STALLED
            && let Some(longest) = stalled.pop_front()
        {
            longest.cancel();
        }
        stalled.push_back(end.clone());
        drop(stalled);
        StalledQuery { admission: Arc::clone(&self.admission), end }
    }
}

impl StalledQuery {
    /// Resolves when the query is given up: too many have stalled, and this one for longest.
    pub(super) async fn ended(&self) {
        self.end.cancelled().await;
    }

    /// Waits for a slot again.
    pub(super) async fn go_on(self) -> Result<QueryPermit> {
        self.admission.wait(None).await
    }
}

impl Drop for StalledQuery {
    fn drop(&mut self) {
        // No other query has this token: cancelled, it can be found in the list.
        self.end.cancel();
        let mut stalled = self.admission.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        stalled.retain(|end| !end.is_cancelled());
    }
}
