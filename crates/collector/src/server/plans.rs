//! Plans of questions between the two calls by which drivers ask: GetFlightInfo, which says the columns, and DoGet, which gets
//! the rows. What the first call planned waits here for the second one, so that a question is planned once.
//!
//! A plan holds no rows: DoGet sees those that there are when it is called, as it does where no plan waits. So it makes no
//! difference whether a plan is found here, except in time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use probe_query::PlannedQuery;
use prost::bytes::Bytes;

use super::peer::AuditedCaller;

/// How long a plan waits.
const WAIT: Duration = Duration::from_secs(5);
/// The most plans that wait; of more, the oldest is dropped.
const MAX_PLANS: usize = 32;
/// The most bytes that they take together, as far as they are counted.
const MAX_BYTES: usize = 4 << 20;

/// The plans that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingPlans {
    /// The oldest first.
    waiting: Mutex<VecDeque<WaitingPlan>>,
}

#[derive(Debug)]
struct WaitingPlan {
    asker: AuditedCaller,
    /// The text, process, parameters and limits of the question.
    handle: Bytes,
    plan: PlannedQuery,
    until: Instant,
}

impl WaitingPlans {
    /// Keeps a plan for a call of the same caller on the same connection, and not for longer than the question may take.
    pub(super) fn insert(
        self: &Arc<Self>,
        asker: &AuditedCaller,
        handle: Bytes,
        plan: PlannedQuery,
        timeout: Option<Duration>,
    ) {
        let wait = timeout.map_or(WAIT, |timeout| timeout.min(WAIT));
        self.add(WaitingPlan { asker: asker.clone(), handle, plan, until: Instant::now() + wait });
        let plans = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            if let Some(plans) = plans.upgrade() {
                plans.drop_expired(Instant::now());
            }
        });
    }

    fn add(&self, plan: WaitingPlan) {
        // Without a connection, callers cannot be distinguished.
        if plan.asker.peer.is_none() {
            return;
        }
        let mut waiting = self.lock();
        waiting.push_back(plan);
        while waiting.len() > MAX_PLANS || waiting.iter().map(|waiting| waiting.plan.bytes()).sum::<usize>() > MAX_BYTES
        {
            waiting.pop_front();
        }
    }

    /// Takes out the plan of this question, if this caller asked it a short time ago.
    pub(super) fn take_plan(&self, asker: &AuditedCaller, handle: &Bytes, now: Instant) -> Option<PlannedQuery> {
        let mut waiting = self.lock();
        let index = waiting.iter().position(|one| one.asker == *asker && one.handle == *handle && now < one.until)?;
        Some(waiting.remove(index)?.plan)
    }

    fn drop_expired(&self, now: Instant) {
        self.lock().retain(|waiting| now < waiting.until);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<WaitingPlan>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use probe_query::{QueryEngine, QuerySettings};
    use probe_store::Store;

    use super::*;

    fn asker(who: &str, peer: &str) -> AuditedCaller {
        AuditedCaller { who: who.into(), peer: Some(peer.into()) }
    }

    fn engine() -> QueryEngine {
        QueryEngine::new(Store::new(1 << 20), Vec::new()).unwrap()
    }

    async fn plan(engine: &QueryEngine) -> PlannedQuery {
        engine.plan("SELECT MAX(step) FROM python.steps", QuerySettings::default()).await.unwrap()
    }

    #[tokio::test]
    async fn a_plan_is_for_one_call_of_who_asked() {
        let (plans, engine) = (Arc::new(WaitingPlans::default()), engine());
        let (here, handle) = (asker("token:a", "tcp:10.0.0.7:1"), Bytes::from_static(b"a question"));
        plans.insert(&here, handle.clone(), plan(&engine).await, None);
        let now = Instant::now();
        for other in [asker("token:b", "tcp:10.0.0.7:1"), asker("token:a", "tcp:10.0.0.7:2")] {
            assert!(plans.take_plan(&other, &handle, now).is_none());
        }
        assert!(plans.take_plan(&here, &Bytes::from_static(b"another"), now).is_none());
        assert!(plans.take_plan(&here, &handle, now + WAIT).is_none());
        assert!(plans.take_plan(&here, &handle, now).is_some());
        assert!(plans.take_plan(&here, &handle, now).is_none());
        // Without a connection, callers cannot be distinguished.
        let nobody = AuditedCaller { who: "nobody".into(), peer: None };
        plans.insert(&nobody, handle.clone(), plan(&engine).await, None);
        assert!(plans.take_plan(&nobody, &handle, Instant::now()).is_none());
    }

    #[tokio::test]
    async fn plans_that_wait_are_few_and_go() {
        let (plans, engine) = (Arc::new(WaitingPlans::default()), engine());
        let here = asker("uid:0", "pid:7");
        let short = Duration::from_millis(300);
        for number in 0..2 * MAX_PLANS {
            plans.insert(&here, number.to_string().into(), plan(&engine).await, (number % 2 == 0).then_some(short));
            assert!(plans.lock().len() <= MAX_PLANS);
        }
        let last = Bytes::from((2 * MAX_PLANS - 1).to_string());
        assert!(plans.lock().iter().any(|waiting| waiting.handle == last));
        assert!(plans.take_plan(&here, &Bytes::from_static(b"0"), Instant::now()).is_none());
        // Half expire with their queries' deadlines, and the others later, without any call.
        while plans.lock().iter().any(|waiting| waiting.until < Instant::now() + short) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        plans.drop_expired(Instant::now() + WAIT);
        assert!(plans.lock().is_empty());
    }
}
