//! What differs between processors where a thread is borrowed: registers, calls, and the two instructions that are needed.
//! The only module that depends on the processor. Borrowing is not offered on processors where it was never run (`other`).

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "other.rs")]
mod this;

pub(super) use this::*;
