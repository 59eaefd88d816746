//! Counts how much of a limited resource each caller holds, so that no caller can take all of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How much of one resource each caller holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallerQuota(Arc<Mutex<HashMap<String, usize>>>);

/// One unit of the resource, which its caller holds until this is dropped.
#[derive(Debug)]
pub(crate) struct CallerPermit {
    all: CallerQuota,
    who: String,
}

impl CallerQuota {
    /// One more unit for `who`; None if it holds `most` already.
    pub(crate) fn acquire(&self, who: &str, most: usize) -> Option<CallerPermit> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = held.entry(who.to_owned()).or_default();
        if *mine >= most {
            return None;
        }
        *mine += 1;
        Some(CallerPermit { all: self.clone(), who: who.to_owned() })
    }
}

impl Drop for CallerPermit {
    fn drop(&mut self) {
        let mut held = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mine) = held.get_mut(&self.who) {
            *mine -= 1;
            if *mine == 0 {
                held.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_holds_no_more_than_its_share_and_callers_that_hold_nothing_are_forgotten() {
        let quota = CallerQuota::default();
        let mut held: Vec<CallerPermit> = (0..2).map(|_| quota.acquire("token:a", 2).unwrap()).collect();
        assert!(quota.acquire("token:a", 2).is_none());
        assert!(quota.acquire("token:b", 2).is_some());
        held.pop();
        assert!(quota.acquire("token:a", 2).is_some());
        held.clear();
        assert!(quota.0.lock().unwrap().is_empty());
    }
}
