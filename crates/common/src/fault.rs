//! A disk that takes nothing, for tests: below a directory that a test has broken nothing can be written.
//!
//! It is in every build, since tests of one crate break disks under the code of another. Nothing but a test sets a fault.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// What tests have broken, and how.
static BROKEN: Mutex<BTreeSet<(PathBuf, Fault)>> = Mutex::new(BTreeSet::new());

/// Whether a disk that failed is tried again without the usual pause.
static RETRY_AT_ONCE: AtomicBool = AtomicBool::new(false);

/// What goes wrong below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It takes no files.
    Full,
    /// It does not have names on disk.
    Names,
    /// Whoever writes there panics.
    Panic,
}

/// Whether what is below `directory` can be written from now on.
pub fn breaks(directory: &Path, broken: bool) {
    set(directory, Fault::Full, broken);
}

/// Whether something goes wrong below `directory` from now on.
pub fn set(directory: &Path, fault: Fault, broken: bool) {
    let mut all = BROKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let entry = (directory.to_owned(), fault);
    if broken {
        all.insert(entry);
    } else {
        all.remove(&entry);
    }
}

/// From now on this process tries a disk that failed again at once: tests would wait for seconds otherwise.
pub fn retry_at_once() {
    RETRY_AT_ONCE.store(true, Ordering::Relaxed);
}

/// Whether [`retry_at_once`] was called.
#[must_use]
pub fn retries_at_once() -> bool {
    RETRY_AT_ONCE.load(Ordering::Relaxed)
}

fn is_broken(path: &Path, how: Fault) -> bool {
    let all = BROKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.iter().any(|(broken, fault)| *fault == how && path.starts_with(broken))
}

/// Fails where a test has broken the disk that `path` is on.
pub fn check(path: &Path) -> io::Result<()> {
    assert!(!is_broken(path, Fault::Panic), "this test has it so");
    if is_broken(path, Fault::Full) {
        return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on this test"));
    }
    Ok(())
}

/// Fails where a test has it that names in `directory` don't come on disk.
pub fn check_names(directory: &Path) -> io::Result<()> {
    if is_broken(directory, Fault::Names) {
        return Err(io::Error::other("this test has no names on disk"));
    }
    Ok(())
}
