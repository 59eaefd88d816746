//! One thread of another process, under ptrace. The other threads run on.
//!
//! Every wait here has a limit, and a thread is detached whatever happens: by `Drop`, and by the kernel where this
//! process dies.

use std::io;
use std::ptr;
use std::time::{Duration, Instant};

use super::machine::{self, Registers};

/// How long a thread that was just told to stop may take. Nothing was done to one that takes longer: another one is tried, or the
/// same one again.
const TO_STOP: Duration = Duration::from_millis(500);
/// How long a call may take, and how long a thread with registers of ours may take to stop. Both take microseconds, and more where the machine
/// is busy.
pub(super) const CALL: Duration = Duration::from_secs(2);
/// Room for vector registers (bytes). They take 11 KiB with AMX and 9 with the widest SVE there is; later processors may
/// have more.
const VECTORS: usize = 64 << 10;

/// Signals that an instruction causes.
const BY_INSTRUCTIONS: [i32; 5] = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// Why a thread has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThreadStop {
    /// This process stopped it.
    Ours,
    /// The whole process is stopped (SIGSTOP, Ctrl-Z).
    Group,
    /// The thread enters the kernel or leaves it, and was resumed to stop there.
    SystemCall,
    /// The thread is about to be given this signal.
    Signal(i32),
    /// The thread has ended.
    Gone,
}

/// A thread that we trace.
pub(super) struct TracedThread {
    id: i32,
    stopped: bool,
    gone: bool,
    /// The signal that the thread is given when it is detached; 0 is none.
    signal: i32,
}

/// All registers of a thread, and which signals it blocks.
pub(super) struct SavedRegisters {
    pub(super) registers: Registers,
    /// The set of vector registers (elf.h), and its bytes.
    vectors: (i32, Vec<u8>),
    mask: u64,
    /// The thread stands before a system call, and is to be put back into it.
    pub(super) is_to_enter: bool,
}

fn ptrace(request: libc::c_uint, id: i32, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: callers pass what the request asks for; those that write give the address of something that large, which
    // lives until this returns.
    let answer = unsafe { libc::ptrace(request, id, address, data) };
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

impl TracedThread {
    /// Begins to trace a thread, without stopping it.
    pub(super) fn seize(id: i32) -> io::Result<Self> {
        ptrace(libc::PTRACE_SEIZE, id, 0, libc::PTRACE_O_TRACESYSGOOD as usize)?;
        Ok(Self { id, stopped: false, gone: false, signal: 0 })
    }

    /// Stops the thread where it is; it takes signals that come before.
    pub(super) fn stop(&mut self) -> io::Result<ThreadStop> {
        ptrace(libc::PTRACE_INTERRUPT, self.id, 0, 0)?;
        let until = Instant::now() + TO_STOP;
        loop {
            match self.wait(until)? {
                ThreadStop::Signal(signal) => self.resume(libc::PTRACE_CONT, signal)?,
                stop => return Ok(stop),
            }
        }
    }

    /// Waits until the thread stops.
    pub(super) fn wait(&mut self, until: Instant) -> io::Result<ThreadStop> {
        let mut asked = 0_u32;
        loop {
            let mut status = 0;
            // SAFETY: `status` is a variable that waitpid may write.
            match unsafe { libc::waitpid(self.id, &raw mut status, libc::__WALL | libc::WNOHANG) } {
                0 => {}
                -1 => {
                    let error = io::Error::last_os_error();
                    self.gone |= error.raw_os_error() == Some(libc::ECHILD);
                    return Err(error);
                }
                _ => return Ok(self.stopped_by(status)),
            }
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // A stop takes some ten microseconds where a core is free. Where none is, the thread needs the core of this one.
            asked += 1;
            if asked > 50 {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    fn stopped_by(&mut self, status: i32) -> ThreadStop {
        if !libc::WIFSTOPPED(status) {
            self.gone = true;
            return ThreadStop::Gone;
        }
        self.stopped = true;
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => ThreadStop::Ours,
            libc::PTRACE_EVENT_STOP => ThreadStop::Group,
            _ if signal == libc::SIGTRAP | 0x80 => ThreadStop::SystemCall,
            _ => ThreadStop::Signal(signal),
        }
    }

    /// Waits until the thread stops for what `is_it` accepts. After any other stop it goes on by the request `how`.
    pub(super) fn wait_for(
        &mut self,
        how: libc::c_uint,
        until: Instant,
        is_it: impl Fn(ThreadStop) -> bool,
    ) -> io::Result<()> {
        loop {
            match self.wait(until)? {
                stop if is_it(stop) => return Ok(()),
                ThreadStop::Gone => return Err(io::Error::other("the process ended meanwhile")),
                // A signal that can't be held: the process is to stop, and stops when the thread is detached.
                ThreadStop::Signal(signal) => {
                    self.signal = signal;
                    self.resume(how, 0)?;
                }
                ThreadStop::Ours | ThreadStop::Group | ThreadStop::SystemCall => self.resume(how, 0)?,
            }
        }
    }

    /// Lets the thread run until it traps or faults.
    pub(super) fn run_to_trap(&mut self, how: libc::c_uint) -> io::Result<()> {
        let until = Instant::now() + CALL;
        self.resume(how, 0)?;
        self.wait_for(
            how,
            until,
            |stop| matches!(stop, ThreadStop::Signal(signal) if BY_INSTRUCTIONS.contains(&signal)),
        )
    }

    /// Lets the thread run: by `PTRACE_CONT`, by `PTRACE_SINGLESTEP` for one instruction, or by `PTRACE_SYSCALL` until it enters
    /// the kernel or leaves it.
    pub(super) fn resume(&mut self, request: libc::c_uint, signal: i32) -> io::Result<()> {
        ptrace(request, self.id, 0, signal as usize)?;
        self.stopped = false;
        Ok(())
    }

    /// Reads a set of registers; returns how many bytes it has.
    fn read_set(&self, set: i32, into: *mut u8, size: usize) -> io::Result<usize> {
        let mut buffer = libc::iovec { iov_base: into.cast(), iov_len: size };
        ptrace(libc::PTRACE_GETREGSET, self.id, set as usize, &raw mut buffer as usize)?;
        Ok(buffer.iov_len)
    }

    /// Writes a set of registers.
    pub(super) fn write_set(&self, set: i32, from: &[u8]) -> io::Result<()> {
        let mut buffer = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        ptrace(libc::PTRACE_SETREGSET, self.id, set as usize, &raw mut buffer as usize)?;
        Ok(())
    }

    /// Reads the thread's general registers.
    pub(super) fn registers(&self) -> io::Result<Registers> {
        let mut registers = std::mem::MaybeUninit::<Registers>::zeroed();
        let size = size_of::<Registers>();
        let read = self.read_set(libc::NT_PRSTATUS, registers.as_mut_ptr().cast(), size)?;
        if read != size {
            // A 32-bit program's registers.
            return Err(io::Error::other("its registers are not those of a 64-bit program"));
        }
        // SAFETY: whole numbers, of which zero is one.
        Ok(unsafe { registers.assume_init() })
    }

    /// Writes the thread's general registers.
    pub(super) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        // SAFETY: whole numbers, as bytes.
        let bytes = unsafe { std::slice::from_raw_parts(ptr::from_ref(registers).cast(), size_of::<Registers>()) };
        self.write_set(libc::NT_PRSTATUS, bytes)
    }

    /// Reads all that a call can change.
    pub(super) fn save_registers(&self) -> io::Result<SavedRegisters> {
        let registers = self.registers()?;
        let vectors = self.vectors()?;
        let mut mask = 0_u64;
        ptrace(libc::PTRACE_GETSIGMASK, self.id, size_of::<u64>(), &raw mut mask as usize)?;
        Ok(SavedRegisters { registers, vectors, mask, is_to_enter: false })
    }

    /// Reads the vector registers, by the first of the sets that this processor has.
    fn vectors(&self) -> io::Result<(i32, Vec<u8>)> {
        let mut vectors = vec![0; VECTORS];
        let mut why = io::Error::from(io::ErrorKind::Unsupported);
        for set in machine::VECTOR_SETS {
            match self.read_set(*set, vectors.as_mut_ptr(), VECTORS) {
                Ok(size) => {
                    vectors.truncate(size);
                    return Ok((*set, vectors));
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Blocks all signals but those that an instruction causes, until [`TracedThread::restore`].
    pub(super) fn hold_signals(&self) -> io::Result<()> {
        let mask = BY_INSTRUCTIONS.into_iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
        self.set_mask(mask)
    }

    fn set_mask(&self, mask: u64) -> io::Result<()> {
        ptrace(libc::PTRACE_SETSIGMASK, self.id, size_of::<u64>(), &raw const mask as usize).map(drop)
    }

    /// Puts everything back, wherever the thread is by now. The signal mask comes before the registers: a thread without
    /// its registers is lost anyway, and one that has them must not be left without signals. A thread that is to enter a
    /// system call gets its mask after that: only a call that it has entered is ended by a signal that was held.
    pub(super) fn restore(&mut self, saved: &SavedRegisters) -> io::Result<()> {
        if self.gone {
            return Ok(());
        }
        if !self.stopped {
            // Any other reason for the stop is of our making too: the trap that was to come, or a fault of the call. A thread
            // that does not stop now is lost, so it gets more time than one to which nothing was done.
            self.interrupt(CALL)?;
        }
        let (set, vectors) = &saved.vectors;
        let vectors = self.write_set(*set, vectors);
        if saved.is_to_enter {
            let registers = self.set_registers(&saved.registers);
            let entered = self.enter_system_call();
            let mask = self.set_mask(saved.mask);
            return vectors.and(registers).and(entered).and(mask);
        }
        let mask = self.set_mask(saved.mask);
        let registers = self.set_registers(&saved.registers);
        vectors.and(mask).and(registers)
    }

    fn enter_system_call(&mut self) -> io::Result<()> {
        let until = Instant::now() + CALL;
        self.resume(libc::PTRACE_SYSCALL, 0)?;
        let entered = self.wait_for(libc::PTRACE_SYSCALL, until, |stop| stop == ThreadStop::SystemCall);
        if !self.stopped && !self.gone {
            self.interrupt(CALL)?;
        }
        entered
    }

    fn interrupt(&mut self, patience: Duration) -> io::Result<ThreadStop> {
        ptrace(libc::PTRACE_INTERRUPT, self.id, 0, 0)?;
        self.wait(Instant::now() + patience)
    }
}

impl Drop for TracedThread {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        if !self.stopped {
            match self.interrupt(TO_STOP) {
                // The process's own signal: the thread runs nothing of ours.
                Ok(ThreadStop::Signal(signal)) => self.signal = signal,
                Ok(ThreadStop::Ours | ThreadStop::Group | ThreadStop::SystemCall) => {}
                // The thread sleeps where nothing reaches it: the kernel detaches it when this thread ends.
                Ok(ThreadStop::Gone) | Err(_) => return,
            }
        }
        let _ = ptrace(libc::PTRACE_DETACH, self.id, 0, self.signal as usize);
    }
}
