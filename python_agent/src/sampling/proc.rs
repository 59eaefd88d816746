//! Figures of this process and its children from `/proc`. A value that can't be read or makes no sense is None.

use std::fs;

use crate::descriptors::is_separate;

/// Bytes of input and output since the process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessIo {
    pub(super) read: u64,
    pub(super) written: u64,
    pub(super) disk_read: u64,
    pub(super) disk_written: u64,
}

/// Input and output of `process`: a pid, or "self".
pub(super) fn io(process: &str) -> Option<ProcessIo> {
    parse_io(&fs::read_to_string(format!("/proc/{process}/io")).ok()?)
}

fn parse_io(text: &str) -> Option<ProcessIo> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(ProcessIo {
        read: value("rchar:")?,
        written: value("wchar:")?,
        disk_read: value("read_bytes:")?,
        disk_written: value("write_bytes:")?,
    })
}

/// Processor time of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ProcessorTime {
    /// When the process began, in ticks of the kernel since the machine was started: its pid may be reused.
    pub(super) began: u64,
    /// Seconds of all its threads, in user code and in the kernel.
    pub(super) seconds: f64,
}

/// Processor time of `process`: a pid, or "self".
pub(super) fn used(process: &str) -> Option<ProcessorTime> {
    // SAFETY: no pointers; the name is one that every Linux knows.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    parse_used(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?, ticks as f64)
}

fn parse_used(stat: &str, ticks_per_second: f64) -> Option<ProcessorTime> {
    // A name may have parentheses and spaces itself. The first field after it is the third of proc(5).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let (user, system, began) = (field(14)?, field(15)?, field(22)?);
    Some(ProcessorTime { began, seconds: (user + system) as f64 / ticks_per_second })
}

/// Seconds in which the main thread of a process was ready and had no processor, since it began.
pub(super) fn run_delay(process: &str) -> Option<f64> {
    parse_run_delay(&fs::read_to_string(format!("/proc/{process}/schedstat")).ok()?)
}

fn parse_run_delay(schedstat: &str) -> Option<f64> {
    let nanoseconds: u64 = schedstat.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(nanoseconds as f64 / 1e9)
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
    let mine = i32::from(!is_separate());
    entries("/proc/self/fd").map(|count| (count - mine).max(0))
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
        assert_eq!(parse_io(text), Some(ProcessIo { read: 10, written: 20, disk_read: 30, disk_written: 40 }));
        assert_eq!(parse_io("rchar: 10\n"), None);
        let stat = "77 (a) b (c) S 1 77 77 0 -1 4194304 9 8 7 6 150 50 3 4 20 0 1 0 4242 99 88";
        assert_eq!(parse_used(stat, 100.0), Some(ProcessorTime { began: 4242, seconds: 2.0 }));
        assert_eq!((parse_used("77 (a) S 1 2", 100.0), parse_used("77", 100.0)), (None, None));
        assert_eq!((parse_run_delay("7 2500000000 9\n"), parse_run_delay("7")), (Some(2.5), None));
        assert!(used("self").is_some_and(|used| used.began > 0));
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
