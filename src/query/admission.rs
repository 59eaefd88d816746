//! Who may run now, who waits, and who is told to come again.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::Bounds;
use super::limits::Limits;
use crate::error::{Error, Result};

/// Of one engine.
#[derive(Debug)]
pub(super) struct Admission {
    running: Arc<Semaphore>,
    /// Those that run and those that wait.
    there: Arc<Semaphore>,
}

/// Of a query that may run.
#[derive(Debug)]
pub(super) struct Permit {
    _running: OwnedSemaphorePermit,
    _there: OwnedSemaphorePermit,
}

impl Admission {
    /// As many as `limits` says.
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            running: Arc::new(Semaphore::new(limits.running)),
            there: Arc::new(Semaphore::new(limits.running.saturating_add(limits.waiting).min(Semaphore::MAX_PERMITS))),
        }
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// Too many wait already, or the wait takes too long.
    pub(super) async fn enter(&self, bounds: &Bounds) -> Result<Permit> {
        let there = Arc::clone(&self.there).try_acquire_owned().map_err(|_| bounds.limits.too_many_queries())?;
        let running = bounds.in_time(Arc::clone(&self.running).acquire_owned()).await?;
        let running = running.map_err(|_| Error::failed("the engine has ended"))?;
        Ok(Permit { _running: running, _there: there })
    }
}
