//! Free events, in a list for each device. Training's threads take events, the background thread gives them back and makes new
//! ones. No thread waits: a list is a stack of slot numbers whose head is changed in one atomic operation. The head contains a
//! count of its changes, so that an equal head means an unchanged list.

use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::driver::{CudaDriver, CudaEvent};

/// Devices of a process, at most.
pub(super) const DEVICES: usize = 16;
/// The mark of a record whose event could not be recorded.
pub(super) const FAILED: u16 = u16::MAX;
/// Events of all devices, at most: what a second of a busy process needs.
const SLOTS: usize = 1 << 14;
/// Number of events that are made at first. Later, as many again are made as there are.
const FIRST: usize = 1024;
const _: () = assert!(SLOTS < FAILED as usize);

struct EventSlot {
    event: AtomicPtr<std::ffi::c_void>,
    device: AtomicU8,
    /// Number of the next free slot, plus 1; 0: none.
    next: AtomicU32,
}

/// The free events of a device.
struct FreeEvents {
    /// Number of changes in the upper half; number of the first free slot, plus 1, in the lower half.
    head: AtomicU64,
    free: AtomicU32,
}

static ALL: [EventSlot; SLOTS] = [const {
    EventSlot { event: AtomicPtr::new(std::ptr::null_mut()), device: AtomicU8::new(0), next: AtomicU32::new(0) }
}; SLOTS];
static LISTS: [FreeEvents; DEVICES] =
    [const { FreeEvents { head: AtomicU64::new(0), free: AtomicU32::new(0) } }; DEVICES];
/// Slots that have an event.
static MADE: AtomicU32 = AtomicU32::new(0);

fn slot(number: u16) -> &'static EventSlot {
    &ALL[usize::from(number) % SLOTS]
}

/// The event of a slot.
pub(super) fn event(number: u16) -> CudaEvent {
    slot(number).event.load(Ordering::Relaxed)
}

/// The device whose event it is.
pub(super) fn device(number: u16) -> usize {
    usize::from(slot(number).device.load(Ordering::Relaxed))
}

/// Takes a free event of a device: the number of its slot.
pub(super) fn take_event(device: usize) -> Option<u16> {
    let list = &LISTS[device];
    let mut head = list.head.load(Ordering::Acquire);
    loop {
        let number = (head as u32).checked_sub(1)? as u16;
        let next = slot(number).next.load(Ordering::Relaxed);
        match list.head.compare_exchange_weak(head, changed(head, next), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                list.free.fetch_sub(1, Ordering::Relaxed);
                return Some(number);
            }
            Err(other) => head = other,
        }
    }
}

/// Gives an event back. One that was recorded and has not occurred may be recorded again: the newest recording counts.
pub(super) fn give_back(number: u16) {
    let list = &LISTS[device(number)];
    let mut head = list.head.load(Ordering::Relaxed);
    // Counted before another thread can take it again.
    list.free.fetch_add(1, Ordering::Relaxed);
    loop {
        slot(number).next.store(head as u32, Ordering::Relaxed);
        let new = changed(head, u32::from(number) + 1);
        match list.head.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => head = other,
        }
    }
}

fn changed(head: u64, first: u32) -> u64 {
    ((head >> 32) + 1) << 32 | u64::from(first)
}

/// Makes events for every device in use that has few free ones, as many again as there are: a program may use those of a thousand
/// steps within its first second. Returns whether any device has events.
pub(super) fn fill(driver: &CudaDriver) -> bool {
    for device in driver.active_devices().filter(|device| *device < DEVICES) {
        if (LISTS[device].free.load(Ordering::Relaxed) as usize) < FIRST / 2 {
            let made = MADE.load(Ordering::Relaxed) as usize;
            driver.create(device, made.max(FIRST).min(SLOTS - made), |event| {
                let number = MADE.fetch_add(1, Ordering::Relaxed) as u16;
                slot(number).event.store(event, Ordering::Relaxed);
                slot(number).device.store(device as u8, Ordering::Relaxed);
                give_back(number);
            });
        }
    }
    MADE.load(Ordering::Relaxed) > 0
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn an_event_is_one_threads_at_a_time() {
        const DEVICE: usize = DEVICES - 1;
        let numbers: Vec<u16> = (0..64).map(|number| (SLOTS - 1 - number) as u16).collect();
        for number in &numbers {
            slot(*number).device.store(DEVICE as u8, Ordering::Relaxed);
            give_back(*number);
        }
        let taken: Vec<AtomicBool> = numbers.iter().map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    for round in 0..20_000 {
                        if let Some(number) = take_event(DEVICE) {
                            let index = SLOTS - 1 - usize::from(number);
                            assert!(!taken[index].swap(true, Ordering::SeqCst), "two have the same");
                            mine.push(number);
                        }
                        if round % 3 == 0 || mine.len() > 20 {
                            for number in mine.drain(..) {
                                taken[SLOTS - 1 - usize::from(number)].store(false, Ordering::SeqCst);
                                give_back(number);
                            }
                        }
                    }
                    for number in mine {
                        taken[SLOTS - 1 - usize::from(number)].store(false, Ordering::SeqCst);
                        give_back(number);
                    }
                });
            }
        });
        let all: HashSet<u16> = std::iter::from_fn(|| take_event(DEVICE)).collect();
        assert_eq!(all, numbers.into_iter().collect());
    }
}
