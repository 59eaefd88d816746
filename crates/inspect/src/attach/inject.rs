//! Has CPython before 3.14 run a statement: one thread is borrowed for the fifth part of a millisecond, and calls
//! `Py_AddPendingCall(PyRun_SimpleString, statement)`, which the interpreter is made for: any thread may call it, with or
//! without the GIL, and the main thread runs the statement when it next gets to a place where it handles signals, too.
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

use super::interpreter::Places;
use super::trace::{Saved, Stop, Thread};
use super::tracer::{traced, tracer};
use super::{machine, maps, threads};

/// How long a thread that may be borrowed is looked for: one that computes has to come by the interpreter.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);
const STACK: u64 = 256 << 10;

/// What was done.
#[derive(Debug)]
pub(super) struct Injected {
    /// How long the borrowed thread stood still, all attempts together.
    pub stopped: Duration,
    /// Whether it was the main thread, which mostly is the one that trains.
    pub main: bool,
    /// Where the statement is.
    text: Range<u64>,
}

/// Why a thread can't be borrowed now.
#[derive(Debug)]
pub(super) enum Failure {
    /// Another one may do, or the same a moment later.
    NotNow,
    /// It may not be traced. Some threads never may: the kernel's own that work for a process (io_uring's).
    Denied(Error),
    For(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            // It has ended.
            Some(libc::ESRCH | libc::ECHILD) => Self::NotNow,
            None if error.kind() == io::ErrorKind::TimedOut => {
                Self::For(Error::limit("the borrowed thread did not come back in time"))
            }
            _ => Self::For(Error::failed("a thread could not be borrowed").because(error)),
        }
    }
}

/// Has the interpreter run `statement`, soon.
///
/// # Errors
/// It may not be traced, somebody else traces it, or no thread came to a place where it can be borrowed. In all cases
/// every thread has its registers back.
pub(super) fn inject(pid: i32, places: &Places, statement: &str) -> Result<Injected> {
    let memory = memory(pid)?;
    let deadline = Instant::now() + PATIENCE;
    let mut stopped = Duration::ZERO;
    let mut denied = None;
    loop {
        for candidate in threads::candidates(pid) {
            match borrow(candidate.id, &mut stopped, |thread, saved| call(thread, saved, places, &memory, statement)) {
                Ok(text) => return Ok(Injected { stopped, main: candidate.id == pid, text }),
                Err(Failure::NotNow) => {}
                Err(Failure::Denied(error)) if candidate.id != pid => denied = Some(error),
                Err(Failure::Denied(error) | Failure::For(error)) => return Err(error),
            }
        }
        if Instant::now() > deadline {
            return Err(denied.unwrap_or_else(|| {
                Error::limit(format!(
                    "no thread of process {pid} came to a place where it can be borrowed within {} s",
                    PATIENCE.as_secs()
                ))
                .hint(format!("probe {pid} stack says where they are"))
            }));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Gives the memory of a statement back that has been read. Where that is not possible it stays: a page or two.
pub(super) fn release(pid: i32, places: &Places, injected: &Injected) {
    let Ok(memory) = memory(pid) else { return };
    let Range { start, end } = injected.text;
    for candidate in threads::candidates(pid) {
        let unmapped = borrow(candidate.id, &mut Duration::default(), |thread, saved| {
            begin(thread, saved, places, &memory)?;
            system_call(thread, saved, places, libc::SYS_munmap, [start, end - start, 0, 0, 0, 0])
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

/// Stops a thread, does `work`, and puts it back as it was, whatever comes of it. By a thread of our own that ends then:
/// with a tracer's end the kernel lets go of whom it traces, also of one that nothing reached.
pub(super) fn borrow<T: Send>(
    id: i32,
    stopped: &mut Duration,
    work: impl FnOnce(&mut Thread, &mut Saved) -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    // Inherited by the thread.
    let _undisturbed = Undisturbed::begin();
    std::thread::scope(|scope| {
        let tracer = scope.spawn(|| borrow_here(id, stopped, work));
        tracer.join().unwrap_or_else(|_| Err(Failure::For(Error::failed("a defect in probe attach (see above)"))))
    })
}

fn borrow_here<T>(
    id: i32,
    stopped: &mut Duration,
    work: impl FnOnce(&mut Thread, &mut Saved) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut thread = Thread::seize(id).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => Failure::Denied(not_permitted(id)),
        _ => error.into(),
    })?;
    let begun = Instant::now();
    let done = match thread.stop() {
        Ok(Stop::Ours) => {
            let saved = thread.save()?;
            let mut borrowed = Borrowed { thread: &mut thread, saved, is_back: false };
            let done = work(borrowed.thread, &mut borrowed.saved);
            borrowed.give_back().map_err(Failure::from).and(done)
        }
        Ok(Stop::Group) => {
            Err(Failure::For(Error::failed("the process is stopped").hint(format!("kill -CONT {id} continues it"))))
        }
        Ok(_) => Err(Failure::NotNow),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(Failure::NotNow),
        Err(error) => Err(error.into()),
    };
    drop(thread);
    *stopped += begun.elapsed();
    done
}

/// Ctrl-C must not end this process while a thread of another one has registers of ours: it comes a moment later.
struct Undisturbed(Option<SigSet>);

impl Undisturbed {
    fn begin() -> Self {
        Self(SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).ok())
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            let _ = before.thread_set_mask();
        }
    }
}

/// A thread whose registers are to be put back, also when what is done with it panics.
struct Borrowed<'t> {
    thread: &'t mut Thread,
    saved: Saved,
    is_back: bool,
}

impl Borrowed<'_> {
    fn give_back(&mut self) -> io::Result<()> {
        self.is_back = true;
        self.thread.restore(&self.saved)
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        if !self.is_back {
            let _ = self.give_back();
        }
    }
}

/// Has a thread that is stopped put the statement into the interpreter's list. Returns where the statement is.
fn call(
    thread: &mut Thread,
    saved: &mut Saved,
    places: &Places,
    memory: &File,
    statement: &str,
) -> Result<Range<u64>, Failure> {
    if !is_safe(saved, places, memory) {
        return Err(Failure::NotNow);
    }
    begin(thread, saved, places, memory)?;
    let text = (statement.len() as u64 + 1).next_multiple_of(maps::page_size());
    let (flags, kind) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
    let arguments = [0, text + STACK, kind as u64, flags as u64, u64::MAX, 0];
    let place = system_call(thread, saved, places, libc::SYS_mmap, arguments)?;
    let stack = place + text..place + text + STACK;
    let pushed = push(thread, saved, places, memory, statement, place, stack.end);
    // Where it is not known whether the interpreter has the statement, both stay: it may still read it.
    let unused = match &pushed {
        Ok(Pushed::Taken) => Some(stack.start),
        Ok(Pushed::Refused) => Some(place),
        Err(_) => None,
    };
    if let Some(from) = unused {
        system_call(thread, saved, places, libc::SYS_munmap, [from, stack.end - from, 0, 0, 0, 0])?;
    }
    match pushed? {
        Pushed::Taken => Ok(place..place + text),
        Pushed::Refused => Err(Failure::For(
            Error::failed("the interpreter's list of pending calls is full")
                .hint("its main thread has run no Python code for long; probe PID stack says where it is"),
        )),
    }
}

/// What the interpreter said.
enum Pushed {
    Taken,
    Refused,
}

/// Writes the statement and calls the interpreter's function with it.
fn push(
    thread: &mut Thread,
    saved: &Saved,
    places: &Places,
    memory: &File,
    statement: &str,
    place: u64,
    end: u64,
) -> Result<Pushed, Failure> {
    // The page is zero behind it, which ends it.
    memory.write_all_at(statement.as_bytes(), place)?;
    let top = machine::top(end - 4096);
    // Where there is no register for it, this is the return address; elsewhere nobody looks at it.
    memory.write_all_at(&places.trap.to_ne_bytes(), top)?;
    let (function, arguments) = (places.add_pending_call, [places.run_string, place]);
    thread.set_registers(&machine::for_call(&saved.registers, function, arguments, top, places.trap))?;
    thread.run_to_trap(libc::PTRACE_CONT)?;
    let after = thread.registers()?;
    if machine::program_counter(&after) != places.trap + machine::BEHIND_TRAP {
        return Err(Failure::For(Error::failed(
            "the interpreter's function faulted; the thread has its registers back",
        )));
    }
    Ok(if machine::result(&after) as i32 == 0 { Pushed::Taken } else { Pushed::Refused })
}

/// Whether the interpreter's function may be called where a thread was stopped. It takes one lock of the interpreter's,
/// which nobody holds in a system call, nor in the evaluation of bytecode.
fn is_safe(saved: &Saved, places: &Places, memory: &File) -> bool {
    match machine::system_call(&saved.registers, memory) {
        Some(number) => threads::may_call_from(number),
        None => places.evaluation.contains(&machine::program_counter(&saved.registers)),
    }
}

/// From here on a thread that is stopped does what we say.
pub(super) fn begin(thread: &mut Thread, saved: &mut Saved, places: &Places, memory: &File) -> io::Result<()> {
    thread.hold_signals()?;
    machine::leave_system_call(thread, saved, memory, places.trap)
}

/// Has a thread that is stopped make a system call.
pub(super) fn system_call(
    thread: &mut Thread,
    saved: &Saved,
    places: &Places,
    number: i64,
    arguments: [u64; 6],
) -> Result<u64, Failure> {
    let at = places.system_call;
    thread.set_registers(&machine::for_system_call(&saved.registers, at, number, arguments))?;
    thread.run_to_trap(libc::PTRACE_SINGLESTEP)?;
    let after = thread.registers()?;
    let failed =
        |why: String| Failure::For(Error::failed(format!("a system call in process could not be made: {why}")));
    if machine::program_counter(&after) != at + machine::BEHIND_SYSTEM_CALL {
        return Err(failed("a seccomp filter or a debugger came in between".into()));
    }
    match machine::result(&after) as i64 {
        error @ -4095..0 => Err(failed(io::Error::from_raw_os_error(-error as i32).to_string())),
        result => Ok(result as u64),
    }
}

/// Why a thread may not be traced: somebody else does, or we may not.
fn not_permitted(id: i32) -> Error {
    match tracer(id) {
        Some(tracer) => traced(id, tracer),
        None => crate::stacks::permission::denied_to_trace(id),
    }
}
