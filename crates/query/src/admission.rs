//! Who may run now, who waits, and who is told to come again. A question whose client takes nothing of its answer runs
//! no more: its place is another's until the client goes on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use probe_common::error::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::bounds::Bounds;
use super::limits::Limits;

/// So many answers may stand still, waiting for their clients; of more, the one that has stood longest is given up.
const MAX_STALLED: usize = 32;

/// Of one engine.
#[derive(Debug)]
pub(super) struct Admission {
    running: Arc<Semaphore>,
    /// Those that run and those that wait.
    there: Arc<Semaphore>,
    /// Those that stand still, longest first.
    stalled: Mutex<VecDeque<CancellationToken>>,
}

/// Of a query that may run.
#[derive(Debug)]
pub(super) struct Permit {
    admission: Arc<Admission>,
    // Given back before the other: whoever runs next finds it free.
    _there: Option<OwnedSemaphorePermit>,
    _running: OwnedSemaphorePermit,
}

/// Of a query that stands still.
#[derive(Debug)]
pub(super) struct Stall {
    admission: Arc<Admission>,
    end: CancellationToken,
}

impl Admission {
    /// As many as `limits` says.
    pub(super) fn new(limits: &Limits) -> Self {
        let all = limits.running.saturating_add(limits.waiting).min(Semaphore::MAX_PERMITS);
        Self {
            running: Arc::new(Semaphore::new(limits.running)),
            there: Arc::new(Semaphore::new(all)),
            stalled: Mutex::default(),
        }
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// Too many wait already, or the wait takes too long.
    pub(super) async fn enter(self: &Arc<Self>, bounds: &Bounds) -> Result<Permit> {
        let there = Arc::clone(&self.there).try_acquire_owned().map_err(|_| bounds.limits.too_many_queries())?;
        bounds.hold(self.wait(Some(there))).await?
    }

    async fn wait(self: &Arc<Self>, there: Option<OwnedSemaphorePermit>) -> Result<Permit> {
        let running = Arc::clone(&self.running).acquire_owned().await;
        let running = running.map_err(|_| Error::failed("the engine has ended"))?;
        Ok(Permit { admission: Arc::clone(self), _running: running, _there: there })
    }
}

impl Permit {
    /// Gives the place to another for as long as the client takes nothing.
    pub(super) fn stall(self) -> Stall {
        let end = CancellationToken::new();
        let mut stalled = self.admission.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        if stalled.len() >= MAX_STALLED
            && let Some(longest) = stalled.pop_front()
        {
            longest.cancel();
        }
        stalled.push_back(end.clone());
        drop(stalled);
        Stall { admission: Arc::clone(&self.admission), end }
    }
}

impl Stall {
    /// Resolves when it has stood longest of too many.
    pub(super) async fn ended(&self) {
        self.end.cancelled().await;
    }

    /// Waits for a place again.
    pub(super) async fn go_on(self) -> Result<Permit> {
        self.admission.wait(None).await
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        // Nobody else has this one: cancelled, it is known again.
        self.end.cancel();
        let mut stalled = self.admission.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        stalled.retain(|end| !end.is_cancelled());
    }
}
