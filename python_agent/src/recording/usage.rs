//! Resources that this process has used, by `getrusage`, for the background thread.

/// Resources used since the process began, by all threads together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResourceUsage {
    /// Seconds in user code.
    pub(crate) user: f64,
    /// Seconds in the kernel.
    pub(crate) system: f64,
    pub(crate) minor_faults: f64,
    pub(crate) major_faults: f64,
    pub(crate) voluntary: f64,
    pub(crate) involuntary: f64,
    /// Peak of resident memory in bytes.
    pub(crate) max_rss: f64,
}

impl ResourceUsage {
    /// The resources used so far. None where the system call fails.
    pub(crate) fn now() -> Option<Self> {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: a rusage of ours, all zeroes being a valid one, which the call fills where it returns 0.
        let usage =
            unsafe { (libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) == 0).then(|| usage.assume_init()) }?;
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
        Some(Self {
            user: seconds(usage.ru_utime),
            system: seconds(usage.ru_stime),
            minor_faults: usage.ru_minflt as f64,
            major_faults: usage.ru_majflt as f64,
            voluntary: usage.ru_nvcsw as f64,
            involuntary: usage.ru_nivcsw as f64,
            // Linux counts in KiB.
            max_rss: usage.ru_maxrss as f64 * 1024.0,
        })
    }
}

/// Bytes of a page.
pub(crate) fn page_size() -> i64 {
    // SAFETY: no pointers; the name is one that every Linux knows.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }
}
