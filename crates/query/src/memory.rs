//! Memory of queries: one budget for all of them, of which each query has a little for itself, so that a plain query is
//! answered also while another has taken all the rest. A query that is over gets no more memory, which ends work that cannot
//! be stopped from outside.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation};
use probe_common::error::Error;

use super::allocator::{self, ProcessOverhead};
use super::bounds::QueryBounds;
use super::counting::MemoryAccount;
use super::limits::QueryLimits;

/// All private shares of running queries together are at most the budget divided by this.
const OWN: usize = 4;
/// Largest private share of one query (bytes): one answer batch that is ready and one that is being read. Stalled queries do not
/// count as running.
const MAX_OWN_BYTES: usize = 1 << 20;
/// All allowances of running queries for memory without a reservation (plans, batches on their way) together are at most the
/// budget divided by this. What a query has allocated beyond its allowance counts.
const PLAIN: usize = 8;
/// Largest allowance of one query for memory without a reservation (bytes).
const MAX_PLAIN_BYTES: usize = 2 << 20;
/// The change in allocated bytes after which a share is updated.
const STEP: usize = 128 << 10;

/// The memory that all queries of an engine together may hold.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    whole: usize,
    /// Bytes of the common part, which any query may take.
    most: usize,
    /// Bytes of the common part that are taken.
    used: Mutex<usize>,
    /// Bytes that each query has for itself.
    own: usize,
    /// Bytes that each query may have allocated without a reservation.
    plain: usize,
    /// Number of shares that exist.
    shares: AtomicUsize,
    /// Memory that the process takes beside the memory of queries.
    overhead: ProcessOverhead,
}

/// The memory that one query holds.
#[derive(Debug)]
pub(super) struct QueryMemory {
    budget: Arc<MemoryBudget>,
    bounds: QueryBounds,
    used: Mutex<MemoryUse>,
    /// Bytes that are allocated for the query.
    pub(super) account: MemoryAccount,
    /// Nanoseconds that threads have worked for the query.
    worked: AtomicU64,
    /// Whether the query's statement takes much of a stack.
    pub(super) deep: AtomicBool,
}

#[derive(Debug, Default)]
struct MemoryUse {
    reserved: usize,
    /// The reserved bytes, or the allocated ones beyond the allowance where those are more.
    now: usize,
    highest: usize,
    /// The allocated bytes at the last update.
    allocated: usize,
}

impl MemoryBudget {
    /// The budget that `limits` sets.
    pub(super) fn new(limits: &QueryLimits) -> Self {
        let running = limits.running.max(1);
        let own = (limits.memory / OWN / running).min(MAX_OWN_BYTES);
        let plain = (limits.memory / PLAIN / running).min(MAX_PLAIN_BYTES);
        Self {
            whole: limits.memory,
            most: limits.memory - (own + plain) * running,
            used: Mutex::default(),
            own,
            plain,
            shares: AtomicUsize::new(0),
            overhead: ProcessOverhead::new(limits.memory),
        }
    }

    /// Bytes of the common part that all queries may have now. A quarter of the whole budget is for the process's memory beside
    /// queries, and a part of that quarter for its growth until the next look.
    fn limit(&self) -> usize {
        let beside = self.overhead.bytes().saturating_sub(self.whole / 16 * 3);
        self.most.saturating_sub(beside)
    }

    /// The share of one query, within its bounds.
    pub(super) fn share(self: &Arc<Self>, bounds: &QueryBounds) -> Arc<QueryMemory> {
        let (budget, bounds) = (Arc::clone(self), bounds.clone());
        if self.shares.fetch_add(1, Ordering::Relaxed) == 0 {
            self.overhead.at_rest();
        }
        Arc::new(QueryMemory {
            budget,
            bounds,
            used: Mutex::default(),
            account: MemoryAccount::default(),
            worked: AtomicU64::new(0),
            deep: AtomicBool::new(false),
        })
    }
}

impl QueryMemory {
    /// Why nothing is to be done for it any more, where that is so.
    pub(super) fn end_reason(&self) -> Option<Error> {
        self.bounds.passed()
    }

    /// Adds to the time that threads have worked for the query, and returns the total.
    pub(super) fn worked(&self, more: Duration) -> Duration {
        let more = u64::try_from(more.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.worked.fetch_add(more, Ordering::Relaxed).saturating_add(more))
    }

    /// Takes `bytes` for the stacks that the query's statement needs, until the query has ended.
    ///
    /// # Errors
    /// The query may not have that much.
    pub(super) fn take_stack(&self, bytes: usize) -> std::result::Result<(), Error> {
        self.deep.store(true, Ordering::Relaxed);
        self.add(bytes, false).map_err(|_| self.bounds.passed().unwrap_or_else(|| self.bounds.too_much_memory()))
    }

    /// Ends the query where its allocated memory passes what it may have.
    pub(super) fn end_if_exceeded(&self) {
        let mut used = lock(&self.used);
        if self.account.bytes().abs_diff(used.allocated) >= STEP {
            let reserved = used.reserved;
            if !self.take(&mut used, reserved, true) {
                self.bounds.exhausted.cancel();
            }
            drop(used);
            let used = *lock(&self.budget.used);
            self.budget.overhead.compare_with_process(used);
        }
    }

    /// The part of `used` bytes that counts in the common part.
    fn common(&self, used: usize) -> usize {
        used.saturating_sub(self.budget.own)
    }

    /// Sets the reserved bytes of the query, and returns whether they are within what it may have. If they are not, they are set
    /// only where they `must` be.
    fn take(&self, used: &mut MemoryUse, reserved: usize, must: bool) -> bool {
        let allocated = self.account.bytes();
        let after = reserved.max(allocated.saturating_sub(self.budget.plain));
        let mut within = after <= self.bounds.memory;
        let (before, after_common) = (self.common(used.now), self.common(after));
        if after_common != before {
            let mut common = lock(&self.budget.used);
            let together = (*common - before).saturating_add(after_common);
            within &= together <= self.budget.limit() || after_common < before;
            if within || must {
                *common = together;
            }
        }
        if within || must {
            *used = MemoryUse { reserved, now: after, highest: used.highest.max(after), allocated };
        }
        within
    }

    fn add(&self, bytes: usize, must: bool) -> Result<()> {
        let mut used = lock(&self.used);
        let reserved = used.reserved.saturating_add(bytes);
        match self.take(&mut used, reserved, must) || must {
            true => Ok(()),
            false => Err(exhausted()),
        }
    }
}

impl Drop for QueryMemory {
    fn drop(&mut self) {
        let used = self.used.get_mut().unwrap_or_else(PoisonError::into_inner);
        *lock(&self.budget.used) -= used.now.saturating_sub(self.budget.own);
        allocator::give_back(used.highest);
        self.budget.shares.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(used: &Mutex<T>) -> MutexGuard<'_, T> {
    used.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error inside DataFusion; the message for people is made by `limits`.
fn exhausted() -> DataFusionError {
    DataFusionError::ResourcesExhausted("no memory is left for this query".into())
}

impl fmt::Display for QueryMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", lock(&self.used).now, self.bounds.memory)
    }
}

impl MemoryPool for QueryMemory {
    fn name(&self) -> &'static str {
        "share"
    }

    fn grow(&self, _: &MemoryReservation, additional: usize) {
        // A reservation that must be is taken; the next one that may fail does.
        let _ = self.add(additional, true);
    }

    fn shrink(&self, _: &MemoryReservation, shrink: usize) {
        let mut used = lock(&self.used);
        let reserved = used.reserved.saturating_sub(shrink);
        self.take(&mut used, reserved, true);
    }

    fn try_grow(&self, _: &MemoryReservation, additional: usize) -> Result<()> {
        if let Some(error) = self.bounds.passed() {
            return Err(DataFusionError::External(Box::new(error)));
        }
        self.add(additional, false)
    }

    fn reserved(&self) -> usize {
        lock(&self.used).reserved
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.bounds.memory)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::limits::QuerySettings;
    use datafusion::execution::memory_pool::MemoryConsumer;

    #[test]
    fn a_query_has_a_little_also_where_another_has_the_rest() {
        let limits = Arc::new(QueryLimits { memory: 1600, running: 4, ..QueryLimits::default() });
        let budget = Arc::new(MemoryBudget::new(&limits));
        let within =
            |memory| QueryBounds::new(&limits, &QuerySettings { memory: Some(memory), ..QuerySettings::default() });
        let reserve =
            |share: &Arc<QueryMemory>| MemoryConsumer::new("").register(&(Arc::clone(share) as Arc<dyn MemoryPool>));
        let (greedy, plain) = (budget.share(&within(1600)), budget.share(&within(1600)));
        let (hog, small) = (reserve(&greedy), reserve(&plain));
        hog.try_grow(1100).unwrap();
        assert!(hog.try_grow(1).is_err() && small.try_grow(101).is_err());
        small.try_grow(100).unwrap();
        drop(hog);
        small.try_grow(1000).unwrap();
        small.shrink(1050);
        assert_eq!((plain.reserved(), *lock(&budget.used)), (50, 0));
        let little = budget.share(&within(10));
        assert!(reserve(&little).try_grow(11).is_err() && reserve(&little).try_grow(10).is_ok());
    }
    #[test]
    fn a_question_that_is_over_gets_no_more() {
        let limits = Arc::new(QueryLimits { memory: 1600, running: 4, ..QueryLimits::default() });
        let budget = Arc::new(MemoryBudget::new(&limits));
        let says = |bounds: &QueryBounds| {
            let reservation = MemoryConsumer::new("").register(&(budget.share(bounds) as Arc<dyn MemoryPool>));
            reservation.try_grow(1).map_err(|error| crate::from_datafusion(error).to_string())
        };
        let late =
            QueryBounds::new(&limits, &QuerySettings { timeout: Some(Duration::ZERO), ..QuerySettings::default() });
        assert!(says(&late).unwrap_err().contains("the query did not finish within"));
        let asked = QuerySettings::default();
        let bounds = QueryBounds::new(&limits, &asked);
        says(&bounds).unwrap();
        asked.revoked.cancel();
        assert!(says(&bounds).unwrap_err().contains("revoked"));
        let bounds = QueryBounds::new(&limits, &QuerySettings::default());
        bounds.gone.cancel();
        assert!(says(&bounds).is_err());
    }
}
