//! Makes names of files and directories survive a loss of power: a name is on disk once its directory is synced.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Creates a directory and its missing parents, and syncs their names to disk.
///
/// # Errors
/// The file system's.
pub fn create_directory(directory: &Path) -> io::Result<()> {
    create_all(directory, DirBuilder::new().mode(0o777))
}

/// Creates a directory and its missing parents, readable by this user alone, and syncs their names to disk.
///
/// # Errors
/// The file system's.
pub fn create_private_directory(directory: &Path) -> io::Result<()> {
    create_all(directory, DirBuilder::new().mode(0o700))
}

/// Creates one directory, readable by this user alone, and syncs its name to disk.
///
/// # Errors
/// The file system's, also where the directory exists already. An error leaves no new directory behind.
pub fn create_new_private_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(directory)?;
    sync_new(directory)
}

fn create_all(directory: &Path, builder: &DirBuilder) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_all(parent, builder)?;
    }
    match builder.create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    sync_new(directory)
}

/// Syncs the name of a new directory to disk; removes the directory after an error.
fn sync_new(directory: &Path) -> io::Result<()> {
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_names(parent).inspect_err(|_| {
        // The directory is removed, so that the next attempt creates and syncs it again.
        let _ = fs::remove_dir(directory);
    })
}

/// Syncs the names in a directory to disk.
///
/// # Errors
/// The file system's.
pub fn sync_names(directory: &Path) -> io::Result<()> {
    sync(directory, &File::open(directory)?)
}

/// Renames a file and syncs its new name to disk. After an error of the sync, the file exists under neither name.
///
/// # Errors
/// The file system's.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let Some(directory) = to.parent() else { return Err(io::ErrorKind::InvalidInput.into()) };
    // The directory is opened first: after the rename, only the disk can fail.
    let opened = File::open(directory)?;
    fs::rename(from, to)?;
    match sync(directory, &opened) {
        // A file that can't be removed either keeps its new name.
        Err(error) if fs::remove_file(to).is_ok() => Err(error),
        _ => Ok(()),
    }
}

fn sync(directory: &Path, opened: &File) -> io::Result<()> {
    crate::fault::check_names(directory)?;
    opened.sync_all()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fault::{DiskFault, set};

    #[test]
    fn what_has_no_name_on_disk_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let (above, below) = (directory.path().join("a"), directory.path().join("a/b"));
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::write(&from, "rows").unwrap();
        set(directory.path(), DiskFault::Names, true);
        assert!(create_directory(&below).is_err() && !above.exists());
        assert!(rename(&from, &to).is_err() && !to.exists());
        set(directory.path(), DiskFault::Names, false);
        create_directory(&below).unwrap();
        assert!(below.is_dir());
        fs::write(&from, "rows").unwrap();
        rename(&from, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"rows");
    }
}
