//! Pickles that hold nothing but plain data: dict, list, tuple, str, bytes, int, float, bool and None.
//!
//! A pickle is a program for a stack machine, and some of its instructions import and call whatever they name. Here these are
//! refused ([`opcode`](self)), so that nothing is run. A pickle is read as a stream ([`source`](self)). Values are in an arena
//! and refer to each other by number ([`heap`](self)): what a pickle shares is shared, one that contains itself is harmless, and
//! memory is bounded by what exists at once ([`watch`](self)). A format that knows what a pickle holds can take dicts out of it
//! as soon as they are filled ([`DictWatcher`]), so that millions of them need no memory. Reading the values at the end
//! ([`deserialize`](self)) has a bound of its own, because a shared value is visited as often as it is referred to.
//!
//! The crate `serde-pickle` is not used: it replaces shared values by copies, so that a pickle of a few hundred bytes
//! becomes any amount of memory, it has no bounds, and it builds sets.

mod deserialize;
mod heap;
mod machine;
mod memo;
mod opcode;
mod source;
mod watch;

pub(crate) use heap::{PickleHeap, Value};
pub(crate) use machine::read_as_far;
pub(crate) use watch::{DictWatcher, PartialPickle, PickleLimits};

/// Whether a file with this beginning is a pickle, of protocol 1 or later.
pub(crate) fn is_pickle(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 1..=5, ..])
}
