//! A disk that takes nothing, for tests: what is below a directory that is broken can't be written.

use std::io;
use std::path::Path;
#[cfg(test)]
use std::{collections::BTreeSet, path::PathBuf, sync::Mutex};

/// What tests have broken, and how.
#[cfg(test)]
static BROKEN: Mutex<BTreeSet<(PathBuf, Fault)>> = Mutex::new(BTreeSet::new());

/// What goes wrong below a directory.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// It takes no files.
    Full,
    /// It does not have names on disk.
    Names,
    /// Whoever writes there panics.
    Panic,
}

/// Whether what is below `directory` can be written from now on.
#[cfg(test)]
pub(crate) fn breaks(directory: &Path, broken: bool) {
    set(directory, Fault::Full, broken);
}

/// Whether something goes wrong below `directory` from now on.
#[cfg(test)]
pub(crate) fn set(directory: &Path, fault: Fault, broken: bool) {
    let mut all = BROKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let entry = (directory.to_owned(), fault);
    if broken {
        all.insert(entry);
    } else {
        all.remove(&entry);
    }
}

#[cfg(test)]
fn is_broken(path: &Path, how: Fault) -> bool {
    let all = BROKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.iter().any(|(broken, fault)| *fault == how && path.starts_with(broken))
}

/// Fails where a test has broken the disk that `path` is on.
#[cfg_attr(not(test), expect(clippy::unnecessary_wraps, reason = "only tests break disks"))]
pub(crate) fn check(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    {
        assert!(!is_broken(path, Fault::Panic), "this test has it so");
        if is_broken(path, Fault::Full) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on this test"));
        }
    }
    let _ = path;
    Ok(())
}

/// Fails where a test has it that names in `directory` don't come on disk.
#[cfg_attr(not(test), expect(clippy::unnecessary_wraps, reason = "only tests break disks"))]
pub(crate) fn check_names(directory: &Path) -> io::Result<()> {
    #[cfg(test)]
    if is_broken(directory, Fault::Names) {
        return Err(io::Error::other("this test has no names on disk"));
    }
    let _ = directory;
    Ok(())
}
