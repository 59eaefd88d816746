//! A record of a ring: 32 bytes for every kind.

pub use super::kind::{LOST_DETAIL, LOST_OTHER, RecordKind, RecordTable};

const PAYLOAD: u64 = LOST_OTHER - 1;
const WORD: u64 = (1 << 48) - 1;

/// A record of a ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RingRecord {
    /// When it was made, in ticks of [`clock`](super::clock).
    pub ts: u64,
    /// First word; see [`RecordKind`].
    pub a: u64,
    /// Second word.
    pub b: u64,
    /// Kind (8 bits), flags (2), payload (54).
    meta: u64,
}

impl RingRecord {
    /// A record; `payload` is cut to 54 bits.
    #[inline(always)]
    pub const fn new(kind: RecordKind, payload: u64, ts: u64, a: u64, b: u64) -> Self {
        Self { ts, a, b, meta: (kind as u64 + 1) << 56 | (payload & PAYLOAD) }
    }

    #[cfg(test)]
    pub(crate) fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        for (index, word) in [self.ts, self.a, self.b, self.meta].into_iter().enumerate() {
            bytes[8 * index..8 * index + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The record in `bytes`, as in memory (little-endian).
    pub fn of_bytes(bytes: &[u8; size_of::<Self>()]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[8 * at + index]));
        Self { ts: word(0), a: word(1), b: word(2), meta: word(3) }
    }

    /// The table whose rows are missing where a ring has no room for the record.
    pub fn table(&self) -> RecordTable {
        self.kind().map_or(RecordTable::Steps, RecordKind::table)
    }

    /// The record with [`LOST_DETAIL`] or [`LOST_OTHER`] set.
    #[inline(always)]
    pub const fn flagged(self, flags: u64) -> Self {
        Self { meta: self.meta | flags, ..self }
    }

    /// The record with the name of a device's event (see [`super::device`]), for kinds for which [`RecordKind::has_mark`] is true,
    /// whose second word is an address or a small number.
    #[inline(always)]
    pub const fn marked(self, mark: u16) -> Self {
        Self { b: self.b & WORD | (mark as u64) << 48, ..self }
    }

    /// The name of the device's event (0: none), and the record without it.
    #[inline]
    pub fn unmarked(self) -> (u16, Self) {
        match self.kind() {
            Some(kind) if kind.has_mark() => ((self.b >> 48) as u16, Self { b: self.b & WORD, ..self }),
            _ => (0, self),
        }
    }

    /// The kind; None for memory that no producer wrote.
    #[inline]
    pub fn kind(&self) -> Option<RecordKind> {
        RecordKind::ALL.get(((self.meta >> 56) as usize).wrapping_sub(1)).copied()
    }

    /// The 54 bits that depend on the kind.
    #[inline]
    pub const fn payload(&self) -> u64 {
        self.meta & PAYLOAD
    }

    /// Whether module or node intervals were lost before this one.
    #[inline]
    pub const fn lost_detail(&self) -> bool {
        self.meta & LOST_DETAIL != 0
    }

    /// Whether anything else than module or node intervals was lost before this one.
    #[inline]
    pub const fn lost_other(&self) -> bool {
        self.meta & LOST_OTHER != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_survive_the_round_trip() {
        for (index, kind) in RecordKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
            let record = RingRecord::new(kind, u64::MAX, 1, 2, 3);
            assert_eq!((record.kind(), record.payload(), record.lost_detail()), (Some(kind), PAYLOAD, false));
            assert!(record.flagged(LOST_DETAIL).lost_detail());
        }
        assert_eq!(RingRecord::default().kind(), None);
    }
}
