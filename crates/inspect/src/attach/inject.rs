//! Has CPython before 3.14 run a statement: one thread is borrowed for the fifth part of a millisecond, and calls
//! `Py_AddPendingCall(PyRun_SimpleString, statement)`. The interpreter allows that: any thread may call it, with or
//! without the GIL, and the main thread runs the statement when it next comes to a point where it also handles signals.
//!
//! What is *not* done is what goes wrong elsewhere: nothing is loaded or allocated by the borrowed thread; no code is
//! changed (the two instructions that are needed stand somewhere in the process anyway); its own stack is not touched (it
//! gets another one); other threads are not stopped. A thread that waits for something is taken where there is one.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};
use probe_common::error::{Error, Result};

use super::interpreter::InjectionAddresses;
use super::trace::{SavedRegisters, ThreadStop, TracedThread};
use super::tracer::{traced, tracer};
use super::{machine, maps, threads};

/// How long a thread that may be borrowed is looked for: one that computes has to return to the interpreter.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two searches for a thread.
const PAUSE: Duration = Duration::from_millis(1);
/// Size of a borrowed thread's stack (bytes).
const STACK: u64 = 256 << 10;

/// A statement that the interpreter has in its list.
#[derive(Debug)]
pub(super) struct InjectedStatement {
    /// How long the borrowed thread stood still, all attempts together.
    pub stopped: Duration,
    /// Whether the borrowed thread was the main one, which mostly is the one that trains.
    pub main: bool,
    /// Addresses of the memory that holds the statement.
    text: Range<u64>,
}

/// Why a thread can't be borrowed now.
#[derive(Debug)]
pub(super) enum InjectionFailure {
    /// Another thread may be borrowed, or the same one a moment later.
    NotNow,
    /// The thread may not be traced. Some threads never may: the kernel's own that work for a process (io_uring's).
    Denied(Error),
    For(Error),
}

impl From<io::Error> for InjectionFailure {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            // The thread has ended.
            Some(libc::ESRCH | libc::ECHILD) => Self::NotNow,
            None if error.kind() == io::ErrorKind::TimedOut => {
                Self::For(Error::limit("the borrowed thread did not return in time"))
            }
            _ => Self::For(Error::failed("a thread could not be borrowed").because(error)),
        }
    }
}

/// Makes the interpreter run `statement`, soon.
///
/// # Errors
/// The process may not be traced, another process traces it, or no thread came to a point where it can be borrowed. In all cases
/// every thread has its registers back.
pub(super) fn inject(pid: i32, addresses: &InjectionAddresses, statement: &str) -> Result<InjectedStatement> {
    let memory = memory(pid)?;
    let deadline = Instant::now() + TIMEOUT;
    let mut stopped = Duration::ZERO;
    let mut denied = None;
    loop {
        for candidate in threads::candidates(pid) {
            match borrow(candidate.id, &mut stopped, |thread, saved| call(thread, saved, addresses, &memory, statement))
            {
                Ok(text) => return Ok(InjectedStatement { stopped, main: candidate.id == pid, text }),
                Err(InjectionFailure::NotNow) => {}
                Err(InjectionFailure::Denied(error)) if candidate.id != pid => denied = Some(error),
                Err(InjectionFailure::Denied(error) | InjectionFailure::For(error)) => return Err(error),
            }
        }
        if Instant::now() > deadline {
            return Err(denied.unwrap_or_else(|| {
                Error::limit(format!(
                    "no thread of process {pid} came to a place where it can be borrowed within {} s",
                    TIMEOUT.as_secs()
                ))
                .hint(format!("probe {pid} stack shows where they are"))
            }));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Unmaps the memory of a statement that has been read. Where that is not possible it stays: a page or two.
pub(super) fn release(pid: i32, addresses: &InjectionAddresses, injected: &InjectedStatement) {
    let Ok(memory) = memory(pid) else { return };
    let Range { start, end } = injected.text;
    for candidate in threads::candidates(pid) {
        let unmapped = borrow(candidate.id, &mut Duration::default(), |thread, saved| {
            begin(thread, saved, addresses, &memory)?;
            system_call(thread, saved, addresses, libc::SYS_munmap, [start, end - start, 0, 0, 0, 0])
        });
        if unmapped.is_ok() {
            return;
        }
    }
}

pub(super) fn memory(pid: i32) -> Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"));
    opened.map_err(|error| Error::denied(format!("the memory of process {pid} can't be written")).because(error))
}

/// Stops a thread, does `work`, and puts the thread back as it was, also after a failure. A thread of our own does that
/// and then ends: the kernel detaches a tracer that ends from all its threads, also from one that nothing reached.
pub(super) fn borrow<T: Send>(
    id: i32,
    stopped: &mut Duration,
    work: impl FnOnce(&mut TracedThread, &mut SavedRegisters) -> Result<T, InjectionFailure> + Send,
) -> Result<T, InjectionFailure> {
    // The thread inherits the mask.
    let _undisturbed = BlockedSignals::begin();
    std::thread::scope(|scope| {
        let tracer = scope.spawn(|| borrow_here(id, stopped, work));
        tracer
            .join()
            .unwrap_or_else(|_| Err(InjectionFailure::For(Error::failed("a defect in probe attach (see above)"))))
    })
}

fn borrow_here<T>(
    id: i32,
    stopped: &mut Duration,
    work: impl FnOnce(&mut TracedThread, &mut SavedRegisters) -> Result<T, InjectionFailure>,
) -> Result<T, InjectionFailure> {
    let mut thread = TracedThread::seize(id).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => InjectionFailure::Denied(not_permitted(id)),
        _ => error.into(),
    })?;
    let begun = Instant::now();
    let done = match thread.stop() {
        Ok(ThreadStop::Ours) => {
            let saved = thread.save_registers()?;
            let mut borrowed = BorrowedThread { thread: &mut thread, saved, is_back: false };
            let done = work(borrowed.thread, &mut borrowed.saved);
            borrowed.give_back().map_err(InjectionFailure::from).and(done)
        }
        Ok(ThreadStop::Group) => Err(InjectionFailure::For(
            Error::failed("the process is stopped").hint(format!("kill -CONT {id} continues it")),
        )),
        Ok(_) => Err(InjectionFailure::NotNow),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(InjectionFailure::NotNow),
        Err(error) => Err(error.into()),
    };
    drop(thread);
    *stopped += begun.elapsed();
    done
}

/// Signals are blocked while it lives: Ctrl-C must not end this process while a thread of another process has registers
/// of ours, so it arrives a moment later.
struct BlockedSignals(Option<SigSet>);

impl BlockedSignals {
    fn begin() -> Self {
        Self(SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).ok())
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = before.thread_set_mask();
        }
    }
}

/// A thread whose registers are put back, also when the work with it panics.
struct BorrowedThread<'t> {
    thread: &'t mut TracedThread,
    saved: SavedRegisters,
    is_back: bool,
}

impl BorrowedThread<'_> {
    fn give_back(&mut self) -> io::Result<()> {
        self.is_back = true;
        self.thread.restore(&self.saved)
    }
}

impl Drop for BorrowedThread<'_> {
    fn drop(&mut self) {
        if !self.is_back {
            let _ = self.give_back();
        }
    }
}

/// Makes a stopped thread put the statement into the interpreter's list. Returns where the statement is.
fn call(
    thread: &mut TracedThread,
    saved: &mut SavedRegisters,
    addresses: &InjectionAddresses,
    memory: &File,
    statement: &str,
) -> Result<Range<u64>, InjectionFailure> {
    if !is_safe(saved, addresses, memory) {
        return Err(InjectionFailure::NotNow);
    }
    begin(thread, saved, addresses, memory)?;
    let text = (statement.len() as u64 + 1).next_multiple_of(maps::page_size());
    let (flags, kind) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
    let arguments = [0, text + STACK, kind as u64, flags as u64, u64::MAX, 0];
    let base = system_call(thread, saved, addresses, libc::SYS_mmap, arguments)?;
    let stack = base + text..base + text + STACK;
    let pushed = push(thread, saved, addresses, memory, statement, base, stack.end);
    // After an error the interpreter may have the statement and still read it: both mappings stay.
    let unused = match &pushed {
        Ok(PendingCallAnswer::Taken) => Some(stack.start),
        Ok(PendingCallAnswer::Refused) => Some(base),
        Err(_) => None,
    };
    if let Some(from) = unused {
        system_call(thread, saved, addresses, libc::SYS_munmap, [from, stack.end - from, 0, 0, 0, 0])?;
    }
    match pushed? {
        PendingCallAnswer::Taken => Ok(base..base + text),
        PendingCallAnswer::Refused => Err(InjectionFailure::For(
            Error::failed("the interpreter's list of pending calls is full")
                .hint("its main thread has run no Python code for long; probe PID stack shows where it is"),
        )),
    }
}

/// What the interpreter answered.
enum PendingCallAnswer {
    Taken,
    Refused,
}

/// Writes the statement to `base` and calls the interpreter's function with it, on the stack that ends at `end`.
fn push(
    thread: &mut TracedThread,
    saved: &SavedRegisters,
    addresses: &InjectionAddresses,
    memory: &File,
    statement: &str,
    base: u64,
    end: u64,
) -> Result<PendingCallAnswer, InjectionFailure> {
    // The page is zero behind the statement, which ends the string.
    memory.write_all_at(statement.as_bytes(), base)?;
    let top = machine::top(end - 4096);
    // Where the processor has no register for it, this is the return address; elsewhere it is not read.
    memory.write_all_at(&addresses.trap.to_ne_bytes(), top)?;
    let (function, arguments) = (addresses.add_pending_call, [addresses.run_string, base]);
    thread.set_registers(&machine::for_call(&saved.registers, function, arguments, top, addresses.trap))?;
    thread.run_to_trap(libc::PTRACE_CONT)?;
    let after = thread.registers()?;
    if machine::program_counter(&after) != addresses.trap + machine::BEHIND_TRAP {
        return Err(InjectionFailure::For(Error::failed(
            "the interpreter's function faulted; the thread has its registers back",
        )));
    }
    Ok(if machine::result(&after) as i32 == 0 { PendingCallAnswer::Taken } else { PendingCallAnswer::Refused })
}

/// Whether the interpreter's function may be called where a thread was stopped. It takes one lock of the interpreter's,
/// which no thread holds in a system call, nor in the evaluation of bytecode.
fn is_safe(saved: &SavedRegisters, addresses: &InjectionAddresses, memory: &File) -> bool {
    match machine::system_call(&saved.registers, memory) {
        Some(number) => threads::may_call_from(number),
        None => addresses.evaluation.contains(&machine::program_counter(&saved.registers)),
    }
}

/// Prepares a stopped thread for calls of ours: holds its signals, and takes it out of its system call.
pub(super) fn begin(
    thread: &mut TracedThread,
    saved: &mut SavedRegisters,
    addresses: &InjectionAddresses,
    memory: &File,
) -> io::Result<()> {
    thread.hold_signals()?;
    machine::leave_system_call(thread, saved, memory, addresses.trap)
}

/// Makes a stopped thread make a system call.
pub(super) fn system_call(
    thread: &mut TracedThread,
    saved: &SavedRegisters,
    addresses: &InjectionAddresses,
    number: i64,
    arguments: [u64; 6],
) -> Result<u64, InjectionFailure> {
    let at = addresses.system_call;
    thread.set_registers(&machine::for_system_call(&saved.registers, at, number, arguments))?;
    thread.run_to_trap(libc::PTRACE_SINGLESTEP)?;
    let after = thread.registers()?;
    let failed = || Error::failed("a system call in the process could not be made");
    if machine::program_counter(&after) != at + machine::BEHIND_SYSTEM_CALL {
        return Err(InjectionFailure::For(failed().because("a seccomp filter or a debugger came in between")));
    }
    match machine::result(&after) as i64 {
        error @ -4095..0 => Err(InjectionFailure::For(failed().because(io::Error::from_raw_os_error(-error as i32)))),
        result => Ok(result as u64),
    }
}

/// Why a thread may not be traced: another process traces it, or the kernel denies it.
fn not_permitted(id: i32) -> Error {
    match tracer(id) {
        Some(tracer) => traced(id, tracer),
        None => crate::stacks::permission::denied_to_trace(id),
    }
}
