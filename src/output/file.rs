//! `-o FILE`: the file appears when all of the answer is in it, and not before.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use probe_common::error::{Error, Result};
use tempfile::NamedTempFile;

/// A file that is being written, under another name beside its own; removed again where it is not finished.
pub struct UnfinishedFile {
    /// The requested path, as it was given.
    requested: PathBuf,
    output: OutputTarget,
}

enum OutputTarget {
    /// A temporary file beside the target, which gets its name at the end.
    Beside { file: NamedTempFile, target: PathBuf },
    /// A pipe or a device (`/dev/stdout`, `/dev/null`, a named pipe): it exists already, and is written directly.
    Existing(File),
}

impl UnfinishedFile {
    /// Begins to write `path`.
    ///
    /// # Errors
    /// No file can be written there.
    pub fn create(path: &Path) -> Result<Self> {
        let wrong = |error: io::Error| Error::usage(format!("cannot write {}", path.display())).because(error);
        // Through a link, the file that it points to is replaced and not the link.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mode = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(Error::usage(format!("cannot write {}: it is a directory", path.display())));
            }
            Ok(metadata) if !metadata.is_file() => {
                let file = File::options().write(true).open(path).map_err(wrong)?;
                return Ok(Self { requested: path.to_owned(), output: OutputTarget::Existing(file) });
            }
            Ok(metadata) => metadata.permissions().mode() & 0o777,
            // The mode of any new file, less the umask.
            Err(_) => 0o666,
        };
        let name = target.file_name().ok_or_else(|| wrong(io::ErrorKind::InvalidInput.into()))?.to_string_lossy();
        let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new()
            .prefix(&format!(".{name}."))
            .suffix(".unfinished")
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(directory)
            .map_err(|error| wrong(plain(error)))?;
        Ok(Self { requested: path.to_owned(), output: OutputTarget::Beside { file, target } })
    }

    /// The file to write to.
    ///
    /// # Errors
    /// The file's handle can't be duplicated.
    pub fn file(&self) -> Result<File> {
        let file = match &self.output {
            OutputTarget::Beside { file, .. } => file.as_file(),
            OutputTarget::Existing(file) => file,
        };
        file.try_clone().map_err(|error| self.failed(error))
    }

    /// The error of a write, with the path.
    pub fn failed(&self, error: io::Error) -> Error {
        Error::failed(self.requested.display().to_string()).because(error)
    }

    /// Completes the file: it is synced to disk first, then gets its name.
    ///
    /// # Errors
    /// The file system's.
    pub fn finish(self) -> Result<()> {
        let OutputTarget::Beside { file, target } = self.output else { return Ok(()) };
        let failed = |error: io::Error| Error::failed(self.requested.display().to_string()).because(error);
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&target).map_err(|error| failed(error.error))?;
        let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
    }
}

/// The error of the system, without the temporary name that tempfile appends.
fn plain(error: io::Error) -> io::Error {
    io::Error::other(error.to_string().split(" at path ").next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.csv");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let unfinished = UnfinishedFile::create(&path).unwrap();
        unfinished.file().unwrap().write_all(b"half").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(directory.path()).len(), 2);
        drop(unfinished);
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names(directory.path()).len()), ("old", 1));

        let unfinished = UnfinishedFile::create(&path).unwrap();
        unfinished.file().unwrap().write_all(b"new").unwrap();
        unfinished.finish().unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names(directory.path()).len()), ("new", 1));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "who could read it still can");
    }

    #[test]
    fn a_link_stays_one_and_a_device_is_written_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("rows.csv"), directory.path().join("latest.csv"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let unfinished = UnfinishedFile::create(&link).unwrap();
        unfinished.file().unwrap().write_all(b"new").unwrap();
        unfinished.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        UnfinishedFile::create(Path::new("/dev/null")).unwrap().finish().unwrap();
        assert!(UnfinishedFile::create(directory.path()).is_err());
        assert!(UnfinishedFile::create(&directory.path().join("none/rows.csv")).is_err());
    }
}
