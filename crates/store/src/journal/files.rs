//! The paths of a journal's files, and a list of those that exist.

use std::fs;
use std::path::{Path, PathBuf};

use probe_common::error::Result;
use probe_common::paths::io_error_at;

/// The directory of a run's journal, below the run's own.
pub fn directory(run: &Path) -> PathBuf {
    run.join("journal")
}

/// Removes the journal of a run whose rows are all in files.
///
/// # Errors
/// The file system's.
pub fn remove(run: &Path) -> Result<()> {
    let directory = directory(run);
    fs::remove_dir_all(&directory).map_err(|error| io_error_at(&directory, error))
}

/// The path of the file with this number.
pub(super) fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:08}.log"))
}

/// All files by number; none where there is no journal.
pub(super) fn list(directory: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error_at(directory, error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| io_error_at(directory, error))?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
        if let (Some(number), Some("log")) = (number, path.extension().and_then(|extension| extension.to_str())) {
            files.push((number, path));
        }
    }
    files.sort();
    Ok(files)
}
