//! One process that is sampled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use probe_common::clock;
use probe_common::error::{Error, Result};
use probe_inspect::stacks::main_thread::{MainThread, MainThreads};

use super::pace::{Burst, Kind, interval};
use super::rows::Sample;
use crate::agent::Agent;
use crate::stacks::{Of, Stacks};

/// A reading can fail because the process changed meanwhile. After so many failures in a row it can't be read.
const FAILURES: u32 = 10;
/// Such a process is tried again after this.
const AGAIN: Duration = Duration::from_secs(60);

/// A process of the run, and when it is sampled next.
#[derive(Debug)]
pub(super) struct Sampled {
    pub(super) agent: Arc<Agent>,
    of: Of,
    threads: MainThreads,
    /// When it was first seen to make steps.
    stepping: Option<Instant>,
    next: Instant,
    /// When the sample before was taken; None at the beginning, and where it can't be read.
    last: Option<Instant>,
    /// When it was last read, or should have been.
    tried: Option<Instant>,
    failures: u32,
}

impl Sampled {
    pub(super) fn new(agent: Arc<Agent>, now: Instant) -> Self {
        let of = Of::new(&agent.state());
        Self {
            agent,
            of,
            threads: MainThreads::default(),
            stepping: None,
            next: now,
            last: None,
            tried: None,
            failures: 0,
        }
    }

    /// Takes up what has become known of it: its rank, that it makes steps.
    pub(super) fn refresh(&mut self, now: Instant) {
        let state = self.agent.state();
        if !Arc::ptr_eq(&self.of.identity, &state.identity) || self.of.kernel_pid != state.kernel_pid {
            self.of = Of::new(&state);
        }
        if state.step > 0 {
            self.stepping.get_or_insert(now);
        }
    }

    pub(super) fn pid(&self) -> i32 {
        self.of.subject.pid
    }

    /// What is asked of it.
    pub(super) fn of(&self) -> &Of {
        &self.of
    }

    /// When it is due, with that burst or without one.
    pub(super) fn due(&self, burst: Option<Burst>) -> Instant {
        // A process that can't be read is left alone in a burst too.
        match (burst, self.tried) {
            // Somebody who asks is to hear why.
            (Some(burst), Some(tried)) if burst.kind == Kind::Asked && self.last.is_none() => {
                self.next.min(tried + Duration::from_secs(1))
            }
            (Some(burst), Some(tried)) if self.last.is_some() => self.next.min(tried + burst.interval),
            _ => self.next,
        }
    }

    /// Samples it once; None where the reading was torn.
    ///
    /// # Errors
    /// It can't be read.
    pub(super) fn sample(&mut self, stacks: &Stacks, kind: Kind, now: Instant) -> Result<Option<Sample>> {
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
        let identity = Arc::clone(&self.of.identity);
        Ok(main.map(|main| Sample { identity, unix_ns, step, kind, elapsed, main }))
    }

    fn read(&mut self, stacks: &Stacks) -> Result<Option<MainThread>> {
        if self.last.is_none()
            && let Some(why_not) = stacks.unreadable(&self.of)
        {
            return Err(why_not);
        }
        let reader = stacks.readers().of((self.pid(), false))?;
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        // Memory that changes while it is read may make no sense to the reader.
        let read = catch_unwind(AssertUnwindSafe(|| self.threads.sample(&mut reader)));
        read.unwrap_or_else(|_| Err(Error::failed("its memory makes no sense to this reader")))
    }
}
