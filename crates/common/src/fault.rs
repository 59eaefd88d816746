//! A failing disk, for tests: below a directory that a test has broken, nothing can be written.
//!
//! The module is in every build, because tests of one crate break disks under the code of another. Only tests set faults.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Directories that tests have broken, and how.
static BROKEN: Mutex<BTreeSet<(PathBuf, DiskFault)>> = Mutex::new(BTreeSet::new());

/// Whether a disk that failed is tried again without the usual pause.
static RETRY_AT_ONCE: AtomicBool = AtomicBool::new(false);

/// What goes wrong below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskFault {
    /// Writing fails: the disk is full.
    Full,
    /// Names can't be synced to disk.
    Names,
    /// Writing panics.
    Panic,
}

/// Makes writing below `directory` fail from now on, or work again.
pub fn breaks(directory: &Path, broken: bool) {
    set(directory, DiskFault::Full, broken);
}

/// Sets or clears a fault below `directory`.
pub fn set(directory: &Path, fault: DiskFault, broken: bool) {
    let mut all = BROKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let entry = (directory.to_owned(), fault);
    if broken {
        all.insert(entry);
    } else {
        all.remove(&entry);
    }
}

/// Makes this process retry a failed disk at once: tests would wait for seconds otherwise.
pub fn retry_at_once() {
    RETRY_AT_ONCE.store(true, Ordering::Relaxed);
}

/// Whether [`retry_at_once`] was called.
#[must_use]
pub fn retries_at_once() -> bool {
    RETRY_AT_ONCE.load(Ordering::Relaxed)
}

fn is_broken(path: &Path, how: DiskFault) -> bool {
    let all = BROKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.iter().any(|(broken, fault)| *fault == how && path.starts_with(broken))
}

/// Fails if a test has broken the disk that `path` is on.
pub fn check(path: &Path) -> io::Result<()> {
    assert!(!is_broken(path, DiskFault::Panic), "this test has it so");
    if is_broken(path, DiskFault::Full) {
        return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on this test"));
    }
    Ok(())
}

/// Fails if a test has made syncing of names in `directory` fail.
pub fn check_names(directory: &Path) -> io::Result<()> {
    if is_broken(directory, DiskFault::Names) {
        return Err(io::Error::other("this test has no names on disk"));
    }
    Ok(())
}
