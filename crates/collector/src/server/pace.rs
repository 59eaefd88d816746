//! How fast a caller may have questions recorded: they are kept in the journal, which has no room for a flood of them. A caller
//! that asks faster waits, and the others do not.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a question takes in the journal beside its text (bytes).
const QUESTION: u64 = 500;
/// Burst allowance of an idle caller: what its rate allows in this time.
const BURST: Duration = Duration::from_secs(16);
/// Most callers whose share is remembered; of more, those that may ask most are forgotten.
const MAX_ASKERS: usize = 1024;

/// The rate at which each caller may have questions recorded in the journal.
#[derive(Debug, Default)]
pub struct JournalRate {
    /// Per caller: when its token bucket is full again.
    paid: Mutex<HashMap<String, Instant>>,
}

impl JournalRate {
    /// How long `who` has to wait before a question of `bytes` bytes is written down, at `rate` bytes a second.
    fn wait(&self, who: &str, bytes: usize, rate: u64, now: Instant) -> Duration {
        let takes = Duration::from_secs_f64((bytes as u64 + QUESTION) as f64 / rate.max(1) as f64);
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        if paid.len() >= MAX_ASKERS && !paid.contains_key(who) {
            let first = paid.iter().min_by_key(|(_, paid)| **paid).map(|(who, _)| who.clone());
            first.and_then(|first| paid.remove(&first));
        }
        let mine = paid.entry(who.to_owned()).or_insert(now);
        *mine = (*mine).max(now) + takes;
        mine.saturating_duration_since(now).saturating_sub(BURST)
    }

    /// Resolves when it is the turn of a question of `bytes` bytes.
    pub async fn wait_for_turn(&self, who: &str, bytes: usize, rate: u64) {
        let wait = self.wait(who, bytes, rate, Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_more_than_is_written_down_waits_and_nobody_else() {
        let (pace, now) = (JournalRate::default(), Instant::now());
        let ask = |who: &str, seconds: u64| pace.wait(who, 99_500, 10_000, now + Duration::from_secs(seconds));
        // Ten seconds' worth each.
        let waits: Vec<u64> = (0..5).map(|_| ask("token:a", 0).as_secs()).collect();
        assert_eq!(waits, [0, 4, 14, 24, 34]);
        assert_eq!(ask("token:b", 0), Duration::ZERO);
        // Once what was asked is written down, as before.
        assert_eq!(ask("token:a", 44).as_secs(), 0);
        assert_eq!(ask("token:a", 1000), Duration::ZERO);
        for other in 0..2 * MAX_ASKERS {
            ask(&format!("token:{other}"), 0);
        }
        assert!(pace.paid.lock().unwrap_or_else(PoisonError::into_inner).len() <= MAX_ASKERS);
    }
}
