//! Attempts without a valid token: each is answered later than the one before, and a flood of them at once.
//!
//! Guessing 256 bits is hopeless at any speed; the delays keep clients from filling the log or keeping the collector busy. A
//! valid token is never made to wait, so a client can't lock out others that come from the same address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most addresses that are remembered.
const MAX_ADDRESSES: usize = 1024;
/// An address that fails no more is forgotten after this long.
const FORGET: Duration = Duration::from_secs(600);
/// Most attempts of one address that may wait for their answer; one more is answered at once, with another error.
const MAX_WAITING: u32 = 4;
/// How long the first attempt waits. Each further one waits twice as long, up to 32 times as long.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DOUBLINGS: u32 = 5;

/// The origin of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallOrigin {
    /// An address over TCP: of IPv6 only the network, since a host can use any address of it.
    Address(IpAddr),
    /// A user over a unix socket.
    Uid(Option<u32>),
}

impl CallOrigin {
    pub fn address(address: IpAddr) -> Self {
        Self::Address(match address {
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) => v4.into(),
                None => std::net::Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            },
            v4 => v4,
        })
    }
}

#[derive(Debug)]
struct AttemptCount {
    count: u64,
    waiting: u32,
    newest: Instant,
}

/// The attempts that are remembered, by origin.
#[derive(Debug, Default)]
pub struct AuthFailures(Mutex<HashMap<CallOrigin, AttemptCount>>);

/// An attempt that failed; while it lives it counts as waiting.
#[derive(Debug)]
pub struct FailedAttempt {
    failures: Arc<AuthFailures>,
    from: CallOrigin,
    /// Number of attempts from the same origin, this one included.
    pub count: u64,
    /// How long the answer is to wait; None: too many wait already.
    pub delay: Option<Duration>,
}

impl FailedAttempt {
    /// Whether the attempt is recorded: the first, the second, the fourth, the eighth … are, each with the count.
    pub fn is_noted(&self) -> bool {
        self.count.is_power_of_two()
    }
}

impl AuthFailures {
    fn lock(&self) -> MutexGuard<'_, HashMap<CallOrigin, AttemptCount>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an attempt.
    pub fn add(self: &Arc<Self>, from: CallOrigin, now: Instant) -> FailedAttempt {
        let mut all = self.lock();
        all.retain(|_, attempts| attempts.waiting > 0 || now.saturating_duration_since(attempts.newest) < FORGET);
        if all.len() >= MAX_ADDRESSES && !all.contains_key(&from) {
            let oldest = all.iter().min_by_key(|(_, attempts)| attempts.newest).map(|(from, _)| *from);
            oldest.map(|oldest| all.remove(&oldest));
        }
        let attempts = all.entry(from).or_insert(AttemptCount { count: 0, waiting: 0, newest: now });
        attempts.count += 1;
        attempts.newest = now;
        let doublings = u32::try_from(attempts.count - 1).unwrap_or(u32::MAX).min(MAX_DOUBLINGS);
        let delay = (attempts.waiting < MAX_WAITING).then(|| FIRST_DELAY * (1 << doublings));
        attempts.waiting += u32::from(delay.is_some());
        FailedAttempt { failures: Arc::clone(self), from, count: attempts.count, delay }
    }
}

impl Drop for FailedAttempt {
    fn drop(&mut self) {
        if self.delay.is_some()
            && let Some(attempts) = self.failures.lock().get_mut(&self.from)
        {
            attempts.waiting = attempts.waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> CallOrigin {
        CallOrigin::address([10, 0, 0, last].into())
    }

    #[test]
    fn each_attempt_waits_longer_and_a_flood_is_answered_at_once() {
        let (failures, now) = (Arc::new(AuthFailures::default()), Instant::now());
        let delays: Vec<_> = (0..8).map(|_| failures.add(from(1), now).delay.map(|delay| delay.as_millis())).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 3200, 3200].map(Some));
        let waiting: Vec<_> = (0..6).map(|_| failures.add(from(2), now)).collect();
        assert_eq!(waiting.iter().filter(|failure| failure.delay.is_none()).count(), 2);
        drop(waiting);
        assert!(failures.add(from(2), now).delay.is_some(), "those that were answered wait no more");
        let noted: Vec<_> =
            (0..9).map(|_| failures.add(from(3), now)).filter(FailedAttempt::is_noted).map(|f| f.count).collect();
        assert_eq!(noted, [1, 2, 4, 8]);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_forgotten() {
        let (failures, now) = (Arc::new(AuthFailures::default()), Instant::now());
        for number in 0..2 * MAX_ADDRESSES as u32 {
            drop(failures.add(CallOrigin::address(std::net::Ipv4Addr::from_bits(number).into()), now));
        }
        assert_eq!(failures.lock().len(), MAX_ADDRESSES);
        drop(failures.add(from(1), now + FORGET));
        assert_eq!(failures.lock().len(), 1);
    }

    #[test]
    fn one_host_is_one_address() {
        let origin = |text: &str| text.parse().map(CallOrigin::address);
        assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:2"));
        assert_ne!(origin("2001:db8::1"), origin("2001:db8:0:1::1"));
        assert_eq!(origin("::ffff:10.0.0.1"), origin("10.0.0.1"));
    }
}
