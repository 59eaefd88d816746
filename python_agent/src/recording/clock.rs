//! The clock of records: the processor's time stamp counter where it is steady, else the system's monotonic clock.
//!
//! Reading the counter costs half of `clock_gettime`. What its ticks are in nanoseconds is found out by the background
//! thread, which compares both from time to time ([`sample`]).

use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use crate::analysis::clock::Sample;

static COUNTER: AtomicBool = AtomicBool::new(false);

/// Chooses the clock. Called once, before the first record.
pub(crate) fn choose() {
    COUNTER.store(counter_is_steady(), Ordering::Relaxed);
}

/// Now, in ticks.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if COUNTER.load(Ordering::Relaxed) {
        // SAFETY: every x86-64 processor has the instruction, and Linux leaves it to user space.
        return unsafe { core::arch::x86_64::_rdtsc() };
    }
    nanoseconds(libc::CLOCK_MONOTONIC)
}

fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec of ours; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Reads all clocks as closely together as a few tries allow.
pub(crate) fn sample() -> Sample {
    let once = || {
        let before = ticks();
        let monotonic_ns = nanoseconds(libc::CLOCK_MONOTONIC);
        let after = ticks();
        let width = after.wrapping_sub(before);
        (
            width,
            Sample {
                ticks: before.wrapping_add(width / 2),
                monotonic_ns,
                unix_ns: nanoseconds(libc::CLOCK_REALTIME) as i64,
            },
        )
    };
    let mut best = once();
    for _ in 0..4 {
        let next = once();
        if next.0 < best.0 {
            best = next;
        }
    }
    best.1
}

#[cfg(target_arch = "x86_64")]
fn counter_is_steady() -> bool {
    let highest = core::arch::x86_64::__cpuid(0x8000_0000).eax;
    let steady = highest >= 0x8000_0007 && core::arch::x86_64::__cpuid(0x8000_0007).edx & 1 << 8 != 0;
    // A kernel that found the counters of its processors to disagree keeps time by something else.
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    steady && source.is_ok_and(|s| matches!(s.trim(), "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page"))
}

#[cfg(not(target_arch = "x86_64"))]
fn counter_is_steady() -> bool {
    false
}
