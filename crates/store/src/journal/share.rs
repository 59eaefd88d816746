//! The share of a run's disk that its journal may take, so that files can have the rest.
//!
//! | Part | Share |
//! |---|---|
//! | All files | a tenth of the disk, or six heads if that is more; at most half of the disk |
//! | Complete files | a quarter of all files; past that, the rows for which they are needed are written to Parquet files |
//! | The growing file after its head | a 64th of the disk, and at least as long as the head |
//! | A head | at most a 46th of the disk, the sum of the bounds of its parts |
//!
//! So heads are at most half of what is written, and the next head always has room. Six heads are: one and a half in complete
//! files, two in the growing file, the next one, and the rest for records that come while files are written.

/// The most bytes of a file after its head, however large the disk.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// The fewest bytes of a file after its head before the next file begins.
const MIN_FILE_BYTES: u64 = 4 << 10;
/// The bounds of the limit of texts of open connections (bytes), however small or large the disk.
const MIN_TEXTS_BYTES: u64 = 64 << 10;
const MAX_TEXTS_BYTES: u64 = 256 << 20;
/// The bounds of the limit of records that one client may cause in a second (bytes), however small or large the disk.
const MIN_ASKED: u64 = 16 << 10;
const MAX_ASKED: u64 = 1 << 20;
/// The lower bound of the limit of each list of rows (bytes).
const MIN_LIST_BYTES: u64 = 16 << 10;

/// A journal's share of `disk` bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiskShare {
    pub(super) disk: u64,
}

impl DiskShare {
    /// The limit of all files together (bytes), where a file's head has `head` bytes.
    pub(super) fn limit_bytes(self, head: u64) -> u64 {
        (self.disk / 10).max(head.saturating_mul(6)).min(self.disk / 2)
    }

    /// The limit of complete files (bytes), past which the rows in them have to be written to Parquet files.
    pub(super) fn complete_bytes(self, head: u64) -> u64 {
        self.limit_bytes(head) / 4
    }

    /// Bytes after its head with which a file is complete.
    pub(super) fn file_bytes(self, head: u64) -> u64 {
        (self.disk / 64).clamp(MIN_FILE_BYTES, MAX_FILE_BYTES).max(head)
    }

    /// The limit of texts of all open connections (bytes).
    pub(super) fn text_bytes(self) -> u64 {
        (self.disk / 64).clamp(MIN_TEXTS_BYTES, MAX_TEXTS_BYTES)
    }

    /// The limit of records that one client may cause in a second (bytes).
    pub(super) fn caller_bytes_per_second(self) -> u64 {
        (self.disk / 1024).clamp(MIN_ASKED, MAX_ASKED)
    }

    /// The limit of each of the checkpoint's lists of rows (bytes).
    pub(super) fn list_bytes(self) -> usize {
        usize::try_from((self.disk / 512).max(MIN_LIST_BYTES)).unwrap_or(usize::MAX)
    }
}
