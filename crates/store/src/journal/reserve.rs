//! Room on disk that a journal takes at its beginning and gives back at its end, so that a disk that has become full still takes
//! a last checkpoint: what it lists as stored and no file has is counted as lost.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::posix_fallocate;

/// The most bytes of the reserve. A checkpoint has a few KiB for each process of the run.
const MAX_BYTES: u64 = 1 << 20;
/// The reserve is at most this part of what the run may take on disk: one 64th.
const DISK_PART: u64 = 64;

/// Takes the reserve of a journal in `directory`, whose run may take `disk` bytes.
///
/// # Errors
/// The file system's; nothing is left there then.
pub(super) fn allocate(directory: &Path, disk: u64) -> io::Result<()> {
    let bytes = bytes(disk);
    if bytes == 0 {
        return Ok(());
    }
    let path = path(directory);
    let taken = File::create(&path).and_then(|file| Ok(posix_fallocate(&file, 0, bytes.cast_signed())?));
    taken.inspect_err(|_| drop(fs::remove_file(&path)))
}

/// Bytes of the reserve of a run that may take `disk` bytes.
pub(super) fn bytes(disk: u64) -> u64 {
    MAX_BYTES.min(disk / DISK_PART)
}

/// Gives the reserve back, where there is one.
pub(super) fn release(directory: &Path) {
    let _ = fs::remove_file(path(directory));
}

fn path(directory: &Path) -> PathBuf {
    directory.join("reserve")
}
