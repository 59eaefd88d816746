//! Tasks and threads that run as long as the collector does. No other code waits for them, so a panic in one would go
//! unnoticed: a revoked token would stay valid, and agents would keep the last decision about detail. So a panic is written
//! to `probe.events`, and the task or thread starts again.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt;
use probe_common::panics::message_of;

use super::events::{RunEvent, RunEvents, Severity};

/// How long after its first panic a task starts again. The pause doubles with each further panic, up to `MAX_PAUSE`.
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// How long to wait before a task that panicked starts again.
#[derive(Debug)]
struct RestartDelay(Duration);

impl RestartDelay {
    const fn new() -> Self {
        Self(MIN_PAUSE)
    }

    /// Writes this panic of `what` to the events, and returns how long to wait before it starts again.
    fn after(&mut self, what: &str, panic: &(dyn Any + Send), events: &RunEvents) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(MAX_PAUSE);
        let message = format!("{what} panicked and starts again in {} s: {}", pause.as_secs(), message_of(panic));
        events.record(RunEvent::new("panic", Severity::Error, message));
        pause
    }
}

/// Runs the future that `begin` makes until it completes, and makes another one after each panic. `what` names the task in
/// a sentence, as in "the choice of detail".
pub async fn keep_running<F: Future<Output = ()>>(what: &str, events: &RunEvents, begin: impl Fn() -> F) {
    let mut pauses = RestartDelay::new();
    while let Err(panic) = AssertUnwindSafe(async { begin().await }).catch_unwind().await {
        let pause = pauses.after(what, &*panic, events);
        tokio::time::sleep(pause).await;
    }
}

/// Runs `work` on the calling thread until it returns, and again after each panic. `sleep` is how the thread waits in between.
pub(crate) fn keep_working(what: &str, events: &RunEvents, sleep: impl Fn(Duration), work: impl Fn()) {
    let mut pauses = RestartDelay::new();
    while let Err(panic) = catch_unwind(AssertUnwindSafe(&work)) {
        sleep(pauses.after(what, &*panic, events));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;

    use arrow::array::AsArray;
    use probe_store::SystemTable;
    use probe_store::journal::NewestRows;

    use super::*;

    fn messages(events: &RunEvents) -> Vec<String> {
        let rows = events.rows().unwrap();
        rows["message"].as_string_view().iter().flatten().map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn a_task_that_panics_is_noted_and_starts_again() {
        let (events, begun) = (RunEvents::restore(&"gpt@1".into(), &NewestRows::default()), Cell::new(0));
        keep_running("the choice of detail", &events, || async {
            begun.set(begun.get() + 1);
            tokio::task::yield_now().await;
            assert!(begun.get() == 2, "this test has it so");
        })
        .await;
        assert_eq!(begun.get(), 2);
        let expected = "the choice of detail panicked and starts again in 1 s: this test has it so";
        assert_eq!(messages(&events), [expected]);
    }

    #[test]
    fn a_thread_that_panics_is_noted_and_goes_on() {
        let (events, begun, slept) =
            (RunEvents::restore(&"gpt@1".into(), &NewestRows::default()), Cell::new(0), Cell::new(0));
        let sleep = |pause: Duration| slept.set(slept.get() + pause.as_secs());
        keep_working("sampling of stacks", &events, sleep, || {
            begun.set(begun.get() + 1);
            assert!(begun.get() == 9, "{} is not enough", begun.get());
        });
        assert_eq!((begun.get(), slept.get(), messages(&events).len()), (9, 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60, 8));
        assert!(messages(&events)[7].ends_with("in 60 s: 8 is not enough"), "{:?}", messages(&events));
    }
}
