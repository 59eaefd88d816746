//! Machines on which nobody borrowed a thread yet. Nothing of this is reached: [`IS_KNOWN`] is asked first.

use std::fs::File;
use std::io;

use crate::attach::trace::{Saved, Thread};

/// Whether threads can be borrowed.
pub(crate) const IS_KNOWN: bool = false;

/// Stands for those of a thread.
#[derive(Clone, Copy)]
pub(crate) struct Registers;

pub(crate) const VECTOR_SETS: &[i32] = &[];
pub(crate) const BEHIND_SYSTEM_CALL: u64 = 0;
pub(crate) const BEHIND_TRAP: u64 = 0;
pub(crate) const OLDER_WAITS: &[i64] = &[];
pub(crate) const OLDER_WAITS_ONCE: &[i64] = &[];
pub(crate) const OLDER_FORKS: &[i64] = &[];
#[cfg(test)]
pub(crate) const PAUSE: i64 = libc::SYS_ppoll;

pub(crate) fn find_system_call(_: &[u8]) -> Option<usize> {
    None
}

pub(crate) fn find_trap(_: &[u8]) -> Option<usize> {
    None
}

pub(crate) fn program_counter(_: &Registers) -> u64 {
    0
}

pub(crate) fn result(_: &Registers) -> u64 {
    0
}

pub(crate) fn system_call(_: &Registers, _: &File) -> Option<i64> {
    None
}

pub(crate) fn leave_system_call(_: &mut Thread, _: &mut Saved, _: &File, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn for_system_call(registers: &Registers, _: u64, _: i64, _: [u64; 6]) -> Registers {
    *registers
}

pub(crate) fn top(end: u64) -> u64 {
    end
}

pub(crate) fn for_call(registers: &Registers, _: u64, _: [u64; 2], _: u64, _: u64) -> Registers {
    *registers
}
