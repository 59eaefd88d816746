//! Pickles that hold nothing but plain data: dict, list, tuple, str, bytes, int, float, bool and None.
//!
//! A pickle is a program for a stack machine, and some of its instructions import and call whatever they name. Here these are
//! refused ([`opcode`](self)), so that nothing is run. Values lie in an arena and refer to each other by number
//! ([`value`](self)): what a pickle shares is shared, one that contains itself is harmless, and memory is bounded by the number of
//! instructions ([`machine`](self)). Whoever reads the values ([`deserialize`](self)) has a bound of its own, because a value
//! that is shared is visited as often as it is named.
//!
//! The crate `serde-pickle` was looked at first. It replaces shared values by copies, so that a pickle of a few hundred bytes
//! becomes any amount of memory, it has no bounds, and it builds sets.

mod deserialize;
mod machine;
mod opcode;
mod value;

pub(crate) use machine::read;
