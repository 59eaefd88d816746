//! Statistics by which rules are judged. None assumes a distribution, and results do not change when all times are scaled.

use super::steps::Ticks;
use crate::block_bootstrap::{BootstrapDraws, median, middle95, sums_of};

/// Blocks into which a series is cut to judge whether it grows.
pub(crate) const BLOCKS: usize = 12;

/// The median in whole ticks, rounded down; 0 without values.
pub(crate) fn middle(mut values: Vec<Ticks>) -> Ticks {
    values.sort_unstable();
    let half = values.len() / 2;
    match values.len() {
        0 => 0,
        count if count % 2 == 1 => values[half],
        _ => (values[half - 1] + values[half]).div_euclid(2),
    }
}

/// The median distance from the median.
pub(crate) fn deviation(values: &[f64]) -> f64 {
    let Some(centre) = median(values.to_vec()) else { return 0.0 };
    median(values.iter().map(|value| (value - centre).abs()).collect()).unwrap_or(0.0)
}

/// The 95 % interval of the mean of `values` (one a step, in the order of time).
pub(crate) fn mean_interval(values: &[f64], seed: u64) -> Option<(f64, f64)> {
    let steps = values.len() as f64;
    middle95(sums_of(values, seed).into_iter().map(|sum| sum / steps).collect())
}

/// The 95 % interval of the sum of `values` divided by the sum of `of`.
pub(crate) fn ratio_interval(draws: &BootstrapDraws, values: &[f64], of: &[f64]) -> Option<(f64, f64)> {
    let (values, of) = (draws.sums(values), draws.sums(of));
    middle95(values.iter().zip(of).filter(|(_, of)| *of > 0.0).map(|(value, of)| value / of).collect())
}

/// The lower bound, with 97.5 % confidence, of a share of which `of` in `all` samples were found (Wilson's interval).
pub(crate) fn share_at_least(of: usize, all: usize) -> f64 {
    const Z: f64 = 1.96;
    if all == 0 {
        return 0.0;
    }
    let (count, share) = (all as f64, of as f64 / all as f64);
    let middle = share + Z * Z / (2.0 * count);
    let half = Z * (share * (1.0 - share) / count + Z * Z / (4.0 * count * count)).sqrt();
    ((middle - half) / (1.0 + Z * Z / count)).max(0.0)
}

/// The 95 % interval of the change of the mean of `now` (one value a step) from that of `before`, as a share of the latter.
pub(crate) fn change_interval(now: &[f64], before: &[f64]) -> Option<(f64, f64)> {
    let means = |values: &[f64], seed: u64| -> Vec<f64> {
        sums_of(values, seed).into_iter().map(|sum| sum / values.len() as f64).collect()
    };
    let (now, before) = (means(now, 6), means(before, 7));
    middle95(
        now.iter().zip(before).filter(|(_, before)| *before > 0.0).map(|(now, before)| now / before - 1.0).collect(),
    )
}

/// How a series rises.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Trend {
    /// The change in y for each unit of x: the median of the slopes between blocks (Theil and Sen).
    pub(crate) slope: f64,
    /// The level of the first block.
    pub(crate) first: f64,
    /// The level of the last block.
    pub(crate) last: f64,
    /// Number of blocks whose level is above that of the block before.
    pub(crate) rises: usize,
    /// How often, of all pairs of blocks, the later one is higher, less how often it is lower (Kendall's tau, -1 to 1).
    pub(crate) tau: f64,
    /// Whether the growth is steady: the second half rose at least half as much as the first, and no single rise is more than
    /// half of the growth.
    pub(crate) steady: bool,
}

/// The rise of `points` (x and y, in the order of x), by blocks whose level is computed by `level`; None for fewer than two
/// points a block.
pub(crate) fn trend(points: &[(f64, f64)], level: fn(Vec<f64>) -> Option<f64>) -> Option<Trend> {
    if points.len() < 2 * BLOCKS {
        return None;
    }
    let bound = |block: usize| block * points.len() / BLOCKS;
    let blocks: Vec<(f64, f64)> = (0..BLOCKS)
        .filter_map(|block| {
            let of = &points[bound(block)..bound(block + 1)];
            let x = median(of.iter().map(|(x, _)| *x).collect())?;
            Some((x, level(of.iter().map(|(_, y)| *y).collect())?))
        })
        .collect();
    let (mut slopes, mut signs) = (Vec::new(), Vec::new());
    for (at, (x, y)) in blocks.iter().enumerate() {
        let later = &blocks[at + 1..];
        slopes.extend(later.iter().filter(|(later, _)| later > x).map(|(later, more)| (more - y) / (later - x)));
        signs.extend(later.iter().map(|(_, more)| if more == y { 0.0 } else { (more - y).signum() }));
    }
    let (first, last) = (blocks.first()?.1, blocks.last()?.1);
    let steps: Vec<f64> = blocks.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    let growth = last - first;
    let halves = (blocks[BLOCKS / 2].1 - first, last - blocks[BLOCKS / 2].1);
    let largest = steps.iter().copied().fold(0.0, f64::max);
    Some(Trend {
        slope: median(slopes)?,
        first,
        last,
        tau: signs.iter().sum::<f64>() / signs.len() as f64,
        rises: steps.iter().filter(|step| **step > 0.0).count(),
        steady: growth > 0.0 && halves.1 >= halves.0 / 2.0 && largest <= growth / 2.0,
    })
}

/// The lowest value: the floor of a level that goes up and down.
pub(crate) fn floor(values: Vec<f64>) -> Option<f64> {
    values.into_iter().reduce(f64::min)
}

/// The period of events at `at` among the steps `numbers` (both ascending): nearly all events are in one residue class, and
/// nearly all steps of that class are events. None where chance would do as much once in a million.
pub(crate) fn period(at: &[i64], numbers: &[i64]) -> Option<i64> {
    let steps = numbers.len();
    if at.len() < 4 || at.len() * 2 > steps {
        return None;
    }
    // A step at random is an event with this probability.
    let rate = at.len() as f64 / steps as f64;
    let longest = (numbers[steps - 1] - numbers[0]) / 3;
    let mut gaps: Vec<i64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    gaps.dedup();
    let tried = gaps.len().max(1) as f64;
    let fits = |period: &i64| {
        let period = *period;
        if period < 2 || period > longest {
            return false;
        }
        let mut classes: Vec<i64> = at.iter().map(|step| step.rem_euclid(period)).collect();
        classes.sort_unstable();
        let best = classes.chunk_by(|a, b| a == b).max_by_key(|class| class.len());
        let Some((class, hits)) = best.map(|class| (class[0], class.len())) else { return false };
        let slots = numbers.iter().filter(|step| step.rem_euclid(period) == class).count();
        let chance = tail(slots, hits, rate) * period as f64 * tried;
        hits >= 4 && hits * 5 >= slots * 4 && hits * 5 >= at.len() * 4 && chance < 1e-6
    };
    gaps.iter().copied().filter(|gap| fits(gap)).min()
}

/// The probability of at least `hits` of `slots` where each has probability `rate`.
fn tail(slots: usize, hits: usize, rate: f64) -> f64 {
    let mut term = rate.powi(slots as i32);
    let mut sum = 0.0;
    for count in (hits..=slots).rev() {
        sum += term;
        // From `count` to `count - 1` hits.
        term *= count as f64 / (slots - count + 1) as f64 * (1.0 - rate) / rate;
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_middle_is_exact() {
        assert_eq!((middle(vec![]), middle(vec![3]), middle(vec![4, 1]), middle(vec![-1, -4])), (0, 3, 2, -3));
        assert_eq!(deviation(&[1.0, 1.0, 1.0, 9.0]), 0.0);
    }

    #[test]
    fn the_tail_is_the_binomial_s() {
        assert!((tail(3, 2, 0.5) - 0.5).abs() < 1e-12 && (tail(4, 4, 0.1) - 1e-4).abs() < 1e-16);
    }

    #[test]
    fn few_samples_make_a_share_uncertain() {
        // Wilson's interval at 95 %, from tables.
        for (of, all, least) in [(10, 10, 0.7225), (5, 10, 0.2366), (8, 10, 0.4902), (60, 100, 0.5020), (0, 10, 0.0)] {
            assert!((share_at_least(of, all) - least).abs() < 1e-4, "{of} of {all}: {}", share_at_least(of, all));
        }
        assert_eq!(share_at_least(0, 0), 0.0);
    }

    #[test]
    fn a_period_is_found_and_chance_is_not() {
        let numbers: Vec<i64> = (16..256).collect();
        let each: Vec<i64> = numbers.iter().copied().filter(|step| step % 20 == 19).collect();
        assert_eq!(period(&each, &numbers), Some(20));
        assert_eq!(period(&[17, 30, 90, 91, 140, 200, 230], &numbers), None);
        assert_eq!(period(&each[..3], &numbers), None, "three times are too few");
    }

    proptest! {
        /// Events at random times are no period: with 1e-6 a try, none is to be expected in all of these.
        #[test]
        fn chance_has_no_period(times in prop::collection::btree_set(0_i64..400, 4..40)) {
            let at: Vec<i64> = times.into_iter().collect();
            prop_assume!(at.windows(2).map(|pair| pair[1] - pair[0]).collect::<std::collections::BTreeSet<_>>().len() > 3);
            prop_assert_eq!(period(&at, &(0..400).collect::<Vec<_>>()), None);
        }

        #[test]
        fn scaling_scales_a_trend(values in prop::collection::vec(1.0_f64..2.0, 24..80), scale in 0.001_f64..1000.0) {
            let points: Vec<(f64, f64)> = values.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect();
            let scaled: Vec<(f64, f64)> = points.iter().map(|(x, y)| (*x, y * scale)).collect();
            let (one, other) = (trend(&points, floor).unwrap(), trend(&scaled, floor).unwrap());
            prop_assert_eq!((one.rises, one.steady, one.tau), (other.rises, other.steady, other.tau));
            prop_assert!((one.slope * scale - other.slope).abs() <= 1e-9 * scale);
        }

        #[test]
        fn what_rises_has_a_slope(first in 1.0_f64..100.0, slope in 0.01_f64..10.0, count in 24_usize..100) {
            let points: Vec<(f64, f64)> = (0..count).map(|x| (x as f64, first + slope * x as f64)).collect();
            let found = trend(&points, floor).unwrap();
            prop_assert!(found.rises == BLOCKS - 1 && found.tau == 1.0 && found.steady && (found.slope - slope).abs() < 1e-6 * (first + slope));
        }

        #[test]
        fn the_interval_holds_the_mean_of_what_does_not_vary(value in 0.0_f64..10.0, count in 1_usize..60) {
            let (low, high) = mean_interval(&vec![value; count], 1).unwrap();
            prop_assert!((low - value).abs() < 1e-9 && (high - value).abs() < 1e-9);
        }
    }
}
