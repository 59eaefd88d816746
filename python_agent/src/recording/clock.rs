//! The clock of records: the processor's counter where it is steady, else the system's monotonic clock.
//!
//! Reading the counter costs half of `clock_gettime` (measured on x86-64). The background thread compares both from time to time
//! ([`sample`]) to find the length of a tick in nanoseconds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use probe_trace::clock::ClockSample;

static COUNTER: AtomicBool = AtomicBool::new(false);

/// Chooses the clock. Called once, before the first record.
pub(crate) fn choose() {
    COUNTER.store(counter_is_steady(), Ordering::Relaxed);
}

/// Now, in ticks.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    if COUNTER.load(Ordering::Relaxed) { counter() } else { nanoseconds(libc::CLOCK_MONOTONIC) }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux leaves it to user space.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The processor's counter. The system's clock is derived from it, so it is no finer: a tick is 1 ns on Armv8.6 and later, and
/// mostly 10 to 40 ns on older processors. The counter is cheaper because reading it does not wait until all earlier instructions
/// have ended, neither here nor on x86-64.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn counter() -> u64 {
    let ticks;
    // SAFETY: reads a register, which every aarch64 processor has and Linux leaves to user space, or reads for it.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    nanoseconds(libc::CLOCK_MONOTONIC)
}

fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec of ours; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Nanoseconds since 1970.
pub(crate) fn unix_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// Reads all clocks as closely together as a few tries allow.
pub(crate) fn sample() -> ClockSample {
    let once = || {
        let before = ticks();
        let monotonic_ns = nanoseconds(libc::CLOCK_MONOTONIC);
        let after = ticks();
        let width = after.wrapping_sub(before);
        (
            width,
            ClockSample {
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
    steady && kernel_keeps_time_by(&["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"])
}

/// Whether the counter is steady. The architecture guarantees one steady counter for all processors.
#[cfg(target_arch = "aarch64")]
fn counter_is_steady() -> bool {
    kernel_keeps_time_by(&["arch_sys_counter"])
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter_is_steady() -> bool {
    kernel_keeps_time_by(&[])
}

/// A kernel that found the counters of its processors to disagree keeps time by something else.
fn kernel_keeps_time_by(sources: &[&str]) -> bool {
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    source.is_ok_and(|source| sources.contains(&source.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_is_steady_goes_on_and_never_back() {
        if !counter_is_steady() {
            return;
        }
        let begun = counter();
        let mut last = begun;
        let until = nanoseconds(libc::CLOCK_MONOTONIC) + 1_000_000;
        while nanoseconds(libc::CLOCK_MONOTONIC) < until {
            let next = counter();
            assert!(next >= last);
            last = next;
        }
        assert!(last > begun);
    }
}
