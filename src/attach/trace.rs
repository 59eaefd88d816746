//! One thread of another process, under ptrace. The other threads run on.
//!
//! Nothing here waits without a limit, and a thread is let go of whatever happens: by `Drop`, and by the kernel where this
//! process dies.

use std::io;
use std::ptr;
use std::time::{Duration, Instant};

use super::registers::Registers;

/// The set of vector and floating-point registers (elf.h).
const NT_X86_XSTATE: i32 = 0x202;
/// How long a thread that was just told to stop may take.
const TO_STOP: Duration = Duration::from_millis(500);
/// Vector registers take 11 KiB with AMX, and nobody says how much they will take.
const VECTORS: usize = 64 << 10;

/// Why a thread has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// We said so.
    Ours,
    /// The whole process is stopped (SIGSTOP, Ctrl-Z).
    Group,
    /// It is about to be given this signal.
    Signal(i32),
    /// It has ended.
    Gone,
}

/// A thread that we trace.
pub(super) struct Thread {
    id: i32,
    stopped: bool,
    gone: bool,
    /// Given to it when it is let go of.
    signal: i32,
}

/// All that a thread has in its processor, and which signals it does not take.
pub(super) struct Saved {
    pub(super) registers: Registers,
    vectors: Vec<u8>,
    mask: u64,
}

fn ptrace(request: libc::c_uint, id: i32, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: callers pass what the request asks for; those that write give the address of something that large, which
    // lives until this returns.
    let answer = unsafe { libc::ptrace(request, id, address, data) };
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

impl Thread {
    /// Begins to trace it, without stopping it.
    pub(super) fn seize(id: i32) -> io::Result<Self> {
        ptrace(libc::PTRACE_SEIZE, id, 0, 0)?;
        Ok(Self { id, stopped: false, gone: false, signal: 0 })
    }

    /// Stops it where it is; signals that come before are its own.
    pub(super) fn stop(&mut self) -> io::Result<Stop> {
        ptrace(libc::PTRACE_INTERRUPT, self.id, 0, 0)?;
        let until = Instant::now() + TO_STOP;
        loop {
            match self.wait(until)? {
                Stop::Signal(signal) => self.resume(libc::PTRACE_CONT, signal)?,
                stop => return Ok(stop),
            }
        }
    }

    /// Until it stops.
    pub(super) fn wait(&mut self, until: Instant) -> io::Result<Stop> {
        let mut asked = 0_u32;
        loop {
            let mut status = 0;
            // SAFETY: `status` is a place for one.
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
            // It takes some ten microseconds where a core is free. Where none is, ours is what it needs.
            asked += 1;
            if asked > 50 {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    fn stopped_by(&mut self, status: i32) -> Stop {
        if !libc::WIFSTOPPED(status) {
            self.gone = true;
            return Stop::Gone;
        }
        self.stopped = true;
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Ours,
            libc::PTRACE_EVENT_STOP => Stop::Group,
            _ => Stop::Signal(signal),
        }
    }

    /// Has it go on: by `PTRACE_CONT`, or by `PTRACE_SINGLESTEP` for one instruction.
    pub(super) fn resume(&mut self, request: libc::c_uint, signal: i32) -> io::Result<()> {
        ptrace(request, self.id, 0, signal as usize)?;
        self.stopped = false;
        Ok(())
    }

    /// Reads a set of registers; how many bytes they are.
    fn read_set(&self, set: i32, into: *mut u8, size: usize) -> io::Result<usize> {
        let mut place = libc::iovec { iov_base: into.cast(), iov_len: size };
        ptrace(libc::PTRACE_GETREGSET, self.id, set as usize, &raw mut place as usize)?;
        Ok(place.iov_len)
    }

    fn write_set(&self, set: i32, from: *const u8, size: usize) -> io::Result<()> {
        let mut place = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: size };
        ptrace(libc::PTRACE_SETREGSET, self.id, set as usize, &raw mut place as usize)?;
        Ok(())
    }

    /// Its general registers.
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

    /// Changes its general registers.
    pub(super) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        self.write_set(libc::NT_PRSTATUS, ptr::from_ref(registers).cast(), size_of::<Registers>())
    }

    /// All that a call can change.
    pub(super) fn save(&self) -> io::Result<Saved> {
        let registers = self.registers()?;
        let mut vectors = vec![0; VECTORS];
        let size = self.read_set(NT_X86_XSTATE, vectors.as_mut_ptr(), VECTORS)?;
        vectors.truncate(size);
        let mut mask = 0_u64;
        ptrace(libc::PTRACE_GETSIGMASK, self.id, size_of::<u64>(), &raw mut mask as usize)?;
        Ok(Saved { registers, vectors, mask })
    }

    /// Leaves only signals that an instruction makes: all others wait until [`Thread::restore`].
    pub(super) fn hold_signals(&self) -> io::Result<()> {
        let taken = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
        let mask = taken.into_iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
        ptrace(libc::PTRACE_SETSIGMASK, self.id, size_of::<u64>(), &raw const mask as usize).map(drop)
    }

    /// Puts everything back, wherever the thread is by now. The signal mask comes first: a thread without its registers
    /// is lost anyway, and one with them must not be left deaf.
    pub(super) fn restore(&mut self, saved: &Saved) -> io::Result<()> {
        if self.gone {
            return Ok(());
        }
        if !self.stopped {
            // What it stops for instead is ours too: the trap that was to come, or a fault of what we had it do.
            self.interrupt()?;
        }
        let mask = ptrace(libc::PTRACE_SETSIGMASK, self.id, size_of::<u64>(), &raw const saved.mask as usize);
        let vectors = self.write_set(NT_X86_XSTATE, saved.vectors.as_ptr(), saved.vectors.len());
        let registers = self.set_registers(&saved.registers);
        mask.map(drop).and(vectors).and(registers)
    }

    fn interrupt(&mut self) -> io::Result<Stop> {
        ptrace(libc::PTRACE_INTERRUPT, self.id, 0, 0)?;
        self.wait(Instant::now() + TO_STOP)
    }

    /// A signal that came while we worked and can't be held: it gets it when it is let go of.
    pub(super) fn give_later(&mut self, signal: i32) {
        self.signal = signal;
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        if !self.stopped {
            match self.interrupt() {
                // Its own, since we had it do nothing.
                Ok(Stop::Signal(signal)) => self.signal = signal,
                Ok(Stop::Ours | Stop::Group) => {}
                // It sleeps where nothing reaches it: the kernel lets go of it when our thread ends.
                Ok(Stop::Gone) | Err(_) => return,
            }
        }
        let _ = ptrace(libc::PTRACE_DETACH, self.id, 0, self.signal as usize);
    }
}
