//! Which steps carry detail, and which layers record: decided by step number alone, so that all ranks decide the same.
//!
//! A policy holds from a step on. Training's thread reads one number at each step's beginning. Policies for later steps wait in a
//! few words that the background thread fills, so neither waits for the other.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, Ordering};

use probe_proto::config::Layers;

use crate::shared::STEP;

/// Policies that may wait.
const WAITING: usize = 16;
/// Stride of the steps that `compare` leaves without detail.
const SPARED: u64 = 32;

/// What holds from a step on. It is packed into one word with the step in the upper `STEP_BITS`; for a later step than fits, it
/// holds at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingPolicy {
    /// One of this many steps carries detail: the one whose number is a multiple, unless `compare` is set; 0: none.
    pub stride: u16,
    /// Layers that record.
    pub layers: Layers,
    /// Choose the steps at varying positions, so that those with detail and those without can be compared. With a stride of 1, a
    /// step is left without detail now and then.
    pub compare: bool,
}

const STEP_BITS: u32 = 31;
const LAYERS: u32 = Layers::NAMES.len() as u32;
const COMPARE: u32 = 16 + LAYERS;
const _: () = assert!(COMPARE < 64 - STEP_BITS);

impl RecordingPolicy {
    const fn pack(self, from_step: u64) -> u64 {
        let value = self.stride as u64 | (self.layers.0 as u64) << 16 | (self.compare as u64) << COMPARE;
        (from_step & ((1 << STEP_BITS) - 1)) << (64 - STEP_BITS) | value
    }

    const fn unpack(word: u64) -> Self {
        Self {
            stride: word as u16,
            layers: Layers((word >> 16) as u16 & Layers::ALL.0),
            compare: word >> COMPARE & 1 == 1,
        }
    }

    /// Whether step `step` carries detail.
    pub fn is_detailed(self, step: i64) -> bool {
        match self.stride {
            0 => false,
            1 => !self.compare || !is_spared(step as u64),
            stride => step % i64::from(stride) == self.position(step / i64::from(stride)),
        }
    }

    /// The position of the step with detail within `block`, which has as many steps as the stride. It moves by one from block to
    /// block, so that it does not keep coinciding with what a program does periodically; at most as many steps as the
    /// stride lie between two with detail. With a stride of 2 it is chosen by a hash, because steps with detail are compared with
    /// neighbours that have none.
    fn position(self, block: i64) -> i64 {
        match self.stride {
            _ if !self.compare => 0,
            2 => (hash(block as u64) >> 63) as i64,
            stride => block % i64::from(stride),
        }
    }
}

/// Whether `step` is left without detail: one of each 32 steps, at varying positions, so that it never keeps coinciding with what
/// a program does every 32 steps.
fn is_spared(step: u64) -> bool {
    step % SPARED == hash(step / SPARED) >> 59
}

fn hash(number: u64) -> u64 {
    (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What holds at the start of a process.
const FIRST: RecordingPolicy = RecordingPolicy { stride: 1, layers: Layers::ALL, compare: false };

static IN_FORCE: AtomicU64 = AtomicU64::new(FIRST.pack(0));
/// Policies that wait for their step. Empty slots are 0, which is no policy: one from step 0 on holds at once.
static TO_COME: [AtomicU64; WAITING] = [const { AtomicU64::new(0) }; WAITING];
/// First step of the earliest policy that waits.
static NEXT: AtomicI64 = AtomicI64::new(i64::MAX);
/// Whether torch.profiler is on for a capture in the current step.
pub(super) static IS_CAPTURED: AtomicBool = AtomicBool::new(false);
/// Layers that record now.
static LAYERS_ON: AtomicU16 = AtomicU16::new(Layers::ALL.0);

/// Whether a layer records.
#[inline(always)]
pub(crate) fn is_on(layer: Layer) -> bool {
    LAYERS_ON.load(Ordering::Relaxed) & layer as u16 != 0
}

/// The bit of each layer, as in [`Layers::NAMES`].
#[derive(Debug, Clone, Copy)]
#[repr(u16)]
pub(crate) enum Layer {
    Forward = 1,
    Backward = 2,
    Data = 8,
    Collectives = 16,
    Memory = 32,
    Process = 64,
    Spans = 128,
    Metrics = 256,
    Environment = 512,
    Copies = 1024,
    SyncPoints = 2048,
    DeviceTime = 4096,
    Exceptions = 8192,
    Checkpoints = 16384,
    Pauses = 32768,
}

/// The newest policy that was set, whether it holds yet or not.
pub fn newest() -> RecordingPolicy {
    let latest = TO_COME.iter().map(|slot| slot.load(Ordering::SeqCst)).max().unwrap_or(0);
    RecordingPolicy::unpack(if latest == 0 { IN_FORCE.load(Ordering::SeqCst) } else { latest })
}

/// The policy that holds in the current step.
pub fn in_force() -> RecordingPolicy {
    RecordingPolicy::unpack(IN_FORCE.load(Ordering::Relaxed))
}

/// Sets a policy that holds from the next step on.
pub fn set(policy: RecordingPolicy) {
    for slot in &TO_COME {
        slot.store(0, Ordering::SeqCst);
    }
    IN_FORCE.store(policy.pack(0), Ordering::SeqCst);
}

/// Sets a policy that holds from step `from_step` on. False when that step has begun already: then it holds from the next one on.
pub fn set_from(policy: RecordingPolicy, from_step: i64) -> bool {
    if from_step > STEP.load(Ordering::SeqCst) {
        let word = policy.pack(from_step as u64);
        let free = |slot: &&AtomicU64| slot.compare_exchange(0, word, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if TO_COME.iter().find(free).is_some() {
            NEXT.fetch_min(from_step, Ordering::SeqCst);
            // Training's thread counts a step first and reads `NEXT` after: either it sees the policy, or we see the step.
            return from_step > STEP.load(Ordering::SeqCst);
        }
    }
    set(policy);
    false
}

/// Puts policies that hold from step `step` on in force, at its beginning. Returns whether the step carries detail.
#[inline]
pub(super) fn begin_step(step: i64) -> bool {
    if NEXT.load(Ordering::SeqCst) <= step {
        adopt(step);
    }
    let policy = in_force();
    LAYERS_ON.store(policy.layers.0, Ordering::Relaxed);
    policy.is_detailed(step)
}

#[cold]
fn adopt(step: i64) {
    // Before the slots are read: a policy that is added meanwhile makes it smaller again.
    NEXT.store(i64::MAX, Ordering::SeqCst);
    let mut latest = 0;
    for slot in &TO_COME {
        let word = slot.load(Ordering::SeqCst);
        let from_step = (word >> (64 - STEP_BITS)) as i64;
        if word == 0 {
            continue;
        }
        if from_step <= step {
            latest = latest.max(word);
            slot.store(0, Ordering::SeqCst);
        } else {
            NEXT.fetch_min(from_step, Ordering::SeqCst);
        }
    }
    if latest != 0 {
        IN_FORCE.store(latest, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_with_detail_depend_on_their_number_alone() {
        let policy = |stride, compare| RecordingPolicy { stride, layers: Layers(0b01101), compare };
        for policy in [policy(0, false), policy(1, true), policy(65_535, true), policy(8, false)] {
            assert_eq!(RecordingPolicy::unpack(policy.pack(7)), policy);
        }
        let detailed =
            |policy: RecordingPolicy, steps: i64| (0..steps).filter(|step| policy.is_detailed(*step)).count();
        assert_eq!(detailed(policy(0, true), 100), 0);
        assert_eq!(detailed(policy(1, false), 100), 100);
        assert_eq!((detailed(policy(6, false), 60), detailed(policy(6, true), 60)), (10, 10));
        // Each remainder comes equally often, and one of ten steps has detail up to a stride of 8.
        for stride in [3, 4, 8] {
            let steps: Vec<i64> = (0..960).filter(|step| policy(stride, true).is_detailed(*step)).collect();
            assert!(steps.windows(2).all(|pair| pair[1] - pair[0] <= i64::from(stride) + 1), "{steps:?}");
            for period in [2, 3, 4, 5] {
                let of = |rest| steps.iter().filter(|step| **step % period == rest).count() as i64;
                let even = steps.len() as i64 / period;
                assert!((0..period).all(|rest| (of(rest) - even).abs() <= even / 4 + 1), "{stride} {period}");
            }
        }
        let steps: Vec<i64> = (0..960).filter(|step| policy(2, true).is_detailed(*step)).collect();
        assert_eq!(steps.len(), 480);
        let odd = steps.iter().filter(|step| **step % 2 == 1).count();
        assert!((180..300).contains(&odd), "{odd}");
        let alone = steps.windows(3).filter(|of| of[1] - of[0] > 1 && of[2] - of[1] > 1).count();
        assert!(alone > 60, "only {alone} have neighbours without detail");
        // One of each 32, at changing positions.
        let spared: Vec<i64> = (0..3200).filter(|step| !policy(1, true).is_detailed(*step)).collect();
        assert_eq!(spared.iter().map(|step| step / 32).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
        let remainders: std::collections::BTreeSet<i64> = spared.iter().map(|step| step % 32).collect();
        assert!(remainders.len() > 20, "{remainders:?}");
    }

    #[test]
    fn policies_hold_from_their_steps_on() {
        let stride = |stride| RecordingPolicy { stride, layers: Layers::ALL, compare: false };
        STEP.store(10, Ordering::SeqCst);
        assert!(set_from(stride(4), 20) && set_from(stride(0), 13));
        assert_eq!(newest(), stride(4));
        let detailed: Vec<i64> = (11..30).filter(|step| begin_step(*step)).collect();
        assert_eq!(detailed, [11, 12, 20, 24, 28]);
        assert!(!set_from(stride(0), 10), "it had begun");
        assert!(!begin_step(11));
        set(stride(1));
        assert!(begin_step(12));
        STEP.store(0, Ordering::SeqCst);
    }
}
