//! aarch64, its standard calling convention (AAPCS64). Instructions are words, little-endian whatever the data is.
//!
//! The system call of a stopped thread differs from x86-64: the kernel rewinds it to its instruction before it tells the
//! tracer, and decides only later how to restart it (a sleep: with the time that is left, by a call of another number). The
//! registers do not show that, and the decision is lost when the thread goes elsewhere. So we let the thread run until it
//! re-enters the kernel, where the decision shows ([`leave_system_call`]), and restore it there
//! ([`SavedRegisters::is_to_enter`]). A signal that came meanwhile then ends the call as it would have without us.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

pub use libc::user_regs_struct as Registers;

use crate::attach::trace::{CALL, SavedRegisters, ThreadStop, TracedThread};

/// Whether threads can be borrowed.
pub const IS_KNOWN: bool = true;

/// Sets of registers that hold all vectors, the best first (elf.h): NT_ARM_SVE, whatever of it is in use, and where there is
/// no SVE NT_PRFPREG. The latter would clear what SVE has beyond 128 bits. SME has no part here: a system call leaves its
/// streaming mode, the interpreter's loop is not in it, and what we call does not touch its array.
pub const VECTOR_SETS: &[i32] = &[0x405, 2];

/// The number of a system call that a thread is in (elf.h).
const NT_ARM_SYSTEM_CALL: i32 = 0x404;
const NO_SYSTEM_CALL: i32 = -1;
/// Go on until a system call, and don't make it (Linux 5.3).
const PTRACE_SYSEMU: libc::c_uint = 31;

/// `svc #0`, which enters the kernel.
const SYSTEM_CALL: u32 = 0xd400_0001;
/// `brk`, which stops for a debugger, with the numbers that compilers give it (GCC and the C library 1000, Clang 1). Others
/// mean something to the kernel.
const TRAPS: [u32; 2] = [0xd420_7d00, 0xd420_0020];
const WORD: usize = 4;

/// Bytes from the start of such an instruction to where a thread is after it.
pub const BEHIND_SYSTEM_CALL: u64 = WORD as u64;
pub const BEHIND_TRAP: u64 = 0;

/// System calls that this machine never had.
pub const OLDER_WAITS: &[i64] = &[];
pub const OLDER_WAITS_ONCE: &[i64] = &[];
pub const OLDER_FORKS: &[i64] = &[];

/// What pause() of the C library asks the kernel for.
#[cfg(test)]
pub(crate) const PAUSE: i64 = libc::SYS_ppoll;

/// Of the state: how the last branch was made (BTYPE), which a function that does not begin with a landing pad must not see.
const UNEXPECTED_FLAGS: u64 = 0b11 << 10;
/// Registers with a meaning in calls.
const FRAME: usize = 29;
const LINK: usize = 30;
/// The register with a system call's number.
const NUMBER: usize = 8;

/// Offset in code of an instruction that enters the kernel.
pub fn find_system_call(code: &[u8]) -> Option<usize> {
    find(code, &[SYSTEM_CALL])
}

/// Offset in code of an instruction that stops for a debugger.
pub fn find_trap(code: &[u8]) -> Option<usize> {
    find(code, &TRAPS)
}

fn find(code: &[u8], wanted: &[u32]) -> Option<usize> {
    let (words, _) = code.as_chunks::<WORD>();
    words.iter().position(|word| wanted.contains(&u32::from_le_bytes(*word))).map(|index| index * WORD)
}

/// The next instruction's address.
pub fn program_counter(registers: &Registers) -> u64 {
    registers.pc
}

/// What a system call or function returned.
pub fn result(registers: &Registers) -> u64 {
    registers.regs[0]
}

/// The system call that a thread was stopped in: it is about to be made again, or has just ended. A thread that was about to
/// make it for the first time looks the same, and none of its code is running then either.
pub fn system_call(registers: &Registers, memory: &File) -> Option<i64> {
    let is_call = |address: u64| is_system_call(memory, address);
    (is_call(registers.pc) || is_call(registers.pc.wrapping_sub(BEHIND_SYSTEM_CALL)))
        .then_some(registers.regs[NUMBER] as i64)
}

fn is_system_call(memory: &File, address: u64) -> bool {
    let mut word = [0; WORD];
    memory.read_exact_at(&mut word, address).is_ok() && u32::from_le_bytes(word) == SYSTEM_CALL
}

/// Lets a thread whose signals are held, and which stands before a system call, run until it would make the call. The call is not
/// made now: the thread ends up at `trap`. `saved` gets the registers that make the call, even if it is another call by now.
pub fn leave_system_call(
    thread: &mut TracedThread,
    saved: &mut SavedRegisters,
    memory: &File,
    trap: u64,
) -> io::Result<()> {
    if !is_system_call(memory, saved.registers.pc) {
        return Ok(());
    }
    let until = Instant::now() + CALL;
    if let Err(error) = thread.resume(PTRACE_SYSEMU, 0) {
        let is_old = error.raw_os_error() == Some(libc::EIO);
        return Err(if is_old { io::Error::other("the kernel is older than Linux 5.3") } else { error });
    }
    saved.is_to_enter = true;
    thread.wait_for(PTRACE_SYSEMU, until, |stop| stop == ThreadStop::SystemCall)?;
    // Only this register: another one tells the tracer at which end of a call the thread is.
    saved.registers.regs[NUMBER] = thread.registers()?.regs[NUMBER];
    // Otherwise its first argument would pass for a result, by which the kernel may take the call up again.
    thread.write_set(NT_ARM_SYSTEM_CALL, &NO_SYSTEM_CALL.to_ne_bytes())?;
    let mut aside = plain(&saved.registers);
    aside.pc = trap;
    thread.set_registers(&aside)?;
    thread.run_to_trap(libc::PTRACE_CONT)
}

/// `registers` changed to execute the instruction at `at`, which enters the kernel.
pub fn for_system_call(registers: &Registers, address: u64, number: i64, arguments: [u64; 6]) -> Registers {
    let mut changed = plain(registers);
    changed.pc = address;
    changed.regs[NUMBER] = number as u64;
    changed.regs[..arguments.len()].copy_from_slice(&arguments);
    changed
}

/// The stack pointer of a stack that ends at `end`, a multiple of 16.
pub fn top(end: u64) -> u64 {
    end - 16
}

/// `registers` changed to execute `function` on the stack that ends at `top`, which returns to `back`. Nothing has to be done
/// for signed return addresses: the function signs and checks its own.
pub fn for_call(registers: &Registers, function: u64, arguments: [u64; 2], top: u64, back: u64) -> Registers {
    let mut changed = plain(registers);
    changed.pc = function;
    changed.sp = top;
    changed.regs[FRAME] = 0;
    changed.regs[LINK] = back;
    changed.regs[..arguments.len()].copy_from_slice(&arguments);
    changed
}

fn plain(registers: &Registers) -> Registers {
    let mut changed = *registers;
    changed.pstate &= !UNEXPECTED_FLAGS;
    changed
}
