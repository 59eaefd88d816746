//! The lock of a run's name: only one live run on a machine has a name, and its collector holds the lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;

use probe_common::error::{Error, Result};
use probe_common::paths::{ProbeDirectories, io_error_at};

pub(super) fn acquire(directories: &ProbeDirectories, name: &str) -> Result<File> {
    let path = directories.checked_runtime()?.join(format!("{name}.lock"));
    let flags = nix::fcntl::OFlag::O_NOFOLLOW.bits();
    let opened =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(&path);
    let file = opened.map_err(|error| io_error_at(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::failed(format!("a run called '{name}' is live"))
            .hint(format!("choose another name, or ask that one: probe {name} query …"))),
        Err(TryLockError::Error(error)) => Err(io_error_at(&path, error)),
    }
}

/// Whether a collector holds the lock of this name.
pub(super) fn is_held(directories: &ProbeDirectories, name: &str) -> bool {
    let path = directories.runtime.join(format!("{name}.lock"));
    let flags = nix::fcntl::OFlag::O_NOFOLLOW.bits();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
