//! Machines on which borrowing a thread was never tried. Nothing here is reached, because [`IS_KNOWN`] is checked first.

use std::fs::File;
use std::io;

use crate::attach::trace::{SavedRegisters, TracedThread};

/// Whether threads can be borrowed.
pub const IS_KNOWN: bool = false;

/// Stands for the registers of a thread.
#[derive(Clone, Copy)]
pub struct Registers;

pub const VECTOR_SETS: &[i32] = &[];
pub const BEHIND_SYSTEM_CALL: u64 = 0;
pub const BEHIND_TRAP: u64 = 0;
pub const OLDER_WAITS: &[i64] = &[];
pub const OLDER_WAITS_ONCE: &[i64] = &[];
pub const OLDER_FORKS: &[i64] = &[];
#[cfg(test)]
pub(crate) const PAUSE: i64 = libc::SYS_ppoll;

pub fn find_system_call(_: &[u8]) -> Option<usize> {
    None
}

pub fn find_trap(_: &[u8]) -> Option<usize> {
    None
}

pub fn program_counter(_: &Registers) -> u64 {
    0
}

pub fn result(_: &Registers) -> u64 {
    0
}

pub fn system_call(_: &Registers, _: &File) -> Option<i64> {
    None
}

pub fn leave_system_call(_: &mut TracedThread, _: &mut SavedRegisters, _: &File, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub fn for_system_call(registers: &Registers, _: u64, _: i64, _: [u64; 6]) -> Registers {
    *registers
}

pub fn top(end: u64) -> u64 {
    end
}

pub fn for_call(registers: &Registers, _: u64, _: [u64; 2], _: u64, _: u64) -> Registers {
    *registers
}
