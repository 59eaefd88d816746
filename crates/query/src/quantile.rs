//! A quantile of a t-digest. DataFusion extends the slope between a centroid's neighbours beyond it, so that its answer may lie far
//! from all values; here it lies between the means of the two centroids around it, and is that of `percentile_cont` where each
//! centroid is one value.

use datafusion_functions_aggregate_common::tdigest::TDigest;

/// The value below which the share `q` (0 to 1) of the values in `digest` lies; None of no values.
pub(super) fn quantile_of(digest: &TDigest, q: f64) -> Option<f64> {
    let count = digest.count();
    if digest.centroids().is_empty() || count <= 0.0 {
        return None;
    }
    // The value with the index i, of count values in order, is at i.
    let wanted = q.clamp(0.0, 1.0) * (count - 1.0);
    let mut below = (0.0, digest.min());
    let mut before = 0.0;
    for centroid in digest.centroids() {
        let middle = before + (centroid.weight() - 1.0) / 2.0;
        if wanted <= middle {
            return Some(between(below, (middle, centroid.mean()), wanted));
        }
        below = (middle, centroid.mean());
        before += centroid.weight();
    }
    Some(between(below, (count - 1.0, digest.max()), wanted))
}

/// The value at `wanted` on the line between two points, each an index and a value.
fn between(left: (f64, f64), right: (f64, f64), wanted: f64) -> f64 {
    let share = if right.0 > left.0 { (wanted - left.0) / (right.0 - left.0) } else { 1.0 };
    if left.1 == right.1 || share <= 0.0 {
        left.1
    } else if share >= 1.0 {
        right.1
    } else {
        left.1 + (right.1 - left.1) * share
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As `percentile_cont` has it.
    fn exact(sorted: &[f64], q: f64) -> f64 {
        let at = q * (sorted.len() - 1) as f64;
        let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
        low + (high - low) * (at - at.floor())
    }

    proptest! {
        #[test]
        fn few_values_are_exact(mut values in prop::collection::vec(-1e3..1e9, 1..46_usize), q in 0.0..=1.0) {
            values.sort_by(f64::total_cmp);
            let digest = TDigest::new(100).merge_sorted_f64(&values);
            let (found, wanted) = (quantile_of(&digest, q).unwrap(), exact(&values, q));
            prop_assert!((found - wanted).abs() <= 1e-9 * wanted.abs().max(1.0), "{found}, not {wanted}");
        }

        #[test]
        fn of_many_values_as_many_lie_below_as_asked(
            values in prop::collection::vec(0.0..40.0, 1000..3000_usize), q in 0.0..=1.0,
        ) {
            // A few are much larger than the rest.
            let mut values: Vec<f64> = values.iter().map(|value: &f64| value.exp()).collect();
            values.sort_by(f64::total_cmp);
            let found = quantile_of(&TDigest::new(100).merge_sorted_f64(&values), q).unwrap();
            let below = values.iter().filter(|value| **value <= found).count() as f64 / values.len() as f64;
            prop_assert!((below - q).abs() < 0.03, "{below} of the values are below what {q} of them should be below");
        }
    }

    #[test]
    fn infinities_and_single_values_have_quantiles() {
        let digest = |values: &[f64]| TDigest::new(100).merge_sorted_f64(values);
        assert_eq!(quantile_of(&digest(&[3.0]), 0.95), Some(3.0));
        assert_eq!(quantile_of(&digest(&[1.0, f64::INFINITY, f64::INFINITY]), 1.0), Some(f64::INFINITY));
        assert_eq!(quantile_of(&digest(&[1.0, f64::INFINITY]), 0.0), Some(1.0));
        assert_eq!(quantile_of(&TDigest::new(100), 0.5), None);
    }
}
