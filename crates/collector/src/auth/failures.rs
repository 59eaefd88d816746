//! Attempts without a valid token: each is answered later than the one before, and a flood of them at once.
//!
//! Guessing 256 bits is hopeless at any speed; what this is for is that nobody can fill the log or keep the collector
//! busy. A valid token is never made to wait, so nobody can lock others out who come from the same address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Addresses that are remembered.
const MAX_ADDRESSES: usize = 1024;
/// An address that fails no more is forgotten after this long.
const FORGET: Duration = Duration::from_secs(600);
/// Attempts of one address that may wait for their answer; one more is answered at once, with another error.
const MAX_WAITING: u32 = 4;
/// How long the first attempt waits; each one more twice as long, up to 32 times.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DOUBLINGS: u32 = 5;

/// Where an attempt came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Over TCP. Of IPv6 the network, since a host has as many addresses as it likes.
    Address(IpAddr),
    /// Over a unix socket.
    Uid(Option<u32>),
}

impl Origin {
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
struct Of {
    count: u64,
    waiting: u32,
    newest: Instant,
}

/// All that are remembered.
#[derive(Debug, Default)]
pub struct Failures(Mutex<HashMap<Origin, Of>>);

/// An attempt that failed; while it lives it counts as waiting.
#[derive(Debug)]
pub struct Failure {
    failures: Arc<Failures>,
    from: Origin,
    /// Attempts from there, this one included.
    pub count: u64,
    /// How long its answer is to wait; None: too many wait already.
    pub delay: Option<Duration>,
}

impl Failure {
    /// Whether it is written down: the first one is, the second, the fourth, the eighth …, each saying how many.
    pub fn is_noted(&self) -> bool {
        self.count.is_power_of_two()
    }
}

impl Failures {
    fn lock(&self) -> MutexGuard<'_, HashMap<Origin, Of>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more attempt.
    pub fn add(self: &Arc<Self>, from: Origin, now: Instant) -> Failure {
        let mut all = self.lock();
        all.retain(|_, of| of.waiting > 0 || now.saturating_duration_since(of.newest) < FORGET);
        if all.len() >= MAX_ADDRESSES && !all.contains_key(&from) {
            let oldest = all.iter().min_by_key(|(_, of)| of.newest).map(|(from, _)| *from);
            oldest.map(|oldest| all.remove(&oldest));
        }
        let of = all.entry(from).or_insert(Of { count: 0, waiting: 0, newest: now });
        of.count += 1;
        of.newest = now;
        let doublings = u32::try_from(of.count - 1).unwrap_or(u32::MAX).min(MAX_DOUBLINGS);
        let delay = (of.waiting < MAX_WAITING).then(|| FIRST_DELAY * (1 << doublings));
        of.waiting += u32::from(delay.is_some());
        Failure { failures: Arc::clone(self), from, count: of.count, delay }
    }
}

impl Drop for Failure {
    fn drop(&mut self) {
        if self.delay.is_some()
            && let Some(of) = self.failures.lock().get_mut(&self.from)
        {
            of.waiting = of.waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> Origin {
        Origin::address([10, 0, 0, last].into())
    }

    #[test]
    fn each_attempt_waits_longer_and_a_flood_is_answered_at_once() {
        let (failures, now) = (Arc::new(Failures::default()), Instant::now());
        let delays: Vec<_> = (0..8).map(|_| failures.add(from(1), now).delay.map(|delay| delay.as_millis())).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 3200, 3200].map(Some));
        let waiting: Vec<_> = (0..6).map(|_| failures.add(from(2), now)).collect();
        assert_eq!(waiting.iter().filter(|failure| failure.delay.is_none()).count(), 2);
        drop(waiting);
        assert!(failures.add(from(2), now).delay.is_some(), "those that were answered wait no more");
        let noted: Vec<_> =
            (0..9).map(|_| failures.add(from(3), now)).filter(Failure::is_noted).map(|f| f.count).collect();
        assert_eq!(noted, [1, 2, 4, 8]);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_forgotten() {
        let (failures, now) = (Arc::new(Failures::default()), Instant::now());
        for number in 0..2 * MAX_ADDRESSES as u32 {
            drop(failures.add(Origin::address(std::net::Ipv4Addr::from_bits(number).into()), now));
        }
        assert_eq!(failures.lock().len(), MAX_ADDRESSES);
        drop(failures.add(from(1), now + FORGET));
        assert_eq!(failures.lock().len(), 1);
    }

    #[test]
    fn one_host_is_one_address() {
        let of = |text: &str| text.parse().map(Origin::address);
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
