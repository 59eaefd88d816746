//! A process that is sampled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use probe_common::clock;
use probe_common::error::{Error, Result};
use probe_inspect::stacks::main_thread::{MainThread, MainThreads};

use super::pace::{SampleReason, SamplingBurst, interval};
use super::rows::StackSample;
use crate::agent::Agent;
use crate::stacks::{RunProcess, StackCollector};

/// Failures in a row after which a process can't be read. A single reading can fail because the process changed meanwhile.
const FAILURES: u32 = 10;
/// Pause before a process that can't be read is tried again.
const AGAIN: Duration = Duration::from_secs(60);

/// A process of the run, and when it is sampled next.
#[derive(Debug)]
pub(super) struct SampledProcess {
    pub(super) agent: Arc<Agent>,
    run_process: RunProcess,
    threads: MainThreads,
    /// When the process was first seen to make steps.
    stepping: Option<Instant>,
    next: Instant,
    /// When the sample before was taken; None at the beginning, and where the process can't be read.
    last: Option<Instant>,
    /// When the process was last read, or should have been.
    tried: Option<Instant>,
    failures: u32,
}

impl SampledProcess {
    pub(super) fn new(agent: Arc<Agent>, now: Instant) -> Self {
        let run_process = RunProcess::new(&agent.state());
        Self {
            agent,
            run_process,
            threads: MainThreads::default(),
            stepping: None,
            next: now,
            last: None,
            tried: None,
            failures: 0,
        }
    }

    /// Takes up what has become known of the process: its rank, that it makes steps.
    pub(super) fn refresh(&mut self, now: Instant) {
        let state = self.agent.state();
        if !Arc::ptr_eq(&self.run_process.identity, &state.identity) || self.run_process.kernel_pid != state.kernel_pid
        {
            self.run_process = RunProcess::new(&state);
        }
        if state.step > 0 {
            self.stepping.get_or_insert(now);
        }
    }

    pub(super) fn pid(&self) -> i32 {
        self.run_process.subject.pid
    }

    /// The process as a reader of stacks needs it.
    pub(super) fn run_process(&self) -> &RunProcess {
        &self.run_process
    }

    /// When the next sample is due, with a burst or without one.
    pub(super) fn next_sample(&self, burst: Option<SamplingBurst>) -> Instant {
        // A process that can't be read is left alone in a burst too.
        match (burst, self.tried) {
            // A client that asks is to be told why.
            (Some(burst), Some(tried)) if burst.kind == SampleReason::Asked && self.last.is_none() => {
                self.next.min(tried + Duration::from_secs(1))
            }
            (Some(burst), Some(tried)) if self.last.is_some() => self.next.min(tried + burst.interval),
            _ => self.next,
        }
    }

    /// Samples the process once; None where the reading was torn.
    ///
    /// # Errors
    /// The process can't be read.
    pub(super) fn sample(
        &mut self,
        stacks: &StackCollector,
        kind: SampleReason,
        now: Instant,
    ) -> Result<Option<StackSample>> {
        let step = self.agent.state().step;
        let unix_ns = clock::unix_ns();
        self.next = now + interval(self.stepping, now);
        self.tried = Some(now);
        let read = self.read(stacks);
        self.failures = if read.is_ok() { 0 } else { self.failures + 1 };
        if self.failures >= FAILURES {
            (self.next, self.last, self.failures) = (now + AGAIN, None, 0);
        }
        let main = read?;
        let elapsed = self.last.replace(now).map(|last| now.saturating_duration_since(last).as_secs_f64());
        let identity = Arc::clone(&self.run_process.identity);
        Ok(main.map(|main| StackSample { identity, unix_ns, step, kind, elapsed, main }))
    }

    fn read(&mut self, stacks: &StackCollector) -> Result<Option<MainThread>> {
        if self.last.is_none()
            && let Some(why_not) = stacks.unreadable(&self.run_process)
        {
            return Err(why_not);
        }
        let reader = stacks.readers().reader_of((self.pid(), false))?;
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        // Memory that changes while it is read may make no sense to the reader.
        let read = catch_unwind(AssertUnwindSafe(|| self.threads.sample(&mut reader)));
        read.unwrap_or_else(|_| Err(Error::failed("its memory could not be interpreted")))
    }
}
