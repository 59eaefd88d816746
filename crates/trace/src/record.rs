//! One fixed-size record of a ring: 32 bytes, whatever happened.

/// What happened. The comments say what the record's words hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A module's call began. `a` module, `b` its type (addresses), payload the autograd sequence number to come next; of an
    /// outermost one also whether it trains ([`super::payload::EVAL_MODE`]).
    Enter = 1,
    /// It ended, by return or exception. `a` module, payload the sequence number to come next.
    Exit,
    /// Shape of the first tensor given to the call that began last: payload = number of dimensions << 8 | the first of
    /// the up to four dimensions here, which are 32 bits each in `a` and `b`, low half first.
    Shape,
    /// An autograd node began. `a` its sequence number (`u64::MAX`: none).
    NodeStart,
    /// It ended.
    NodeEnd,
    /// `backward()` (or `grad()`) was entered.
    BackwardBegin,
    /// It ended. `a` when its first node began, `b` when its last one ended (0: there was none); payload 1 where nodes
    /// were not watched.
    BackwardEnd,
    /// An optimizer's step began. Payload: id of its class name.
    OptimizerBegin,
    /// It ended. `a` 1 when this ended a training step, `b` steps finished now, payload as at the beginning.
    OptimizerEnd,
    /// A batch was asked for. Payload: address of the dataset's class (0: not known), `a` batches that workers had
    /// finished (`u64::MAX`: no workers), `b` address of the iterator (48 bits) and the batches that workers had been told to
    /// load ([`super::payload::OUTSTANDING`]).
    DataBegin,
    /// It was handed over, or there was none. See [`super::data`] for the payload, `a` its bytes (`u64::MAX`: not
    /// known), `b` its number in the epoch, and its samples in the upper half (`u32::MAX` each: not known).
    DataEnd,
    /// A snippet began on this thread.
    SuspendBegin,
    /// It ended.
    SuspendEnd,
    /// What is recorded from here on: payload bit 0 modules, above it a bit a layer.
    Detail,
    /// A training step was ended without an optimizer. `b` steps finished now, payload: see [`super::payload::BY_BACKWARD`].
    MarkStep,
    /// A collective was issued. `a` its key, `b` bytes (48 bits), payload = its number in the group << 24 | place of its
    /// description in the registry. Its event comes before the operation begins.
    Issue,
    /// The backend began to time it. `a` its key, `b` the backend's handle.
    Started,
    /// The backend finished it. `a` the backend's handle, payload 1 when it failed.
    Finished,
    /// A future said that it is done. `a` its key, payload 1 when it failed.
    Done,
    /// The issuing call returned. `a` its key, payload 1 when no completion will be seen.
    Posted,
    /// A parameter's gradient became ready. `a` the module that owns it.
    GradReady,
    /// The thread began to wait for a collective.
    WaitBegin,
    /// It has waited, or the collective issued before returned no work to wait for. Payload 1 where it has an event, which
    /// comes when that collective is done.
    WaitEnd,
    /// Recording was off, and is on again. `a` is 1 in the middle of a step that is to get no row.
    Resume,
    /// What a device's allocator says: two values, `a` and `b`, of [`super::memory`]. Payload: which two | device << 8.
    Memory,
    /// A range that the program names ended. `a` when it began, `b` its step; see [`super::spans`] for the payload.
    Span,
    /// A number was logged. `a` its bits, `b` its step; payload: its name | why it is NULL << 16.
    Metric,
    /// A tensor was copied. `a` when it began, `b` bytes | device read << 48 | device written << 56; payload: see
    /// [`super::operators`], and its line << 8 | the stride << 24.
    Copy,
    /// What a tensor holds was asked for. As [`Kind::Copy`].
    Sync,
    /// What a device's allocator says at the beginning or end of the call that is innermost. `a` bytes allocated, `b`
    /// reserved; see [`super::module_memory`] for the payload.
    Allocated,
    /// Something is being saved on this thread.
    CheckpointBegin,
    /// It has been.
    CheckpointEnd,
}

/// All of them, in the order of their numbers.
pub(crate) const KINDS: [Kind; 32] = [
    Kind::Enter,
    Kind::Exit,
    Kind::Shape,
    Kind::NodeStart,
    Kind::NodeEnd,
    Kind::BackwardBegin,
    Kind::BackwardEnd,
    Kind::OptimizerBegin,
    Kind::OptimizerEnd,
    Kind::DataBegin,
    Kind::DataEnd,
    Kind::SuspendBegin,
    Kind::SuspendEnd,
    Kind::Detail,
    Kind::MarkStep,
    Kind::Issue,
    Kind::Started,
    Kind::Finished,
    Kind::Done,
    Kind::Posted,
    Kind::GradReady,
    Kind::WaitBegin,
    Kind::WaitEnd,
    Kind::Resume,
    Kind::Memory,
    Kind::Span,
    Kind::Metric,
    Kind::Copy,
    Kind::Sync,
    Kind::Allocated,
    Kind::CheckpointBegin,
    Kind::CheckpointEnd,
];

impl Kind {
    /// Whether the upper 16 bits of the second word name a device's event.
    pub fn has_mark(self) -> bool {
        use Kind::{Enter, Exit, Issue, NodeEnd, NodeStart, OptimizerBegin, OptimizerEnd, WaitEnd};
        matches!(self, Enter | Exit | NodeStart | NodeEnd | OptimizerBegin | OptimizerEnd | Issue | WaitEnd)
    }

    /// Whether it belongs to the life of a collective.
    pub fn is_about_collectives(self) -> bool {
        use Kind::{Done, Finished, Issue, Posted, Started, WaitBegin, WaitEnd};
        matches!(self, Issue | Started | Finished | Done | Posted | WaitBegin | WaitEnd)
    }
}

/// Set in the first record after module or node intervals of this thread were lost.
pub const LOST_DETAIL: u64 = 1 << 55;
/// Set in the first record after anything else of this thread was lost.
pub const LOST_OTHER: u64 = 1 << 54;
const PAYLOAD: u64 = LOST_OTHER - 1;
const WORD: u64 = (1 << 48) - 1;

/// What a ring holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Record {
    /// When, in ticks of [`clock`](super::clock).
    pub ts: u64,
    /// First word; see [`Kind`].
    pub a: u64,
    /// Second word.
    pub b: u64,
    /// Kind (8 bits), flags (2), payload (54).
    meta: u64,
}

impl Record {
    /// A record; `payload` is cut to 54 bits.
    #[inline(always)]
    pub const fn new(kind: Kind, payload: u64, ts: u64, a: u64, b: u64) -> Self {
        Self { ts, a, b, meta: (kind as u64) << 56 | (payload & PAYLOAD) }
    }

    #[cfg(test)]
    pub(crate) fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        for (place, word) in [self.ts, self.a, self.b, self.meta].into_iter().enumerate() {
            bytes[8 * place..8 * place + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// As it lies in memory (little-endian).
    pub fn of_bytes(bytes: &[u8; size_of::<Self>()]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|place| bytes[8 * at + place]));
        Self { ts: word(0), a: word(1), b: word(2), meta: word(3) }
    }

    /// The same with [`LOST_DETAIL`] or [`LOST_OTHER`] set.
    #[inline(always)]
    pub const fn flagged(self, flags: u64) -> Self {
        Self { meta: self.meta | flags, ..self }
    }

    /// The same with the name of a device's event (see [`super::device`]), for kinds that [`Kind::has_mark`] names,
    /// whose second word is an address or a small number.
    #[inline(always)]
    pub const fn marked(self, mark: u16) -> Self {
        Self { b: self.b & WORD | (mark as u64) << 48, ..self }
    }

    /// The name of its event (0: none), and the record without it.
    #[inline]
    pub fn unmarked(self) -> (u16, Self) {
        match self.kind() {
            Some(kind) if kind.has_mark() => ((self.b >> 48) as u16, Self { b: self.b & WORD, ..self }),
            _ => (0, self),
        }
    }

    /// What happened; None for memory that no producer wrote.
    #[inline]
    pub fn kind(&self) -> Option<Kind> {
        KINDS.get(((self.meta >> 56) as usize).wrapping_sub(1)).copied()
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

    /// Whether anything else was.
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
        for (place, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, place + 1);
            let record = Record::new(kind, u64::MAX, 1, 2, 3);
            assert_eq!((record.kind(), record.payload(), record.lost_detail()), (Some(kind), PAYLOAD, false));
            assert!(record.flagged(LOST_DETAIL).lost_detail());
        }
        assert_eq!(Record::default().kind(), None);
    }
}
