//! Registers of a stopped thread, and what they have to be for a system call or a function's call. x86-64 only: code like
//! this is not to be offered where nobody ran it.

pub(super) use libc::user_regs_struct as Registers;

/// The instruction that enters the kernel, and the one that stops for a debugger.
pub(super) const SYSTEM_CALL: &[u8] = &[0x0f, 0x05];
pub(super) const TRAP: &[u8] = &[0xcc];

/// Flags that a function does not expect: single step (8), backwards (10), alignment checks (18).
const UNEXPECTED_FLAGS: u64 = 1 << 8 | 1 << 10 | 1 << 18;

/// Whether the thread was stopped in the kernel, where it had called it: none of its user code is under way then.
pub(super) fn in_system_call(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0
}

/// The next instruction's address.
pub(super) fn program_counter(registers: &Registers) -> u64 {
    registers.rip
}

/// What a system call or function returned.
pub(super) fn result(registers: &Registers) -> u64 {
    registers.rax
}

/// As `registers`, about to execute the instruction [`SYSTEM_CALL`] at `at`.
pub(super) fn for_system_call(registers: &Registers, at: u64, number: i64, arguments: [u64; 6]) -> Registers {
    let mut changed = plain(registers);
    changed.rip = at;
    changed.rax = number as u64;
    [changed.rdi, changed.rsi, changed.rdx, changed.r10, changed.r8, changed.r9] = arguments;
    changed
}

/// As `registers`, about to execute `function` on another stack, at whose `top` the return address stands.
pub(super) fn for_call(registers: &Registers, function: u64, arguments: [u64; 2], top: u64) -> Registers {
    let mut changed = plain(registers);
    changed.rip = function;
    changed.rsp = top;
    changed.rbp = 0;
    changed.rax = 0;
    [changed.rdi, changed.rsi] = arguments;
    changed
}

/// Not in a system call any more: the kernel would otherwise wind back to the instruction that made it.
fn plain(registers: &Registers) -> Registers {
    let mut changed = *registers;
    changed.orig_rax = u64::MAX;
    changed.eflags &= !UNEXPECTED_FLAGS;
    changed
}

/// The system call that it was stopped in.
pub(super) fn system_call_number(registers: &Registers) -> i64 {
    registers.orig_rax as i64
}
