//! Medians and how far they can be trusted: a circular moving-block bootstrap, from a fixed seed.
//!
//! Steps near each other are alike (a neighbour on the machine, a clock that has slowed down), so single steps drawn at
//! random would promise more certainty than there is. Blocks of neighbouring steps are drawn instead, of the cube root
//! of their number in length (Künsch 1989; Politis and Romano 1992 for the circle).

/// Number of times that the steps of a side are drawn.
const REPLICATES: usize = 1000;

/// The middle value; the mean of the two middle ones where their number is even.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// The bounds of the middle 95 % of `values`; None without values.
pub(crate) fn middle95(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    let at = |part: f64| {
        let position = part * last as f64;
        let below = position as usize;
        let above = (below + 1).min(last);
        values[below] + (values[above] - values[below]) * (position - below as f64)
    };
    Some((at(0.025), at(0.975)))
}

/// How often each step of a side was drawn in each replicate. Everything that was measured there shares the draws.
pub(crate) struct BootstrapDraws {
    /// Counts by replicate and step.
    counts: Vec<Vec<u32>>,
}

impl BootstrapDraws {
    /// Draws of `steps` steps in the order of time.
    pub(crate) fn new(steps: usize, seed: u64) -> Self {
        Self::in_blocks(steps, block_length(steps), seed)
    }

    fn in_blocks(steps: usize, block: usize, seed: u64) -> Self {
        let mut random = SplitMix64(seed);
        let replicate = |_| {
            let mut counts = vec![0; steps];
            random.blocks(steps, block, |start, length| {
                for offset in 0..length {
                    counts[(start + offset) % steps] += 1;
                }
            });
            counts
        };
        Self { counts: (0..REPLICATES).map(replicate).collect() }
    }

    /// The sum of `values` (one a step) in each replicate.
    pub(crate) fn sums(&self, values: &[f64]) -> Vec<f64> {
        let sum = |counts: &Vec<u32>| counts.iter().zip(values).map(|(count, value)| f64::from(*count) * value).sum();
        self.counts.iter().map(sum).collect()
    }

    /// The median of `values` (one a step; None for a step without one) in each replicate; None for a replicate that drew no value.
    pub(crate) fn medians(&self, values: &[Option<f64>]) -> Vec<Option<f64>> {
        let known = values.iter().enumerate().filter_map(|(step, value)| Some(((*value)?, step)));
        let mut order: Vec<(f64, usize)> = known.collect();
        order.sort_unstable_by(|(one, _), (other, _)| one.total_cmp(other));
        self.counts.iter().map(|counts| weighted_median(&order, counts)).collect()
    }
}

/// The sums that [`BootstrapDraws::sums`] has of `values`, without counts of steps: for one series it is many times as fast.
pub(crate) fn sums_of(values: &[f64], seed: u64) -> Vec<f64> {
    let steps = values.len();
    // The sum of all values up to each, for two rounds of the circle.
    let mut up_to = vec![0.0; 2 * steps + 1];
    for index in 0..2 * steps {
        up_to[index + 1] = up_to[index] + values[index % steps];
    }
    let mut random = SplitMix64(seed);
    let replicate = |_| {
        let mut sum = 0.0;
        random.blocks(steps, block_length(steps), |start, length| sum += up_to[start + length] - up_to[start]);
        sum
    };
    (0..REPLICATES).map(replicate).collect()
}

/// The length of blocks for `steps` steps.
fn block_length(steps: usize) -> usize {
    (steps as f64).cbrt().ceil() as usize
}

/// The median of values in order, each as often as `counts` says of its step.
fn weighted_median(order: &[(f64, usize)], counts: &[u32]) -> Option<f64> {
    let total: u32 = order.iter().map(|(_, step)| counts[*step]).sum();
    let (lower, upper) = (total.checked_sub(1)? / 2, total / 2);
    let mut below = None;
    let mut cumulative = 0;
    for (value, step) in order {
        cumulative += counts[*step];
        if cumulative > lower && below.is_none() {
            below = Some(*value);
        }
        if cumulative > upper {
            return below.map(|below| f64::midpoint(below, *value));
        }
    }
    None
}

/// SplitMix64 (Steele, Lea, Flood 2014): a small generator with the same numbers on every machine.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws blocks of neighbouring steps until there are `steps` steps: tells `each` the first step and the length of each block,
    /// which may go on at the first step after the last one.
    fn blocks(&mut self, steps: usize, block: usize, mut each: impl FnMut(usize, usize)) {
        let mut drawn = 0;
        while drawn < steps {
            each(self.below(steps), block.min(steps - drawn));
            drawn += block;
        }
    }

    /// A number of 0..bound. Some are likelier by one part in 2^64 / bound, which does not matter here.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SplitMix64 {
        fn unit(&mut self) -> f64 {
            (self.next() >> 11) as f64 / (1u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
        }
    }

    /// A series whose neighbours are alike: each value takes `memory` of the one before it.
    fn series(random: &mut SplitMix64, steps: usize, mean: f64, memory: f64) -> Vec<Option<f64>> {
        let mut state = random.normal();
        let fresh = (1.0 - memory * memory).sqrt();
        let next = |_| {
            state = memory * state + fresh * random.normal();
            Some(mean * (1.0 + 0.05 * state))
        };
        (0..steps).map(next).collect()
    }

    fn between(draws_a: &BootstrapDraws, a: &[Option<f64>], draws_b: &BootstrapDraws, b: &[Option<f64>]) -> (f64, f64) {
        let (in_a, in_b) = (draws_a.medians(a), draws_b.medians(b));
        middle95(in_a.iter().zip(&in_b).map(|(a, b)| b.unwrap() / a.unwrap()).collect()).unwrap()
    }

    /// How often, of 200 times, two series of one distribution are said to differ by draws of single steps or of blocks.
    fn false_alarms(steps: usize, memory: f64, draws: fn(usize, u64) -> BootstrapDraws) -> usize {
        let mut random = SplitMix64(7);
        let (draws_a, draws_b) = (draws(steps, 1), draws(steps, 2));
        let differ = |_: &u64| {
            let (a, b) = (series(&mut random, steps, 1.0, memory), series(&mut random, steps, 1.0, memory));
            let (low, high) = between(&draws_a, &a, &draws_b, &b);
            low > 1.0 || high < 1.0
        };
        (0..200).filter(differ).count()
    }

    #[test]
    fn medians_and_bounds_are_exact() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(middle95(vec![]), None);
        let (low, high) = middle95((0..=1000).map(f64::from).collect()).unwrap();
        assert!((low - 25.0).abs() < 1e-9 && (high - 975.0).abs() < 1e-9, "{low} {high}");
    }

    #[test]
    fn the_sums_of_one_series_are_those_by_counts() {
        let mut random = SplitMix64(5);
        for steps in 0..60 {
            let values: Vec<f64> = (0..steps).map(|_| random.normal()).collect();
            let by_counts = BootstrapDraws::new(steps, 9).sums(&values);
            for (one, other) in by_counts.iter().zip(sums_of(&values, 9)) {
                assert!((one - other).abs() < 1e-9, "{steps}: {one} {other}");
            }
        }
    }

    #[test]
    fn a_weighted_median_is_that_of_the_values_written_out() {
        let mut random = SplitMix64(3);
        for steps in 1..40 {
            let values: Vec<Option<f64>> =
                (0..steps).map(|_| (random.below(4) > 0).then(|| random.below(5) as f64)).collect();
            let draws = BootstrapDraws::new(steps, steps as u64);
            for (counts, found) in draws.counts.iter().zip(draws.medians(&values)).take(20) {
                assert_eq!(counts.iter().sum::<u32>() as usize, steps);
                let written = values.iter().zip(counts).flat_map(|(v, n)| std::iter::repeat_n(*v, *n as usize));
                assert_eq!(found, median(written.flatten().collect()));
            }
        }
    }

    #[test]
    fn equal_things_are_rarely_said_to_differ() {
        // 5 % is what is promised; 200 trials stay below 10 % with a probability of 0.998.
        let alarms = false_alarms(60, 0.0, BootstrapDraws::new);
        assert!((1..=20).contains(&alarms), "{alarms} of 200");
    }

    #[test]
    fn neighbours_that_are_alike_are_not_taken_for_independent() {
        let single = false_alarms(100, 0.6, |steps, seed| BootstrapDraws::in_blocks(steps, 1, seed));
        let blocks = false_alarms(100, 0.6, BootstrapDraws::new);
        assert!(single >= 45 && blocks <= 36, "{single} and {blocks} of 200");
    }

    #[test]
    fn a_difference_is_found_and_its_interval_holds_it() {
        let mut random = SplitMix64(11);
        let mut held = 0;
        let draws = (BootstrapDraws::new(60, 1), BootstrapDraws::new(60, 2));
        for _ in 0..100 {
            let (a, b) = (series(&mut random, 60, 1.0, 0.0), series(&mut random, 60, 1.1, 0.0));
            let (low, high) = between(&draws.0, &a, &draws.1, &b);
            assert!(low > 1.0, "10 % with a noise of 5 %: {low}");
            held += usize::from(low < 1.1 && 1.1 < high);
        }
        assert!(held >= 88, "{held} of 100");
    }

    #[test]
    fn the_seed_decides() {
        let values: Vec<Option<f64>> = (0..20).map(|step| Some(f64::from(step))).collect();
        assert_eq!(BootstrapDraws::new(20, 1).medians(&values), BootstrapDraws::new(20, 1).medians(&values));
        assert_ne!(BootstrapDraws::new(20, 1).medians(&values), BootstrapDraws::new(20, 2).medians(&values));
        assert!(BootstrapDraws::new(0, 1).medians(&[]).iter().all(Option::is_none));
    }
}
