//! Reads what the kernel logged about a process, where its log may be read.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

/// Longest record (bytes), and most records that are read.
const MAX_RECORD_BYTES: usize = 8192;
const MAX_RECORDS: usize = 100_000;
/// Longest line that is kept (bytes).
const MAX_LINE_LENGTH: usize = 512;

/// The kernel's log, from when it was opened on.
#[derive(Debug)]
pub(super) struct KernelLog(File);

impl KernelLog {
    /// Opens the log; None where it may not be read. It has the machine's numbers of processes: within a container with numbers
    /// of its own they could mean another process, so the log is not read there.
    pub(super) fn open() -> Option<Self> {
        if !numbers_are_the_machines() {
            return None;
        }
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(Self(file))
    }

    /// The last line about the process.
    pub(super) fn about(&self, pid: i32) -> Option<String> {
        let (mut found, mut record) = (None, [0; MAX_RECORD_BYTES]);
        for _ in 0..MAX_RECORDS {
            match (&self.0).read(&mut record) {
                Ok(read) if read > 0 => found = line_about(&record[..read], pid).or(found),
                // Records were overwritten before they were read; the next ones are there.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
                _ => break,
            }
        }
        found.map(|line| format!("kernel log: {line}"))
    }
}

/// Whether this process is in the machine's own namespace of processes, whose number in the kernel is always the same.
fn numbers_are_the_machines() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

/// The message of a record ("6,339,5140900,-;message\n KEY=value"), if it is about the process.
fn line_about(record: &[u8], pid: i32) -> Option<String> {
    let text = String::from_utf8_lossy(record);
    let message = text.split_once(';')?.1.lines().next()?;
    // "python[83]: segfault at 0 …", "traps: python[83] general protection fault", "Killed process 83 (python) …".
    let about = message.contains(&format!("[{pid}]")) || message.contains(&format!("Killed process {pid} "));
    about.then(|| message[..message.floor_char_boundary(MAX_LINE_LENGTH)].to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_a_process_are_told_from_others() {
        let about = |text: &str| line_about(text.as_bytes(), 83);
        let killed = "3,10,5,-;Memory cgroup out of memory: Killed process 83 (python) total-vm:1kB\n SUBSYSTEM=x\n";
        assert!(about(killed).unwrap().ends_with("Killed process 83 (python) total-vm:1kB"));
        assert_eq!(about("6,1,5,-;python[83]: segfault at 0 ip 0").as_deref(), Some("python[83]: segfault at 0 ip 0"));
        assert_eq!(about("6,1,5,-;python[830]: segfault at 0"), None);
        assert_eq!(about("6,1,5,-;Killed process 8 (x)"), None);
        assert_eq!(about("no record"), None);
    }
}
