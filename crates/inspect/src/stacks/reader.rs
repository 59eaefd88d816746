//! Reads the stacks of one Python process from its memory, by py-spy's library.
//!
//! The process runs on while it is read, unless a pause is asked for: a stop through ptrace can end one of its system calls with
//! EINTR, and where the collector started the process, stops are reported to it like exits. A thread that stands still is read
//! correctly all the same, and one that moved between two readings is marked.

use std::collections::HashMap;
use std::time::Instant;

use probe_common::error::{Error, Result};
use probe_proto::v1::{ProcessStacks, StackFrame, ThreadStack};
use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy, StackTrace};

use super::source::SourceFiles;
use super::waits::waits_for;
use super::{permission, processes};
use probe_common::user_code::is_user_code;

/// Most readings of a capture, which reads until two agree.
const MAX_READINGS: usize = 8;
/// Whether frames of C and C++ can be read. That is a feature of the crate, because it needs a library of the system.
pub const HAS_NATIVE: bool = cfg!(feature = "native");
/// Lines above which py-spy's line number is a misread.
const MAX_LINES: i32 = 10_000_000;

/// A reader of one process.
pub struct StackReader {
    pid: i32,
    /// When the process began, in ticks since boot: another process of the same number began later.
    started: u64,
    spy: PythonSpy,
    /// Whether frames of C and C++ are read too. That is possible in stopped threads only.
    native: bool,
}

// SAFETY: the part that is not Send is libunwind's description of the process, which belongs to no thread: only the owner of the
// reader uses it, and each capture stops, walks and continues the process's threads from one thread of this one.
#[cfg(feature = "native")]
unsafe impl Send for StackReader {}

impl std::fmt::Debug for StackReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({})", self.pid)
    }
}

impl StackReader {
    /// Finds the interpreter in a process.
    ///
    /// # Errors
    /// There is no such process, it may not be read, or it has no Python that is known here; or `native` frames are
    /// asked of a build without them.
    pub fn open(pid: i32, native: bool) -> Result<Self> {
        if native && !HAS_NATIVE {
            return Err(Error::failed("this build of probe reads Python frames only")
                .hint("build one with --features native, which takes libunwind-dev; gdb -p PID shows C frames too"));
        }
        permission::check(pid)?;
        let gone = || Error::unreachable(format!("there is no process {pid}"));
        let started = processes::started(pid).ok_or_else(gone)?;
        let config =
            Config { blocking: LockingStrategy::NonBlocking, full_filenames: true, native, ..Config::default() };
        let spy = PythonSpy::new(pid, &config).map_err(|error| {
            Error::failed(format!("no Python that can be read is in process {pid}: {}", words(&error)))
                .hint("CPython 3.9 to 3.14 can be read, once it has started")
        })?;
        Ok(Self { pid, started, spy, native })
    }

    /// Whether the process that was opened is still there.
    pub fn is_current(&self) -> bool {
        processes::started(self.pid) == Some(self.started)
    }

    /// Reads the stacks of all threads. The caller fills in host and rank.
    ///
    /// # Errors
    /// The process is gone, may not be paused, or moves too fast to be read.
    pub fn capture(&mut self, paused: bool) -> Result<ProcessStacks> {
        let tasks = processes::tasks(self.pid);
        let mut stopped = 0.0;
        let (traces, moving) = if paused || self.native {
            let began = Instant::now();
            let traces = self.read_paused()?;
            stopped = began.elapsed().as_secs_f64();
            (traces, Vec::new())
        } else {
            self.read_settled()?
        };
        let mut sources = SourceFiles::of(self.pid);
        let mut threads: Vec<ThreadStack> = traces
            .iter()
            .map(|trace| {
                let mut thread = self.thread(trace);
                let task = thread.os_thread.and_then(|id| tasks.get(&id));
                let state = task.map(|task| task.state);
                thread.running = task.map_or(trace.active, |task| task.state == 'R');
                let call = thread.os_thread.and_then(|id| processes::system_call(self.pid, id));
                thread.waits_for = waits_for(&thread.frames, state, call);
                thread.moving = moving.contains(&trace.thread_id);
                let innermost_of_user = thread.frames.iter().position(|frame| frame.user_code);
                for index in std::iter::once(0).chain(innermost_of_user) {
                    let Some(frame) = thread.frames.get_mut(index) else { continue };
                    let line = frame.line.unwrap_or_default();
                    frame.source = sources.line(&frame.file, line).unwrap_or_default();
                }
                thread
            })
            .collect();
        threads.sort_by_key(|thread| !thread.main);
        let known: Vec<u32> = threads.iter().filter_map(|thread| thread.os_thread).collect();
        let native = tasks.iter().filter(|(id, _)| !known.contains(id)).map(|(_, task)| task);
        // Where the interpreter does not say which of its threads is which of the system's, the others are not known either.
        let native = if known.is_empty() { Vec::new() } else { processes::by_name(native) };
        Ok(ProcessStacks {
            pid: u32::try_from(self.pid).unwrap_or_default(),
            python: self.spy.version.to_string(),
            threads,
            native,
            samples: 1,
            stopped_s: stopped,
            ..ProcessStacks::default()
        })
    }

    /// Reads once while the process runs, for sampling. Reads frames only, and looks up nothing else.
    ///
    /// # Errors
    /// This reading failed.
    pub fn sample(&mut self) -> Result<Vec<ThreadStack>> {
        let traces = self.spy.get_stack_traces().map_err(|error| self.explain(&error))?;
        Ok(traces.iter().map(|trace| ThreadStack { running: trace.active, ..self.thread(trace) }).collect())
    }

    fn read_paused(&mut self) -> Result<Vec<StackTrace>> {
        self.spy.config.blocking = LockingStrategy::Lock;
        let read = self.spy.get_stack_traces();
        self.spy.config.blocking = LockingStrategy::NonBlocking;
        read.map_err(|error| self.explain(&error))
    }

    /// Reads until two readings agree. Returns the last reading, and the threads that differed in all.
    fn read_settled(&mut self) -> Result<(Vec<StackTrace>, Vec<u64>)> {
        let (mut last, mut moving) = (None::<Vec<StackTrace>>, Vec::new());
        let mut failure = None;
        for _ in 0..MAX_READINGS {
            let now = match self.spy.get_stack_traces() {
                Ok(now) => now,
                Err(error) => {
                    failure = Some(self.explain(&error));
                    if !self.is_current() {
                        break;
                    }
                    continue;
                }
            };
            if let Some(before) = last.replace(now.clone()) {
                moving = moved(&before, &now);
                if moving.is_empty() {
                    break;
                }
            } else {
                moving = now.iter().map(|trace| trace.thread_id).collect();
            }
        }
        match (last, failure) {
            (Some(traces), _) => Ok((traces, moving)),
            (None, Some(failure)) => Err(failure),
            (None, None) => Err(Error::failed(format!("process {} could not be read", self.pid))),
        }
    }

    fn thread(&self, trace: &StackTrace) -> ThreadStack {
        let name = trace.thread_name.clone().unwrap_or_default();
        let os_thread = trace.os_thread_id.and_then(|id| u32::try_from(id).ok()).filter(|id| *id > 0);
        ThreadStack {
            main: os_thread.map_or(name == "MainThread", |id| i64::from(id) == i64::from(self.pid)),
            name,
            os_thread,
            gil: trace.owns_gil,
            samples: 1,
            frames: trace.frames.iter().map(frame).collect(),
            ..ThreadStack::default()
        }
    }

    fn explain(&self, error: &impl std::fmt::Display) -> Error {
        if !self.is_current() {
            return Error::unreachable(format!("process {} has ended", self.pid));
        }
        Error::failed(format!("process {} could not be read: {}", self.pid, words(error)))
    }
}

/// Threads whose frames differ between two readings, or that are in one only.
fn moved(before: &[StackTrace], now: &[StackTrace]) -> Vec<u64> {
    let before: HashMap<u64, &StackTrace> = before.iter().map(|trace| (trace.thread_id, trace)).collect();
    let same = |trace: &&StackTrace| before.get(&trace.thread_id).is_none_or(|old| old.frames != trace.frames);
    now.iter().filter(same).map(|trace| trace.thread_id).collect()
}

fn frame(frame: &py_spy::Frame) -> StackFrame {
    // A function without a symbol has its address as name, which differs in each process.
    let is_native = frame.module.is_some();
    let function = if is_native && frame.name.starts_with("0x") { "(no symbol)" } else { &frame.name };
    StackFrame {
        function: function.to_owned(),
        user_code: !is_native && is_user_code(&frame.filename),
        file: frame.filename.clone(),
        line: (1..MAX_LINES).contains(&frame.line).then_some(frame.line as u32),
        source: String::new(),
    }
}

/// An error with its causes.
fn words(error: &impl std::fmt::Display) -> String {
    format!("{error:#}")
}
