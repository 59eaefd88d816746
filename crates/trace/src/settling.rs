//! When a run has settled: its first steps compile, allocate, fill caches and choose kernels, and are not like the others.
//!
//! Steps are warm-up until a window of [`WINDOW`] steps has a median that is at most [`WITHIN`] below that of the window
//! before. That is known at the end of the window, so it counts as warm-up too: a few steps too many are better than one
//! too few. Steps that get slower are not warming up: on a busy machine medians go up and down all the time.

use super::persist::{Persist, PersistedBytes};

/// Number of steps in a window.
const WINDOW: usize = 8;
/// How much smaller a median may be than the one before, as a share of the smaller.
const WITHIN: f64 = 0.1;
/// A run whose steps only get faster is taken as settled after this many windows.
const MAX_WINDOWS: usize = 16;

/// Durations of the newest steps, until they are even.
#[derive(Debug, Default)]
pub(super) struct SettlingDetector {
    window: [u64; WINDOW],
    filled: usize,
    windows: usize,
    before: Option<u64>,
    settled: bool,
}

impl Persist for SettlingDetector {
    fn put(&self, to: &mut Vec<u8>) {
        self.window.put(to);
        self.filled.put(to);
        self.windows.put(to);
        self.before.put(to);
        self.settled.put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        let (window, filled) = (Persist::get(from)?, usize::get(from)?);
        let (windows, before, settled) = (Persist::get(from)?, Persist::get(from)?, Persist::get(from)?);
        (filled < WINDOW).then_some(Self { window, filled, windows, before, settled })
    }
}

impl SettlingDetector {
    /// Whether the run is still warming up, after the steps that were taken in.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.settled
    }

    /// Takes in a step's duration (in any unit, always the same), and returns whether the step was warm-up.
    pub(super) fn is_warmup(&mut self, duration: u64) -> bool {
        if self.settled {
            return false;
        }
        self.window[self.filled] = duration;
        self.filled += 1;
        if self.filled == WINDOW {
            self.filled = 0;
            self.windows += 1;
            self.window.sort_unstable();
            let median = self.window[WINDOW / 2];
            let before = self.before.replace(median);
            let gets_faster = before.is_none_or(|before| before as f64 > median as f64 * (1.0 + WITHIN));
            self.settled = !gets_faster || self.windows == MAX_WINDOWS;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the steps are warm-up.
    fn warmup(durations: impl Iterator<Item = u64>) -> usize {
        let mut settling = SettlingDetector::default();
        durations.take_while(|duration| settling.is_warmup(*duration)).count()
    }

    #[test]
    fn even_steps_are_settled_after_two_windows() {
        assert_eq!(warmup(std::iter::repeat(100)), 16);
        // Single long steps do not matter.
        assert_eq!(warmup((0..).map(|n| if n % 5 == 0 { 900 } else { 100 })), 16);
    }

    #[test]
    fn slow_first_steps_are_warmup() {
        assert_eq!(warmup((0..).map(|n| if n < 3 { 5000 } else { 100 })), 16);
        assert_eq!(warmup((0..).map(|n| if n < 20 { 1000 - 40 * n } else { 200 })), 40);
    }

    #[test]
    fn steps_that_get_slower_are_settled() {
        assert_eq!(warmup((0..).map(|n| if n / 8 % 2 == 0 { 100 } else { 300 })), 16);
        assert_eq!(warmup((0..).map(|n| if n / 8 % 2 == 0 { 300 } else { 100 })), 24);
    }

    #[test]
    fn steps_that_only_get_faster_are_not_warmup_for_ever() {
        assert_eq!(warmup((0..).map(|n| 1 << (40 - (n / 8).min(40)))), 128);
    }
}
