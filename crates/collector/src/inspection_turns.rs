//! Inspections of training that clients ask for: one at a time, and with pauses. Each runs a snippet of probe under the
//! process's GIL or reads its memory, and writes rows; clients that may only query must not keep training, or the disk, busy
//! with them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::caller_quota::{CallerPermit, CallerQuota};
use probe_common::error::{Error, Result};
use tokio::sync::{Mutex as Turn, MutexGuard as TurnGuard, Semaphore, SemaphorePermit, oneshot};

/// Most turns that run or wait.
const MAX_TURNS: usize = 16;
/// Most turns of one caller that run or wait.
const MAX_TURNS_OF_ONE: usize = 4;
/// Shortest pause after an inspection.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// Ratio of the pause after an inspection to the inspection, so that turns never take more than a quarter of the time.
const TIMES: u32 = 3;
/// Longest pause after an inspection.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// Most samplings at a time: each has a thread for each process.
const MAX_SAMPLINGS: usize = 4;
/// Most samplings of one caller at a time.
const MAX_SAMPLINGS_OF_ONE: usize = 2;

/// Lets one inspection of training run at a time, with pauses between them.
#[derive(Debug)]
pub(crate) struct InspectionTurns {
    there: Semaphore,
    /// When the next inspection may begin.
    next: Turn<Instant>,
    waiting: CallerQuota,
    samplings: SamplingDeadlines,
    sampled_by: CallerQuota,
}

/// A running inspection.
#[derive(Debug)]
pub(crate) struct InspectionTurn<'a> {
    began: Instant,
    next: TurnGuard<'a, Instant>,
    _there: SemaphorePermit<'a>,
    _mine: CallerPermit,
}

/// When the running samplings end, by number.
type SamplingDeadlines = Arc<Mutex<BTreeMap<u64, Instant>>>;

/// A running sampling.
#[derive(Debug)]
pub(crate) struct RunningSampling {
    all: SamplingDeadlines,
    number: u64,
    over: Arc<AtomicBool>,
    _mine: CallerPermit,
}

impl Default for InspectionTurns {
    fn default() -> Self {
        let (there, next) = (Semaphore::new(MAX_TURNS), Turn::new(Instant::now()));
        Self {
            there,
            next,
            waiting: CallerQuota::default(),
            samplings: SamplingDeadlines::default(),
            sampled_by: CallerQuota::default(),
        }
    }
}

impl InspectionTurns {
    /// Waits for the turn of an inspection that `who` asks for.
    ///
    /// # Errors
    /// Too many wait already, of this caller or in all.
    pub(crate) async fn wait_for_turn(&self, who: &str) -> Result<InspectionTurn<'_>> {
        let mine = self.waiting.acquire(who, MAX_TURNS_OF_ONE).ok_or_else(|| {
            Error::limit(format!("too many inspections: {MAX_TURNS_OF_ONE} of {who} are running or waiting"))
                .hint("wait for one of them: inspections are done one after the other")
        })?;
        let there = self.there.try_acquire().map_err(|_| {
            Error::limit(format!("too many inspections: {MAX_TURNS} are running or waiting"))
                .hint("ask again in some seconds: inspections are done one after the other")
        })?;
        let next = self.next.lock().await;
        tokio::time::sleep_until((*next).into()).await;
        Ok(InspectionTurn { began: Instant::now(), next, _there: there, _mine: mine })
    }

    /// Begins a sampling that `who` asks for and that takes `duration`.
    ///
    /// # Errors
    /// Too many samplings are running already, of this caller or in all.
    pub(crate) fn sampling(&self, who: &str, duration: Duration) -> Result<RunningSampling> {
        let mine = self.sampled_by.acquire(who, MAX_SAMPLINGS_OF_ONE).ok_or_else(|| {
            Error::limit(format!("too many samplings: {MAX_SAMPLINGS_OF_ONE} of {who} are running"))
                .hint("wait until one of them has ended")
        })?;
        let mut samplings = lock(&self.samplings);
        let now = Instant::now();
        if samplings.len() >= MAX_SAMPLINGS {
            let first = samplings.values().min().map_or(Duration::ZERO, |end| end.saturating_duration_since(now));
            return Err(Error::limit(format!("too many samplings: {MAX_SAMPLINGS} are running"))
                .hint(format!("ask again in {} s, when the first of them has ended", first.as_secs() + 1)));
        }
        let number = samplings.last_key_value().map_or(0, |(last, _)| last + 1);
        samplings.insert(number, now + duration);
        Ok(RunningSampling { all: Arc::clone(&self.samplings), number, over: Arc::default(), _mine: mine })
    }
}

impl Drop for InspectionTurn<'_> {
    fn drop(&mut self) {
        let pause = (self.began.elapsed() * TIMES).clamp(MIN_PAUSE, MAX_PAUSE);
        *self.next = Instant::now() + pause;
    }
}

impl RunningSampling {
    /// Does `work` on a thread of its own, for which a collector that ends does not wait. The flag tells the thread to stop when
    /// this is dropped: when the client has gone, or the collector ends.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    ) -> Result<T> {
        let (done, result) = oneshot::channel();
        let over = Arc::clone(&self.over);
        let thread = std::thread::Builder::new().name("probe-sampling".into()).spawn(move || {
            // Sending fails where the client has gone.
            drop(done.send(work(&over)));
        });
        thread.map_err(Error::no_thread)?;
        result.await.map_err(|_| Error::failed("stacks could not be sampled: the thread that did has broken off"))
    }
}

impl Drop for RunningSampling {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        lock(&self.all).remove(&self.number);
    }
}

fn lock(samplings: &SamplingDeadlines) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
    samplings.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use probe_common::error::ErrorKind;
    use std::sync::mpsc;

    #[tokio::test]
    async fn inspections_are_done_in_turns_with_pauses_and_of_too_many_some_are_refused() {
        let turns = InspectionTurns::default();
        let callers: Vec<String> = (0..MAX_TURNS / MAX_TURNS_OF_ONE).map(|who| format!("token:{who}")).collect();
        let first = turns.wait_for_turn(&callers[0]).await.unwrap();
        let each = callers.iter().flat_map(|who| std::iter::repeat_n(who, MAX_TURNS_OF_ONE)).skip(1);
        let mut waiting: Vec<_> = each.map(|who| Box::pin(turns.wait_for_turn(who))).collect();
        for next in &mut waiting {
            assert!(futures::poll!(next).is_pending());
        }
        // One caller does not take all of them.
        let refused = turns.wait_for_turn(&callers[1]).await.unwrap_err();
        assert_eq!(
            (refused.kind(), refused.to_string().as_str()),
            (ErrorKind::Limit, "too many inspections: 4 of token:1 are running or waiting")
        );
        let refused = turns.wait_for_turn("another").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Limit);
        assert!(refused.hint_text().unwrap().contains("ask again"));
        let began = Instant::now();
        drop(first);
        let second = waiting.remove(0).await.unwrap();
        assert!(began.elapsed() >= MIN_PAUSE / 2);
        assert!(futures::poll!(&mut waiting[0]).is_pending());
        // A client that gives up waiting leaves its turn to another.
        drop(waiting.split_off(1));
        drop(second);
        assert!(waiting.remove(0).await.is_ok());
        assert!(turns.wait_for_turn(&callers[1]).await.is_ok());
    }

    #[test]
    fn a_sampling_ends_with_whoever_waits_and_holds_up_no_end() {
        let turns = InspectionTurns::default();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (begin, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let sampling = turns.sampling("a", Duration::from_secs(3600)).unwrap();
        runtime.spawn(sampling.run(move |over| {
            begin.send(()).unwrap();
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            end.send(()).unwrap();
        }));
        begun.recv().unwrap();
        // As the collector ends: nothing waits for the thread, and the thread is told.
        drop(runtime);
        ended.recv_timeout(Duration::from_secs(60)).unwrap();
        let long = Duration::from_secs(30);
        let mut many: Vec<_> = (0..MAX_SAMPLINGS_OF_ONE).map(|_| turns.sampling("a", long).unwrap()).collect();
        let refused = turns.sampling("a", long).unwrap_err();
        assert_eq!(
            (refused.kind(), refused.to_string().as_str()),
            (ErrorKind::Limit, "too many samplings: 2 of a are running")
        );
        many.extend((MAX_SAMPLINGS_OF_ONE..MAX_SAMPLINGS).map(|_| turns.sampling("b", long).unwrap()));
        let refused = turns.sampling("c", Duration::from_secs(1)).unwrap_err();
        assert_eq!(
            (refused.kind(), refused.to_string().as_str()),
            (ErrorKind::Limit, "too many samplings: 4 are running")
        );
        assert!(refused.hint_text().unwrap().starts_with("ask again in 30 s"), "{refused:?}");
        drop(many);
        assert!(turns.sampling("a", Duration::from_secs(1)).is_ok());
    }
}
