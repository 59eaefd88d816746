//! State behind a lock that a thread of ours may hold while the program forks.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::shared;

/// A lock and its data, which a forked child makes anew: the thread that may have held the lock does not exist there, and has
/// perhaps left the data half changed.
pub(crate) struct Renewable<T> {
    /// Null before the first use. What is replaced is leaked.
    current: AtomicPtr<Mutex<T>>,
    make: fn() -> T,
}

impl<T: Send> Renewable<T> {
    /// State that `make` makes when it is first used.
    pub(crate) const fn new(make: fn() -> T) -> Self {
        Self { current: AtomicPtr::new(std::ptr::null_mut()), make }
    }

    /// Locks the state.
    pub(crate) fn lock(&'static self) -> MutexGuard<'static, T> {
        // SAFETY: null, or what `begin` leaked, which is never freed.
        let current = unsafe { self.current.load(Ordering::Acquire).as_ref() };
        shared::lock(current.unwrap_or_else(|| self.begin()))
    }

    #[cold]
    fn begin(&self) -> &'static Mutex<T> {
        let made = Box::into_raw(Box::new(Mutex::new((self.make)())));
        let empty = std::ptr::null_mut();
        match self.current.compare_exchange(empty, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked just now, and never freed.
            Ok(_) => unsafe { &*made },
            Err(first) => {
                // SAFETY: no other thread knows what was made here, and what another thread made first is never freed.
                unsafe {
                    drop(Box::from_raw(made));
                    &*first
                }
            }
        }
    }

    /// Begins anew. In a forked child, before any thread of it has used the state.
    pub(crate) fn renew(&self) {
        self.current.store(std::ptr::null_mut(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_begins_anew_also_where_its_lock_is_held_for_ever() {
        static COUNT: Renewable<u32> = Renewable::new(|| 7);
        *COUNT.lock() += 1;
        let held = COUNT.lock();
        assert_eq!(*held, 8);
        std::mem::forget(held);
        COUNT.renew();
        assert_eq!(*COUNT.lock(), 7);
    }

    #[test]
    fn threads_that_come_first_at_once_get_the_same_state() {
        static COUNT: Renewable<u32> = Renewable::new(|| 0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| *COUNT.lock() += 1);
            }
        });
        assert_eq!(*COUNT.lock(), 8);
    }
}
