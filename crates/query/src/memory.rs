//! Memory of queries: one budget for all of them, of which each has a little for itself, so that a plain question is
//! answered also while another has taken all the rest.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};

use super::limits::Limits;

/// What queries that run at a time have each for themselves is this part of the whole, together.
const OWN: usize = 4;
/// And no more than this: the largest piece of an answer that is ready, and one that is taken. Those that stand still are
/// not among those that run.
const MOST_OWN: usize = 1 << 20;

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
    most: usize,
    used: Mutex<usize>,
}

impl Budget {
    /// As `limits` says.
    pub(super) fn new(limits: &Limits) -> Self {
        let running = limits.running.max(1);
        let own = (limits.memory / OWN / running).min(MOST_OWN);
        Self { most: limits.memory - own * running, used: Mutex::default(), own }
    }

    /// That of one query, which may have so many bytes of it.
    pub(super) fn share(self: &Arc<Self>, most: usize) -> Arc<dyn MemoryPool> {
        Arc::new(Share { budget: Arc::clone(self), most, used: Mutex::default() })
    }
}

impl Share {
    /// What of `used` bytes counts in the common part.
    fn common(&self, used: usize) -> usize {
        used.saturating_sub(self.budget.own)
    }

    fn add(&self, bytes: usize, must: bool) -> Result<()> {
        let mut used = lock(&self.used);
        let after = used.saturating_add(bytes);
        if after > self.most && !must {
            return Err(exhausted());
        }
        let more = self.common(after) - self.common(*used);
        if more > 0 {
            let mut common = lock(&self.budget.used);
            let together = common.saturating_add(more);
            if together > self.budget.most && !must {
                return Err(exhausted());
            }
            *common = together;
        }
        *used = after;
        Ok(())
    }
}

fn lock(used: &Mutex<usize>) -> MutexGuard<'_, usize> {
    used.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is said of it to people is the limits' (`limits`).
fn exhausted() -> DataFusionError {
    DataFusionError::ResourcesExhausted("no memory is left for this query".into())
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", lock(&self.used), self.most)
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
        let after = used.saturating_sub(shrink);
        let less = self.common(*used) - self.common(after);
        if less > 0 {
            let mut common = lock(&self.budget.used);
            *common = common.saturating_sub(less);
        }
        *used = after;
    }

    fn try_grow(&self, _: &MemoryReservation, additional: usize) -> Result<()> {
        self.add(additional, false)
    }

    fn reserved(&self) -> usize {
        *lock(&self.used)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.most)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use datafusion::execution::memory_pool::MemoryConsumer;

    #[test]
    fn a_query_has_a_little_also_where_another_has_the_rest() {
        let budget = Arc::new(Budget::new(&Limits { memory: 1600, running: 4, ..Limits::default() }));
        let reserve = |share: &Arc<dyn MemoryPool>| MemoryConsumer::new("").register(share);
        let (greedy, plain) = (budget.share(1600), budget.share(1600));
        let (hog, small) = (reserve(&greedy), reserve(&plain));
        hog.try_grow(1300).unwrap();
        assert!(hog.try_grow(1).is_err() && small.try_grow(101).is_err());
        small.try_grow(100).unwrap();
        drop(hog);
        small.try_grow(1200).unwrap();
        small.shrink(1250);
        assert_eq!((plain.reserved(), *lock(&budget.used)), (50, 0));
        let little = budget.share(10);
        assert!(reserve(&little).try_grow(11).is_err() && reserve(&little).try_grow(10).is_ok());
    }
}
