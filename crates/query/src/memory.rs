//! Memory of queries: one budget for all of them, of which each has a little for itself, so that a plain question is
//! answered also while another has taken all the rest. A question that is over gets no more, which ends work that nobody can
//! stop from outside.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};

use super::allocator;
use super::bounds::Bounds;
use super::limits::Limits;

/// What queries that run at a time have each for themselves is this part of the whole, together.
const OWN: usize = 4;
/// And no more than this: the largest piece of an answer that is ready, and one that is taken. Those that stand still are
/// not among those that run.
const MAX_OWN_BYTES: usize = 1 << 20;

/// What all queries of an engine together may hold on to.
#[derive(Debug)]
pub(super) struct Budget {
    /// Of the part that is for whoever wants it.
    most: usize,
    used: Mutex<usize>,
    /// That each query has for itself.
    own: usize,
}

/// What one query holds on to.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    bounds: Bounds,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    now: usize,
    highest: usize,
}

impl Budget {
    /// As `limits` says.
    pub(super) fn new(limits: &Limits) -> Self {
        let running = limits.running.max(1);
        let own = (limits.memory / OWN / running).min(MAX_OWN_BYTES);
        Self { most: limits.memory - own * running, used: Mutex::default(), own }
    }

    /// That of one query, within its bounds.
    pub(super) fn share(self: &Arc<Self>, bounds: &Bounds) -> Arc<dyn MemoryPool> {
        Arc::new(Share { budget: Arc::clone(self), bounds: bounds.clone(), used: Mutex::default() })
    }
}

impl Share {
    /// What of `used` bytes counts in the common part.
    fn common(&self, used: usize) -> usize {
        used.saturating_sub(self.budget.own)
    }

    fn add(&self, bytes: usize, must: bool) -> Result<()> {
        let mut used = lock(&self.used);
        let after = used.now.saturating_add(bytes);
        if after > self.bounds.memory && !must {
            return Err(exhausted());
        }
        let more = self.common(after) - self.common(used.now);
        if more > 0 {
            let mut common = lock(&self.budget.used);
            let together = common.saturating_add(more);
            if together > self.budget.most && !must {
                return Err(exhausted());
            }
            *common = together;
        }
        used.now = after;
        used.highest = used.highest.max(after);
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        allocator::give_back(lock(&self.used).highest);
    }
}

fn lock<T>(used: &Mutex<T>) -> MutexGuard<'_, T> {
    used.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is said of it to people is the limits' (`limits`).
fn exhausted() -> DataFusionError {
    DataFusionError::ResourcesExhausted("no memory is left for this query".into())
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", lock(&self.used).now, self.bounds.memory)
    }
}

impl MemoryPool for Share {
    fn name(&self) -> &'static str {
        "share"
    }

    fn grow(&self, _: &MemoryReservation, additional: usize) {
        // What must be is taken, and nothing more then.
        let _ = self.add(additional, true);
    }

    fn shrink(&self, _: &MemoryReservation, shrink: usize) {
        let mut used = lock(&self.used);
        let after = used.now.saturating_sub(shrink);
        let less = self.common(used.now) - self.common(after);
        if less > 0 {
            let mut common = lock(&self.budget.used);
            *common = common.saturating_sub(less);
        }
        used.now = after;
    }

    fn try_grow(&self, _: &MemoryReservation, additional: usize) -> Result<()> {
        if let Some(error) = self.bounds.passed() {
            return Err(DataFusionError::External(Box::new(error)));
        }
        self.add(additional, false)
    }

    fn reserved(&self) -> usize {
        lock(&self.used).now
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.bounds.memory)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::limits::Asked;
    use datafusion::execution::memory_pool::MemoryConsumer;
    use std::time::Duration;

    #[test]
    fn a_query_has_a_little_also_where_another_has_the_rest() {
        let limits = Arc::new(Limits { memory: 1600, running: 4, ..Limits::default() });
        let budget = Arc::new(Budget::new(&limits));
        let within = |memory| Bounds::new(&limits, &Asked { memory: Some(memory), ..Asked::default() });
        let reserve = |share: &Arc<dyn MemoryPool>| MemoryConsumer::new("").register(share);
        let (greedy, plain) = (budget.share(&within(1600)), budget.share(&within(1600)));
        let (hog, small) = (reserve(&greedy), reserve(&plain));
        hog.try_grow(1300).unwrap();
        assert!(hog.try_grow(1).is_err() && small.try_grow(101).is_err());
        small.try_grow(100).unwrap();
        drop(hog);
        small.try_grow(1200).unwrap();
        small.shrink(1250);
        assert_eq!((plain.reserved(), *lock(&budget.used)), (50, 0));
        let little = budget.share(&within(10));
        assert!(reserve(&little).try_grow(11).is_err() && reserve(&little).try_grow(10).is_ok());
    }
    #[test]
    fn a_question_that_is_over_gets_no_more() {
        let limits = Arc::new(Limits { memory: 1600, running: 4, ..Limits::default() });
        let budget = Arc::new(Budget::new(&limits));
        let says = |bounds: &Bounds| {
            let reservation = MemoryConsumer::new("").register(&budget.share(bounds));
            reservation.try_grow(1).map_err(|error| crate::from_datafusion(error).to_string())
        };
        let late = Bounds::new(&limits, &Asked { timeout: Some(Duration::ZERO), ..Asked::default() });
        assert!(says(&late).unwrap_err().contains("no whole answer within"));
        let asked = Asked::default();
        let bounds = Bounds::new(&limits, &asked);
        says(&bounds).unwrap();
        asked.revoked.cancel();
        assert!(says(&bounds).unwrap_err().contains("revoked"));
        let bounds = Bounds::new(&limits, &Asked::default());
        bounds.gone.cancel();
        assert!(says(&bounds).is_err());
    }
}
