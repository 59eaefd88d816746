//! Names on disk that outlive a loss of power: a file's or directory's name is on disk when its directory is.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Makes a directory, and those above it that are not there; their names are on disk then.
///
/// # Errors
/// The file system's.
pub fn create_directory(directory: &Path) -> io::Result<()> {
    create_all(directory, DirBuilder::new().mode(0o777))
}

/// The same for this user alone.
///
/// # Errors
/// The file system's.
pub fn create_private_directory(directory: &Path) -> io::Result<()> {
    create_all(directory, DirBuilder::new().mode(0o700))
}

/// Makes one directory for this user alone; its name is on disk then.
///
/// # Errors
/// The file system's: it is there already. After an error it is no more there than before.
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

/// Has the name of a new directory on disk.
fn sync_new(directory: &Path) -> io::Result<()> {
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_names(parent).inspect_err(|_| {
        // The next attempt is to try again.
        let _ = fs::remove_dir(directory);
    })
}

/// Has the names in a directory on disk.
///
/// # Errors
/// The file system's.
pub fn sync_names(directory: &Path) -> io::Result<()> {
    sync(directory, &File::open(directory)?)
}

/// Gives a file its name, which is on disk then; after an error the file is neither here nor there.
///
/// # Errors
/// The file system's.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let Some(directory) = to.parent() else { return Err(io::ErrorKind::InvalidInput.into()) };
    // Opened first: what is left to fail after the rename is the disk.
    let opened = File::open(directory)?;
    fs::rename(from, to)?;
    match sync(directory, &opened) {
        // One that can't be taken away either is there.
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
    use crate::fault::{Fault, set};

    #[test]
    fn what_has_no_name_on_disk_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let (above, below) = (directory.path().join("a"), directory.path().join("a/b"));
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::write(&from, "rows").unwrap();
        set(directory.path(), Fault::Names, true);
        assert!(create_directory(&below).is_err() && !above.exists());
        assert!(rename(&from, &to).is_err() && !to.exists());
        set(directory.path(), Fault::Names, false);
        create_directory(&below).unwrap();
        assert!(below.is_dir());
        fs::write(&from, "rows").unwrap();
        rename(&from, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"rows");
    }
}
