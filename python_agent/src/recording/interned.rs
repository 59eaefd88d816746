//! Numbers for names that hot paths use again and again: a fixed hash table that takes no lock and allocates nothing.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use probe_trace::symbol_table::LearnedName;

/// Names that a table holds at most.
pub(super) const MAX_NAMES: usize = 1024;
/// Bytes of a name that are kept.
const LENGTH: usize = 127;
/// Entries that are searched for a name.
const REACH: usize = 64;

/// At most `length` bytes of UTF-8, without a part of a character at the end.
pub(super) fn truncate_utf8(text: &[u8], length: usize) -> &[u8] {
    let mut end = text.len().min(length);
    while end > 0 && text.get(end).is_some_and(|next| next & 0xc0 == 0x80) {
        end -= 1;
    }
    &text[..end]
}

/// A name, written once.
struct InternedName {
    /// 0 free, 1 being written, 2 there.
    state: AtomicU8,
    length: AtomicU8,
    hash: AtomicU64,
    bytes: [AtomicU8; LENGTH],
}

/// A table of names.
pub(super) struct InternedNames([InternedName; MAX_NAMES], fn(u64, &str) -> LearnedName<'_>);

impl InternedNames {
    /// An empty table. `learned` makes the entry of the log that tells a new name.
    pub(super) const fn new(learned: fn(u64, &str) -> LearnedName<'_>) -> Self {
        Self(
            [const {
                InternedName {
                    state: AtomicU8::new(0),
                    length: AtomicU8::new(0),
                    hash: AtomicU64::new(0),
                    bytes: [const { AtomicU8::new(0) }; LENGTH],
                }
            }; MAX_NAMES],
            learned,
        )
    }

    /// The number of a name, which is added if it is new; None if there is no room for it.
    pub(super) fn intern(&self, name: &[u8]) -> Option<u16> {
        let name = truncate_utf8(name, LENGTH);
        // FNV-1a.
        let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        for offset in 0..REACH {
            let id = (hash as usize).wrapping_add(offset) % MAX_NAMES;
            let entry = &self.0[id];
            match entry.state.load(Ordering::Acquire) {
                2 => {
                    let same = entry.hash.load(Ordering::Relaxed) == hash
                        && usize::from(entry.length.load(Ordering::Relaxed)) == name.len()
                        && entry.bytes.iter().zip(name).all(|(byte, wanted)| byte.load(Ordering::Relaxed) == *wanted);
                    if same {
                        return Some(id as u16);
                    }
                }
                0 if entry.state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() => {
                    entry.bytes.iter().zip(name).for_each(|(byte, value)| byte.store(*value, Ordering::Relaxed));
                    entry.length.store(name.len() as u8, Ordering::Relaxed);
                    entry.hash.store(hash, Ordering::Relaxed);
                    entry.state.store(2, Ordering::Release);
                    super::module_names::learned(&self.1(id as u64, &String::from_utf8_lossy(name)));
                    return Some(id as u16);
                }
                _ => {}
            }
        }
        None
    }

    /// The name that has this number.
    pub(super) fn get(&self, id: u64) -> Option<String> {
        let entry = self.0.get(id as usize).filter(|entry| entry.state.load(Ordering::Acquire) == 2)?;
        let length = usize::from(entry.length.load(Ordering::Relaxed));
        let bytes: Vec<u8> = entry.bytes.iter().take(length).map(|byte| byte.load(Ordering::Relaxed)).collect();
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NAMES_OF_A_TEST: InternedNames = InternedNames::new(|id, name| LearnedName::Span(id, name));

    #[test]
    fn names_are_kept_once_and_no_more_than_fit() {
        let names = &NAMES_OF_A_TEST;
        let (eval, train) = (names.intern(b"eval"), names.intern(b"train"));
        assert!(eval.is_some() && eval != train);
        assert_eq!(names.intern(b"eval"), eval);
        assert_eq!(names.get(u64::from(eval.expect("a number"))).as_deref(), Some("eval"));
        let long = names.intern(&[b'x'; 500]).expect("a number");
        assert_eq!(names.get(u64::from(long)).map(|name| name.len()), Some(LENGTH));
        let of_two_bytes = names.intern("ü".repeat(100).as_bytes()).expect("a number");
        assert_eq!(names.get(u64::from(of_two_bytes)), Some("ü".repeat(LENGTH / 2)));
        let made = (0..2 * MAX_NAMES).filter(|n| names.intern(format!("name {n}").as_bytes()).is_some()).count();
        assert!((MAX_NAMES / 2..MAX_NAMES).contains(&made), "{made}");
        assert_eq!(names.intern(b"eval"), eval);
    }
}
