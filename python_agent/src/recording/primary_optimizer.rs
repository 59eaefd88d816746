//! Which of several optimizers ends the training steps, and when training has gone on with another one.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Steps of other optimizers in a row after which one whose rhythm is not known (or was misjudged) is retired.
const RETIRED: u32 = 64;
/// Own steps after which the rhythm of an optimizer is known.
const KNOWN: u32 = 4;
/// The largest number of new optimizers that are remembered.
const MAX_NEW: usize = 16;

/// The rhythm in which the primary optimizer and others take turns. A race between threads can lose a count, and nothing else.
pub(super) struct PrimaryOptimizer {
    /// The optimizer whose steps end the training steps; 0: none has stepped yet, or that one is gone.
    primary: AtomicU64,
    /// Steps of others since the primary's last.
    others: AtomicU32,
    /// The largest number of steps of others between two of the primary's.
    most: AtomicU32,
    /// Steps of the primary.
    own: AtomicU32,
    /// The optimizer that was primary before.
    retired: AtomicU64,
    /// Whether the retired one stepped again: from then on only [`RETIRED`] counts, so that the two don't replace each other
    /// again and again (an optimizer within another one's step, phases).
    came_back: AtomicBool,
    /// Optimizers that were made after the primary one first stepped as such, and have not stepped yet; 0: none.
    new: [AtomicU64; MAX_NEW],
}

impl PrimaryOptimizer {
    pub(super) const fn new() -> Self {
        Self {
            primary: AtomicU64::new(0),
            others: AtomicU32::new(0),
            most: AtomicU32::new(0),
            own: AtomicU32::new(0),
            retired: AtomicU64::new(0),
            came_back: AtomicBool::new(false),
            new: [const { AtomicU64::new(0) }; MAX_NEW],
        }
    }

    /// Forgets all optimizers.
    pub(super) fn forget(&self) {
        for address in [&self.primary, &self.retired].into_iter().chain(&self.new) {
            address.store(0, Ordering::Relaxed);
        }
        for count in [&self.others, &self.most, &self.own] {
            count.store(0, Ordering::Relaxed);
        }
        self.came_back.store(false, Ordering::Relaxed);
    }

    /// Notes that an optimizer was made. Optimizers that take turns are made before their loop; one that is made later belongs to
    /// another loop (the next trial of a sweep, the next fold), also where the one before is still alive.
    pub(super) fn note_made(&self, optimizer: u64) {
        if self.primary.load(Ordering::Relaxed) != 0 {
            let free =
                |slot: &AtomicU64| slot.compare_exchange(0, optimizer, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            self.new.iter().any(free);
        }
    }

    /// Whether a step of `optimizer` ends a training step: it is the primary one, or becomes the primary one because that has not
    /// stepped for longer than its rhythm explains. A loop that goes on with another optimizer while the first is still alive has
    /// a boundary again after two steps.
    pub(super) fn is_primary(&self, optimizer: u64) -> bool {
        let before = self.primary.load(Ordering::Relaxed);
        let others = self.others.load(Ordering::Relaxed);
        if before == optimizer {
            self.most.fetch_max(others, Ordering::Relaxed);
            self.own.fetch_add(1, Ordering::Relaxed);
        } else if self.is_new(optimizer) {
            self.becomes_primary(optimizer);
            self.retired.store(0, Ordering::Relaxed);
            self.came_back.store(false, Ordering::Relaxed);
        } else if before == 0 || others >= self.patience() {
            self.becomes_primary(optimizer);
            self.retired.store(before, Ordering::Relaxed);
        } else {
            if optimizer == self.retired.load(Ordering::Relaxed) {
                self.came_back.store(true, Ordering::Relaxed);
            }
            self.others.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.others.store(0, Ordering::Relaxed);
        true
    }

    fn is_new(&self, optimizer: u64) -> bool {
        self.new.iter().any(|new| new.load(Ordering::Relaxed) == optimizer)
    }

    fn becomes_primary(&self, optimizer: u64) {
        self.primary.store(optimizer, Ordering::Relaxed);
        self.most.store(0, Ordering::Relaxed);
        self.own.store(1, Ordering::Relaxed);
        self.new.iter().for_each(|new| new.store(0, Ordering::Relaxed));
    }

    /// Notes that an optimizer is gone. Its address may become another one's.
    pub(super) fn note_gone(&self, optimizer: u64) {
        for address in [&self.primary, &self.retired].into_iter().chain(&self.new) {
            let _ = address.compare_exchange(optimizer, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// How many steps of others in a row are usual.
    fn patience(&self) -> u32 {
        if self.came_back.load(Ordering::Relaxed) || self.own.load(Ordering::Relaxed) < KNOWN {
            return RETIRED;
        }
        (2 * (self.most.load(Ordering::Relaxed) + 1)).min(RETIRED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The positions in `steps` that end a training step.
    fn ends(steps: &[u64]) -> Vec<usize> {
        ends_after(&PrimaryOptimizer::new(), steps)
    }

    fn ends_after(turns: &PrimaryOptimizer, steps: &[u64]) -> Vec<usize> {
        let numbered = steps.iter().enumerate();
        numbered.filter(|(_, optimizer)| turns.is_primary(**optimizer)).map(|(position, _)| position).collect()
    }

    #[test]
    fn who_steps_first_is_the_primary_one_whatever_the_rhythm() {
        let game = [1, 2, 2, 2, 2, 2].repeat(100);
        assert_eq!(ends(&game), (0..600).step_by(6).collect::<Vec<_>>());
        let other_way = [1, 1, 1, 1, 1, 2].repeat(100);
        assert_eq!(ends(&other_way), (0..600).filter(|position| position % 6 != 5).collect::<Vec<_>>());
    }

    #[test]
    fn a_loop_with_another_optimizer_has_its_own_steps_soon() {
        let first = [1; 10];
        let loops = [&first[..], &[2; 10], &[3; 10]].concat();
        let wanted: Vec<_> = (0..10).chain(12..20).chain(22..30).collect();
        assert_eq!(ends(&loops), wanted);
    }

    #[test]
    fn one_that_is_made_later_has_its_own_steps_at_once() {
        let turns = PrimaryOptimizer::new();
        for trial in 1..100 {
            turns.note_made(2 * trial);
            turns.note_made(2 * trial + 1);
            // Two that take turns, three times: one step each.
            let steps = [2 * trial, 2 * trial + 1].repeat(3);
            assert_eq!(ends_after(&turns, &steps), [0, 2, 4], "{trial}");
        }
        // More than are remembered.
        (1000..1100).for_each(|optimizer| turns.note_made(optimizer));
        turns.note_gone(1000);
        assert_eq!(ends_after(&turns, &[1000, 1001, 1001]), [1, 2]);
    }

    #[test]
    fn a_loop_within_a_loop_gives_way_to_it_again() {
        let turns = PrimaryOptimizer::new();
        assert_eq!(ends_after(&turns, &[1; 5]).len(), 5);
        for inner in 2..10 {
            turns.note_made(inner);
            assert_eq!(ends_after(&turns, &[inner; 6]).len(), 6);
            assert_eq!(ends_after(&turns, &[1; 10]).len(), 8);
        }
    }

    #[test]
    fn one_that_had_hardly_begun_is_waited_for_longer() {
        let steps = [&[1; 3][..], &[2; 70]].concat();
        assert_eq!(ends(&steps), (0..3).chain(67..73).collect::<Vec<_>>());
    }

    #[test]
    fn two_that_alternate_in_phases_replace_each_other_by_mistake_once() {
        let phases = [[1; 10], [2; 10]].concat().repeat(20);
        let ended = ends(&phases);
        // After the first phase the second one is taken for another loop; once the first is back, the second stays.
        assert_eq!(ended[..18], (0..10).chain(12..20).collect::<Vec<_>>()[..]);
        assert!(ended[18..].iter().all(|position| phases[*position] == 2), "{ended:?}");
    }
}
