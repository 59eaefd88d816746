//! x86-64, System V calling convention.

use std::fs::File;
use std::io;

pub(crate) use libc::user_regs_struct as Registers;

use crate::attach::trace::{SavedRegisters, TracedThread};

/// Whether threads can be borrowed.
pub(crate) const IS_KNOWN: bool = true;

/// Sets of registers that hold all vectors, the best first (elf.h): NT_X86_XSTATE.
pub(crate) const VECTOR_SETS: &[i32] = &[0x202];

/// The instruction that enters the kernel, and the one that stops for a debugger.
const SYSTEM_CALL: &[u8] = &[0x0f, 0x05];
const TRAP: u8 = 0xcc;

/// Bytes from the start of such an instruction to where a thread is after it.
pub(crate) const BEHIND_SYSTEM_CALL: u64 = 2;
pub(crate) const BEHIND_TRAP: u64 = 1;

/// System calls that other machines never had, as [`crate::attach::threads`] tells them apart.
pub(crate) const OLDER_WAITS: &[i64] = &[libc::SYS_poll, libc::SYS_select];
pub(crate) const OLDER_WAITS_ONCE: &[i64] = &[libc::SYS_epoll_wait];
pub(crate) const OLDER_FORKS: &[i64] = &[libc::SYS_fork, libc::SYS_vfork];

/// What pause() of the C library asks the kernel for.
#[cfg(test)]
pub(crate) const PAUSE: i64 = libc::SYS_pause;

/// Flags that a function does not expect: single step (8), backwards (10), alignment checks (18).
const UNEXPECTED_FLAGS: u64 = 1 << 8 | 1 << 10 | 1 << 18;

/// Offset in code of an instruction that enters the kernel.
pub(crate) fn find_system_call(code: &[u8]) -> Option<usize> {
    code.windows(SYSTEM_CALL.len()).position(|window| window == SYSTEM_CALL)
}

/// Offset in code of an instruction that stops for a debugger.
pub(crate) fn find_trap(code: &[u8]) -> Option<usize> {
    code.iter().position(|byte| *byte == TRAP)
}

/// The next instruction's address.
pub(crate) fn program_counter(registers: &Registers) -> u64 {
    registers.rip
}

/// What a system call or function returned.
pub(crate) fn result(registers: &Registers) -> u64 {
    registers.rax
}

/// The system call that a thread was stopped in: none of its user code is running then.
pub(crate) fn system_call(registers: &Registers, _: &File) -> Option<i64> {
    Some(registers.orig_rax as i64).filter(|number| *number >= 0)
}

/// Does nothing: by the registers that are put back, the kernel knows which call to take up again, and how.
pub(crate) fn leave_system_call(_: &mut TracedThread, _: &mut SavedRegisters, _: &File, _: u64) -> io::Result<()> {
    Ok(())
}

/// `registers` changed to execute the instruction at `at`, which enters the kernel.
pub(crate) fn for_system_call(registers: &Registers, address: u64, number: i64, arguments: [u64; 6]) -> Registers {
    let mut changed = plain(registers);
    changed.rip = address;
    changed.rax = number as u64;
    [changed.rdi, changed.rsi, changed.rdx, changed.r10, changed.r8, changed.r9] = arguments;
    changed
}

/// The address of the return address on a stack that ends at `end`, a multiple of 16: as after a call instruction, it is 8 more
/// than a multiple of 16.
pub(crate) fn top(end: u64) -> u64 {
    end - 8
}

/// `registers` changed to execute `function` on the stack that ends at `top`, which has its return address.
pub(crate) fn for_call(registers: &Registers, function: u64, arguments: [u64; 2], top: u64, _: u64) -> Registers {
    let mut changed = plain(registers);
    changed.rip = function;
    changed.rsp = top;
    changed.rbp = 0;
    changed.rax = 0;
    [changed.rdi, changed.rsi] = arguments;
    changed
}

/// `registers` without the mark of a system call: the kernel would otherwise wind back to the instruction that made it.
fn plain(registers: &Registers) -> Registers {
    let mut changed = *registers;
    changed.orig_rax = u64::MAX;
    changed.eflags &= !UNEXPECTED_FLAGS;
    changed
}
