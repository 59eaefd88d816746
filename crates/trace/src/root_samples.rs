//! The samples that the outermost modules of a step were given.

use super::persist::persist;

/// The largest number of different outermost modules of a step that are told apart.
const MAX_ROOTS: usize = 6;

/// An outermost module: its number, which unnamed modules of one class may share, and its address, which another module may have
/// after it.
pub(super) type RootModule = (u32, u64);

/// Samples by outermost module.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct RootSamples {
    /// Each module and its samples, without gaps.
    roots: [Option<(RootModule, i64)>; MAX_ROOTS],
    /// Whether there were further modules.
    has_more: bool,
}

persist!(RootSamples { roots, has_more });

impl RootSamples {
    /// Adds samples that the module was given.
    pub(super) fn add(&mut self, module: RootModule, samples: i64) {
        let is_place = |root: &&mut Option<(RootModule, i64)>| root.is_none_or(|(known, _)| known == module);
        match self.roots.iter_mut().find(is_place) {
            Some(root) => {
                let before = root.map_or(0, |(_, before)| before);
                *root = Some((module, before.saturating_add(samples)));
            }
            None => self.has_more = true,
        }
    }

    /// Adds the samples of `more`.
    pub(super) fn plus(mut self, more: &Self) -> Self {
        more.roots.iter().flatten().for_each(|(module, samples)| self.add(*module, *samples));
        self.has_more |= more.has_more;
        self
    }

    /// What was added since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        let mut added = Self { has_more: self.has_more && !before.has_more, ..Self::default() };
        for (module, samples) in self.roots.iter().flatten() {
            let known = before.of(*module);
            if known != Some(*samples) {
                added.add(*module, samples.saturating_sub(known.unwrap_or(0)));
            }
        }
        added
    }

    /// Samples of the step, in which the loop was given `batch_samples`.
    ///
    /// Several modules may be given the same samples: a critic and an actor, a teacher and a student, a discriminator twice.
    /// So their sum is not the number of samples. The loop's batches count; without them, the module with the most samples. If
    /// all modules got equally many samples and the loop more, the loop was given a batch ahead (accelerate does that in the
    /// first step of an epoch).
    pub(super) fn of_step(&self, batch_samples: Option<i64>) -> Option<i64> {
        let known = || self.roots.iter().flatten().map(|(_, samples)| *samples);
        match known().count() {
            0 => batch_samples,
            1 => known().next(),
            _ => {
                let most = known().max().filter(|_| !self.has_more);
                let each = most.filter(|_| known().min() == most);
                match (batch_samples, each) {
                    (Some(given), Some(each)) => Some(given.min(each)),
                    (given, _) => given.or(most),
                }
            }
        }
    }

    fn of(&self, module: RootModule) -> Option<i64> {
        self.roots.iter().flatten().find(|(known, _)| *known == module).map(|(_, samples)| *samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(calls: &[(u64, i64)]) -> RootSamples {
        let mut samples = RootSamples::default();
        calls.iter().for_each(|(address, count)| samples.add((0, *address), *count));
        samples
    }

    #[test]
    fn a_step_has_the_samples_of_its_model_or_of_its_batches_where_there_are_several_models() {
        assert_eq!(given(&[]).of_step(None), None);
        assert_eq!(given(&[]).of_step(Some(64)), Some(64));
        // Batches are asked for ahead of their step, and a model may be given parts of one.
        assert_eq!(given(&[(1, 16), (1, 16)]).of_step(Some(64)), Some(32));
        assert_eq!(given(&[(1, 64), (2, 64), (1, 64)]).of_step(Some(64)), Some(64));
        assert_eq!(given(&[(1, 64), (2, 64), (1, 64)]).of_step(None), Some(128));
        assert_eq!(given(&[(1, 8), (2, 8)]).of_step(Some(16)), Some(8), "one batch is of the next step");
        assert_eq!(given(&[(1, 64), (2, 64)]).of_step(Some(32)), Some(32), "each was called twice with it");
        let many: Vec<(u64, i64)> = (1..=MAX_ROOTS as u64 + 1).map(|module| (module, 8)).collect();
        assert_eq!(given(&many).of_step(None), None);
        assert_eq!(given(&many).of_step(Some(8)), Some(8));
    }

    #[test]
    fn what_was_added_since_can_be_added_again() {
        let (before, after) = (given(&[(1, 16)]), given(&[(1, 16), (2, 8), (1, 4)]));
        let added = after.since(&before);
        assert_eq!((added.of((0, 1)), added.of((0, 2))), (Some(4), Some(8)));
        let again = before.plus(&added);
        assert_eq!((again.of((0, 1)), again.of((0, 2))), (Some(20), Some(8)));
        assert_eq!(after.since(&after).of_step(None), None);
    }
}
