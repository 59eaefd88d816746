//! A disk that takes nothing, for tests: what is below a directory that is broken can't be written.

use std::io;
use std::path::Path;
#[cfg(test)]
use std::{collections::BTreeSet, path::PathBuf, sync::Mutex};

#[cfg(test)]
static BROKEN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Whether what is below `directory` can be written from now on.
#[cfg(test)]
pub(crate) fn breaks(directory: &Path, broken: bool) {
    let mut all = BROKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if broken {
        all.insert(directory.to_owned());
    } else {
        all.remove(directory);
    }
}

/// Fails where a test has broken the disk that `path` is on.
#[cfg_attr(not(test), expect(clippy::unnecessary_wraps, reason = "only tests break disks"))]
pub(crate) fn check(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    {
        let all = BROKEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if all.iter().any(|broken| path.starts_with(broken)) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on this test"));
        }
    }
    let _ = path;
    Ok(())
}
