//! A descriptor of a process: it becomes readable when the process has ended, and from Linux 6.15 on it says how.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A pidfd: a descriptor that becomes readable when its process ends.
#[derive(Debug)]
pub(super) struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the descriptor of a process that lives or has not been reaped yet.
    pub(super) fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: the call takes two integers and touches no memory of this process.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let descriptor = RawFd::try_from(opened).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned the descriptor, and nothing else owns it. It is closed on exec.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Registers the descriptor so that it can be waited for. Call it within a tokio runtime.
    pub(super) fn watched(self) -> io::Result<AsyncFd<Self>> {
        // SAFETY: the descriptor is open for as long as this value owns it, and always the same.
        let registered = unsafe { AsyncFd::register_with_interest(self, Interest::READABLE) };
        registered.map_err(io::Error::from)
    }

    /// How a process ended that has been reaped; None where it has not, and where the kernel does not say.
    pub(super) fn wait_status(&self) -> Option<i32> {
        // SAFETY: all zeroes is a value of this structure of integers.
        let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
        info.mask = u64::from(libc::PIDFD_INFO_EXIT);
        // SAFETY: the kernel writes as many bytes as the request says, which is the size of this structure.
        let answered = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
        let is_known = answered == 0 && info.mask & u64::from(libc::PIDFD_INFO_EXIT) != 0;
        is_known.then_some(info.exit_code)
    }
}

impl AsRawFd for PidFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
