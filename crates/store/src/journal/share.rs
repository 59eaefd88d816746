//! How much of a run's disk its journal may take, so that files can have the rest.
//!
//! A tenth, of which a quarter and no more is in files that are complete: past that, what keeps them from going is
//! written to Parquet files. The file that grows is a 64th of the disk behind its head, and at least as long as the
//! head, so that heads are never more than half of what is written; and the next head always has room. What a head is
//! made of has bounds that together are a 46th of the disk. Where a head is so large that a tenth is not enough for all
//! that, the journal takes six heads: one and a half in complete files, two in the file that grows, the next one, and
//! the rest for what comes while files are written.

/// A file has no more than this behind its head, however large the disk.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Nor is it changed before it has this.
const MIN_FILE_BYTES: u64 = 4 << 10;
/// Texts of open connections may take this much in any case, and no more however large the disk.
const MIN_TEXTS_BYTES: u64 = 64 << 10;
const MAX_TEXTS_BYTES: u64 = 256 << 20;
/// One who asks may have this much written down in a second in any case, and no more however large the disk.
const MIN_ASKED: u64 = 16 << 10;
const MAX_ASKED: u64 = 1 << 20;
/// Each list of rows may take this much in any case.
const MIN_LIST_BYTES: u64 = 16 << 10;

/// A journal's part of so many bytes of disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) disk: u64,
}

impl Share {
    /// All of its files together, where a file's head takes `head`.
    pub(super) fn most(self, head: u64) -> u64 {
        (self.disk / 10).max(head.saturating_mul(6)).min(self.disk / 2)
    }

    /// Past this what keeps complete files from going has to be written.
    pub(super) fn most_complete(self, head: u64) -> u64 {
        self.most(head) / 4
    }

    /// A file with so much behind its head is followed by the next one.
    pub(super) fn file(self, head: u64) -> u64 {
        (self.disk / 64).clamp(MIN_FILE_BYTES, MAX_FILE_BYTES).max(head)
    }

    /// Texts of all open connections.
    pub(super) fn texts(self) -> u64 {
        (self.disk / 64).clamp(MIN_TEXTS_BYTES, MAX_TEXTS_BYTES)
    }

    /// What one who asks may have written down in a second.
    pub(super) fn asked(self) -> u64 {
        (self.disk / 1024).clamp(MIN_ASKED, MAX_ASKED)
    }

    /// Each of the checkpoint's lists of rows.
    pub(super) fn list(self) -> usize {
        usize::try_from((self.disk / 512).max(MIN_LIST_BYTES)).unwrap_or(usize::MAX)
    }
}
