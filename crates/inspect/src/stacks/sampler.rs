//! Reads a process many times a second, and counts the stacks of its threads. The memory is bounded: a stack that was seen
//! before costs only its count.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use probe_common::error::{Error, Result};
use probe_proto::v1::{ProcessStacks, StackFrame, StackMethod, ThreadStack};

use super::roots::{self, ThreadRoots};
use super::{InspectedProcess, StackReaders};

/// Most different stacks of a process that are kept, and most frames of all of them.
const MAX_STACKS: usize = 4096;
const MAX_FRAMES: usize = 65_536;
/// Failed readings in a row that end a sampling.
const MAX_FAILURES: u64 = 200;

/// How often a sampling checks whether it is cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// How long and how often to sample.
#[derive(Debug, Clone, Copy)]
pub struct SamplingPlan {
    pub duration: Duration,
    /// Time between two readings.
    pub interval: Duration,
}

/// Longest duration (s) and highest rate (a second) that may be asked for.
const MAX_SECONDS: f64 = 3600.0;
const MAX_RATE: f64 = 1000.0;

impl SamplingPlan {
    /// A plan for a duration (s) and a rate (a second).
    ///
    /// # Errors
    /// Duration or rate is out of bounds.
    pub fn new(duration_s: f64, rate: f64) -> Result<Self> {
        if !(duration_s > 0.0 && duration_s <= MAX_SECONDS) {
            return Err(Error::usage(format!("a process is sampled for at most {MAX_SECONDS} s, not {duration_s}")));
        }
        if !(rate > 0.0 && rate <= MAX_RATE) {
            return Err(Error::usage(format!("a process is sampled at most {MAX_RATE} times a second, not {rate}")));
        }
        Ok(Self { duration: Duration::from_secs_f64(duration_s), interval: Duration::from_secs_f64(1.0 / rate) })
    }
}

/// Samples one process until the time is over, the process ends, or `cancelled` is set. Blocks.
pub fn sample(
    readers: &StackReaders,
    subject: &InspectedProcess,
    plan: SamplingPlan,
    cancelled: &AtomicBool,
) -> ProcessStacks {
    let method = StackMethod::Memory;
    let reader = match readers.reader_of((subject.pid, false)) {
        Ok(reader) => reader,
        Err(error) => return subject.failed(method, &error),
    };
    let mut counts = StackCounts::default();
    let mut answer = subject.unread(method);
    let began = Instant::now();
    let (mut turn, mut failures) = (0_u32, 0);
    loop {
        let due = began + plan.interval.saturating_mul(turn);
        let now = Instant::now();
        if now >= began + plan.duration || due >= began + plan.duration || cancelled.load(Ordering::Relaxed) {
            break;
        }
        if due > now {
            if due - now > LOOK {
                // Sleeps in short parts: the client may go, and the next reading may be an hour away.
                std::thread::sleep(LOOK);
                continue;
            }
            std::thread::sleep(due - now);
        } else if now - due >= plan.interval {
            // This reading is so late that the next one is due: it is left out, and counted as missed.
            answer.missed += 1;
            turn += 1;
            continue;
        }
        turn += 1;
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = reader.sample();
        for _ in 0..roots::AGAIN {
            if read.as_ref().is_ok_and(|threads| threads.iter().all(|thread| counts.roots.is_plausible(thread))) {
                break;
            }
            read = reader.sample();
        }
        match read {
            Ok(threads) => {
                failures = 0;
                answer.samples += 1;
                counts.count(threads);
            }
            Err(error) => {
                answer.missed += 1;
                failures += 1;
                if failures >= MAX_FAILURES || !reader.is_current() {
                    answer.problem = error.to_string();
                    break;
                }
            }
        }
    }
    answer.left_out = counts.left_out;
    answer.threads = counts.threads();
    answer
}

/// The state of a thread in a sample. Samples with equal keys are counted together.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ThreadState {
    name: String,
    os_thread: Option<u32>,
    main: bool,
    gil: bool,
    running: bool,
    frames: Vec<(String, String, Option<u32>)>,
}

#[derive(Debug, Default)]
struct StackCounts {
    stacks: HashMap<ThreadState, u64>,
    frames: usize,
    roots: ThreadRoots,
    left_out: u64,
}

impl StackCounts {
    fn count(&mut self, threads: Vec<ThreadStack>) {
        for thread in threads {
            if !self.roots.is_whole(&thread) {
                self.left_out += 1;
                continue;
            }
            let frames = thread.frames.into_iter().map(|frame| (frame.function, frame.file, frame.line)).collect();
            let ThreadStack { name, os_thread, main, gil, running, .. } = thread;
            let key = ThreadState { name, os_thread, main, gil, running, frames };
            let full = self.stacks.len() >= MAX_STACKS || self.frames + key.frames.len() > MAX_FRAMES;
            match self.stacks.entry(key) {
                Entry::Occupied(mut entry) => *entry.get_mut() += 1,
                Entry::Vacant(_) if full => self.left_out += 1,
                Entry::Vacant(entry) => {
                    self.frames += entry.key().frames.len();
                    entry.insert(1);
                }
            }
        }
    }

    /// The stacks that were seen: main threads before others, and of each thread the most frequent first.
    fn threads(self) -> Vec<ThreadStack> {
        let mut all: Vec<ThreadStack> = self.stacks.into_iter().map(|(key, samples)| thread(key, samples)).collect();
        all.sort_by(|a, b| {
            let key = |thread: &ThreadStack| (!thread.main, thread.os_thread, std::cmp::Reverse(thread.samples));
            key(a).cmp(&key(b)).then_with(|| a.frames.len().cmp(&b.frames.len()))
        });
        all
    }
}

fn thread(key: ThreadState, samples: u64) -> ThreadStack {
    let ThreadState { name, os_thread, main, gil, running, frames } = key;
    let frame = |(function, file, line): (String, String, Option<u32>)| StackFrame {
        user_code: probe_common::user_code::is_user_code(&file),
        function,
        file,
        line,
        source: String::new(),
    };
    ThreadStack {
        name,
        os_thread,
        main,
        gil,
        running,
        samples,
        frames: frames.into_iter().map(frame).collect(),
        ..ThreadStack::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread_at(functions: &[&str]) -> ThreadStack {
        let frame =
            |name: &&str| StackFrame { function: (*name).into(), file: "/t.py".into(), ..StackFrame::default() };
        ThreadStack {
            os_thread: Some(1),
            main: true,
            frames: functions.iter().map(frame).collect(),
            ..ThreadStack::default()
        }
    }

    #[test]
    fn the_same_stack_is_counted_and_not_kept_again() {
        let mut counts = StackCounts::default();
        for _ in 0..3 {
            counts.count(vec![thread_at(&["f", "<module>"])]);
        }
        counts.count(vec![thread_at(&["g", "<module>"])]);
        let threads = counts.threads();
        let counts: Vec<_> =
            threads.iter().map(|thread| (thread.frames[0].function.as_str(), thread.samples)).collect();
        assert_eq!(counts, [("f", 3), ("g", 1)]);
    }

    #[test]
    fn a_torn_reading_is_left_out_and_a_new_thread_is_not() {
        let mut counts = StackCounts::default();
        counts.count(vec![thread_at(&["f", "<module>"])]);
        counts.count(vec![thread_at(&["f"])]);
        assert_eq!(counts.left_out, 1);
        // A new thread that has the id of one that ended.
        counts.count(vec![thread_at(&["f"])]);
        counts.count(vec![thread_at(&["f"])]);
        assert_eq!((counts.left_out, counts.stacks.len()), (1, 2));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut counts = StackCounts::default();
        for number in 0..MAX_STACKS + 10 {
            counts.count(vec![thread_at(&[&number.to_string(), "<module>"])]);
        }
        assert_eq!((counts.stacks.len(), counts.left_out), (MAX_STACKS, 10));
    }

    #[test]
    fn plans_are_sensible() {
        assert_eq!(SamplingPlan::new(10.0, 100.0).unwrap().interval, Duration::from_millis(10));
        for (duration, rate) in [(0.0, 100.0), (-1.0, 1.0), (f64::NAN, 1.0), (1.0, 0.0), (1.0, 1e9), (1e9, 1.0)] {
            assert!(SamplingPlan::new(duration, rate).is_err(), "{duration} {rate}");
        }
    }
}
