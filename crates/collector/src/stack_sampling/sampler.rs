//! The thread that samples, and the calls to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use probe_common::clock;
use probe_common::error::{Error, Result};
use probe_common::priority::lower_priority;
use probe_inspect::stacks::sampler::SamplingPlan;
use probe_proto::env::PROBE_STACK_SAMPLING;
use probe_proto::v1::{ProcessStacks, StackMethod, StacksAnswer, StacksCall};

use super::pace::{SampleReason, SamplingBudget, SamplingBurst};
use super::process::SampledProcess;
use super::rows::StackSamples;
use crate::background::keep_working;
use crate::events::RunEvents;
use crate::registry::AgentRegistry;
use crate::self_ingest::SelfIngest;
use crate::stacks::StackCollector;

/// How often the list of processes is refreshed, and samples become rows.
const REFRESH: Duration = Duration::from_secs(1);
/// Longest duration, and shortest pause between samples, of a sampling that a client asks for.
const MAX_DURATION: Duration = Duration::from_secs(60);
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// Whether the collector samples by itself.
///
/// # Errors
/// The variable's value is neither on nor off.
pub(crate) fn is_on() -> Result<bool> {
    match std::env::var(PROBE_STACK_SAMPLING).unwrap_or_default().as_str() {
        "" | "on" => Ok(true),
        "off" => Ok(false),
        other => Err(Error::usage(format!("{PROBE_STACK_SAMPLING}={other} is neither on nor off"))
            .hint(format!("{PROBE_STACK_SAMPLING}=off: stacks are read only on request"))),
    }
}

/// A thread that samples until this is dropped.
#[derive(Debug)]
pub(crate) struct StackSampling(Arc<SamplerState>);

#[derive(Debug)]
struct SamplerState {
    registry: Arc<AgentRegistry>,
    stacks: Arc<StackCollector>,
    samples: StackSamples,
    /// Whether the thread samples without a burst.
    always: bool,
    bursts: Mutex<BurstRequests>,
    changed: Condvar,
    over: AtomicBool,
}

/// The burst that is asked for, and its answer.
#[derive(Debug, Default)]
struct BurstRequests {
    newest: Option<SamplingBurst>,
    /// The answer to the client that asked for sampling.
    answer: Vec<ProcessStacks>,
    processor_time: Duration,
}

impl StackSampling {
    /// Begins sampling, on a thread of its own.
    ///
    /// # Errors
    /// The system has no threads left.
    pub(crate) fn begin(
        registry: Arc<AgentRegistry>,
        stacks: Arc<StackCollector>,
        table: SelfIngest,
        events: Arc<RunEvents>,
        always: bool,
    ) -> Result<Self> {
        let shared = Arc::new(SamplerState {
            registry,
            stacks,
            samples: StackSamples::new(table),
            always,
            bursts: Mutex::default(),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
        });
        let sampling = Self(Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("probe-samples".into()).spawn(move || {
            let sleep = |pause| shared.sleep(Instant::now() + pause, None);
            keep_working("the sampling of stacks", &events, sleep, || shared.run());
        });
        thread.map_err(Error::no_thread)?;
        Ok(sampling)
    }

    /// Begins a burst because steps have become slower.
    pub(crate) fn slower(&self) {
        let mut bursts = self.0.lock();
        // The sampling that a client asks for is more than that.
        if self.0.always && bursts.current(Instant::now()).is_none() {
            bursts.newest = Some(SamplingBurst::slow(Instant::now()));
            self.0.changed.notify_all();
        }
    }

    /// Samples all processes for as long and as often as is asked, whatever it costs; the rows are there afterwards.
    ///
    /// # Errors
    /// The sampling is too long or too frequent, or another one is running.
    pub(crate) async fn ask(&self, call: &StacksCall) -> Result<StacksAnswer> {
        let plan = SamplingPlan::new(call.duration_s, call.rate)?;
        if plan.duration > MAX_DURATION || plan.interval < MIN_PAUSE {
            let what = format!("processes are sampled for {} s at most, 100 times a second", MAX_DURATION.as_secs());
            return Err(Error::usage(what));
        }
        let unix_ns = clock::unix_ns();
        {
            let now = Instant::now();
            let mut bursts = self.0.lock();
            if bursts.current(now).is_some_and(|burst| burst.kind == SampleReason::Asked) {
                return Err(Error::limit("another client is sampling these processes")
                    .hint(format!("ask again in {} s", MAX_DURATION.as_secs())));
            }
            let burst =
                SamplingBurst { kind: SampleReason::Asked, until: now + plan.duration, interval: plan.interval };
            *bursts = BurstRequests { newest: Some(burst), ..BurstRequests::default() };
            self.0.changed.notify_all();
        }
        tokio::time::sleep(plan.duration).await;
        let (processes, processor_s) = {
            let mut bursts = self.0.lock();
            bursts.newest = None;
            (std::mem::take(&mut bursts.answer), bursts.processor_time.as_secs_f64())
        };
        self.0.samples.store_waiting();
        Ok(StacksAnswer { capture: 0, unix_ns, processes, processor_s })
    }

    /// Ends sampling, and makes rows of what was sampled, because the run is being written.
    pub(crate) fn finish(&self) {
        self.0.end();
        self.0.samples.finish();
    }
}

impl Drop for StackSampling {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl BurstRequests {
    fn current(&self, now: Instant) -> Option<SamplingBurst> {
        self.newest.filter(|burst| now < burst.until)
    }

    /// The entry of a process in the answer.
    fn entry(&mut self, process: &SampledProcess) -> &mut ProcessStacks {
        let entry = process.run_process().subject.unread(StackMethod::Memory);
        let index = self.answer.iter().position(|other| other.pid == entry.pid).unwrap_or_else(|| {
            self.answer.push(entry);
            self.answer.len() - 1
        });
        &mut self.answer[index]
    }
}

impl SamplerState {
    fn lock(&self) -> MutexGuard<'_, BurstRequests> {
        self.bursts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        // With the lock, or the thread could begin to wait right after.
        let _bursts = self.lock();
        self.changed.notify_all();
    }

    fn run(&self) {
        lower_priority();
        let mut budget = SamplingBudget::new(Instant::now());
        let mut processes: Vec<SampledProcess> = Vec::new();
        let mut refreshed: Option<Instant> = None;
        while !self.over.load(Ordering::Relaxed) {
            let now = Instant::now();
            let burst = self.lock().current(now);
            let mut wake = now + REFRESH;
            if self.always || burst.is_some() {
                if refreshed.is_none_or(|at| now.saturating_duration_since(at) >= REFRESH) {
                    self.refresh(&mut processes, now);
                    self.samples.store_waiting();
                    refreshed = Some(now);
                }
                let free = burst.is_some_and(|burst| burst.kind == SampleReason::Asked);
                let wait = if free { Duration::ZERO } else { budget.wait(now) };
                if wait.is_zero() {
                    for process in processes.iter_mut().filter(|process| process.next_sample(burst) <= now) {
                        let before = processor_time();
                        self.sample(process, burst, now);
                        let took = processor_time().saturating_sub(before);
                        if free {
                            self.lock().processor_time += took;
                        } else {
                            budget.spend(took);
                        }
                    }
                }
                let due = processes.iter().map(|process| process.next_sample(burst)).min().unwrap_or(wake);
                wake = wake.min(due.max(now + wait));
            } else {
                // The next burst takes the processes that are connected then.
                processes.clear();
                refreshed = None;
            }
            self.sleep(wake, burst);
        }
    }

    /// Refreshes the list of processes by the agents that are connected.
    fn refresh(&self, processes: &mut Vec<SampledProcess>, now: Instant) {
        let live = self.registry.live();
        processes.retain(|process| live.iter().any(|agent| Arc::ptr_eq(agent, &process.agent)));
        for agent in live {
            if !processes.iter().any(|process| Arc::ptr_eq(&agent, &process.agent)) {
                processes.push(SampledProcess::new(agent, now));
            }
        }
        processes.iter_mut().for_each(|process| process.refresh(now));
    }

    fn sample(&self, process: &mut SampledProcess, burst: Option<SamplingBurst>, now: Instant) {
        let kind = burst.map_or(SampleReason::Always, |burst| burst.kind);
        let sampled = process.sample(&self.stacks, kind, now);
        if kind == SampleReason::Asked {
            let mut bursts = self.lock();
            let entry = bursts.entry(process);
            match &sampled {
                Ok(Some(_)) => entry.samples += 1,
                Ok(None) => entry.missed += 1,
                Err(error) => {
                    entry.problem = error.to_string();
                    error.hint_text().unwrap_or_default().clone_into(&mut entry.hint);
                }
            }
        }
        if let Ok(Some(sample)) = sampled {
            self.samples.add(sample);
        }
    }

    /// Sleeps until `wake`, until another burst begins or this one ends, or until the end.
    fn sleep(&self, wake: Instant, burst: Option<SamplingBurst>) {
        let bursts = self.lock();
        let same = |bursts: &mut BurstRequests| {
            let until = |burst: Option<SamplingBurst>| burst.map(|burst| burst.until);
            !self.over.load(Ordering::Relaxed) && until(bursts.current(Instant::now())) == until(burst)
        };
        let time = wake.saturating_duration_since(Instant::now());
        drop(self.changed.wait_timeout_while(bursts, time, same));
    }
}

/// Processor time of the calling thread.
fn processor_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Duration::ZERO };
    let time = |value: nix::sys::time::TimeVal| {
        let (seconds, micros) =
            (u64::try_from(value.tv_sec()).unwrap_or(0), u64::try_from(value.tv_usec()).unwrap_or(0));
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    };
    time(usage.user_time()) + time(usage.system_time())
}
