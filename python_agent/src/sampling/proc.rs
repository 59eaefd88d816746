//! What `/proc` says of this process. Everything that can't be read or makes no sense is None.

use std::fs;

/// Bytes of input and output since the process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Io {
    pub(super) read: u64,
    pub(super) written: u64,
    pub(super) disk_read: u64,
    pub(super) disk_written: u64,
}

/// `/proc/self/io`.
pub(super) fn io() -> Option<Io> {
    parse_io(&fs::read_to_string("/proc/self/io").ok()?)
}

fn parse_io(text: &str) -> Option<Io> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(Io {
        read: value("rchar:")?,
        written: value("wchar:")?,
        disk_read: value("read_bytes:")?,
        disk_written: value("write_bytes:")?,
    })
}

/// Bytes of this process in swap: `VmSwap` of `/proc/self/status`.
pub(super) fn swap() -> Option<f64> {
    parse_swap(&fs::read_to_string("/proc/self/status").ok()?)
}

fn parse_swap(status: &str) -> Option<f64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmSwap:"))?;
    value.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kilobytes| kilobytes * 1024.0)
}

/// Seconds since the machine began in which some task of it waited for a resource: cpu, memory or io.
pub(super) fn pressure(resource: &str) -> Option<f64> {
    parse_pressure(&fs::read_to_string(format!("/proc/pressure/{resource}")).ok()?)
}

fn parse_pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?;
    total.parse::<f64>().ok().map(|microseconds| microseconds / 1e6)
}

/// Resident pages of a `statm`: its second number.
pub(super) fn resident_pages(statm: &[u8]) -> Option<u64> {
    std::str::from_utf8(statm).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Threads of this process: one directory each.
pub(super) fn threads() -> Option<i32> {
    entries("/proc/self/task")
}

/// Open files of this process, without the one that counts them.
pub(super) fn open_files() -> Option<i32> {
    entries("/proc/self/fd").map(|count| (count - 1).max(0))
}

fn entries(directory: &str) -> Option<i32> {
    i32::try_from(fs::read_dir(directory).ok()?.count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_read() {
        let text =
            "rchar: 10\nwchar: 20\nsyscr: 1\nsyscw: 1\nread_bytes: 30\nwrite_bytes: 40\ncancelled_write_bytes: 0\n";
        assert_eq!(parse_io(text), Some(Io { read: 10, written: 20, disk_read: 30, disk_written: 40 }));
        assert_eq!(parse_io("rchar: 10\n"), None);
        assert_eq!(resident_pages(b"100 42 7 1 0 9 0\n"), Some(42));
        assert_eq!(resident_pages(b""), None);
        assert_eq!(parse_swap("VmRSS:\t 10 kB\nVmSwap:\t  2048 kB\n"), Some(2_097_152.0));
        assert_eq!((parse_swap("VmRSS:\t 10 kB\n"), parse_swap("VmSwap:\tmuch\n")), (None, None));
        let text =
            "some avg10=0.00 avg60=0.12 avg300=0.05 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!((parse_pressure(text), parse_pressure("full total=7\n")), (Some(2.5), None));
        assert!(threads().is_some_and(|threads| threads >= 1));
        let before = open_files().expect("a count");
        let kept: Vec<_> = (0..50).map(|_| fs::File::open("/proc/self/stat").expect("a file")).collect();
        // Other tests open and close some meanwhile.
        assert!(open_files().is_some_and(|after| after >= before + 20));
        drop(kept);
    }
}
