//! The lock of a run's directory. It is in the directory itself, so that it holds for every process that can see it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;

/// The file's name within a run directory.
const FILE: &str = ".writer.lock";

/// The lock of the only process that writes the run.
///
/// It is a byte-range lock of the open file: a network file system asks its server for those (flock stays on the node with
/// some of them), and the process that opens and closes the file a second time does not lose it.
#[derive(Debug)]
pub(super) struct WriterLock {
    path: PathBuf,
    _file: File,
}

/// Why there is no lock.
#[derive(Debug)]
pub(super) enum LockFailure {
    /// Another process has the lock.
    ByAnother,
    /// The file system has no locks.
    NotKnown(io::Error),
}

impl WriterLock {
    pub(super) fn acquire(directory: &Path) -> Result<Self, LockFailure> {
        let path = directory.join(FILE);
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path).map_err(LockFailure::NotKnown)?;
        match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&whole_file())) {
            Ok(_) => Ok(Self { path, _file: file }),
            Err(Errno::EAGAIN | Errno::EACCES) => Err(LockFailure::ByAnother),
            Err(error) => Err(LockFailure::NotKnown(error.into())),
        }
    }

    /// Removes the file, before the directory is removed.
    pub(super) fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether a process is known to write the run of this directory.
pub(super) fn is_written(directory: &Path) -> bool {
    let flags = OFlag::O_NOFOLLOW.bits();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(directory.join(FILE)) else { return false };
    let mut lock = whole_file();
    fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut lock)).is_ok() && lock.l_type != libc::F_UNLCK as libc::c_short
}

fn whole_file() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}
