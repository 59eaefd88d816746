//! Only one live run on a machine has a name: who writes it holds the lock of that name.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;

use probe_common::error::{Error, Result};
use probe_common::paths::{Places, named};

pub(super) fn take(places: &Places, name: &str) -> Result<File> {
    let path = places.checked_runtime()?.join(format!("{name}.lock"));
    let flags = nix::fcntl::OFlag::O_NOFOLLOW.bits();
    let opened =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(&path);
    let file = opened.map_err(|error| named(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::failed(format!("a run called '{name}' is live"))
            .hint(format!("choose another name, or ask that one: probe {name} query …"))),
        Err(TryLockError::Error(error)) => Err(named(&path, error)),
    }
}

/// Whether a collector holds this name now.
pub(super) fn is_held(places: &Places, name: &str) -> bool {
    let path = places.runtime.join(format!("{name}.lock"));
    let flags = nix::fcntl::OFlag::O_NOFOLLOW.bits();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
