//! Two runs, or two windows of one, side by side: what a step takes and what each module takes in it, in A and in B, and
//! whether the difference is more than noise. The queries are in `sql`.

mod side;
mod sql;

use std::num::NonZero;
use std::thread;

pub use self::side::{ComparedRun, LAST_STEPS, ModuleStage, PARTS};
pub use self::sql::read;
use crate::block_bootstrap::{BootstrapDraws, median, middle95};

/// Steps that a side needs for a judgement about noise.
pub const MIN_STEPS: usize = 5;

/// The judgement of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComparisonVerdict {
    /// The 95 % interval of the change is above zero.
    Slower,
    /// The 95 % interval of the change is below zero.
    Faster,
    /// The 95 % interval of the change includes zero.
    WithinNoise,
    /// One side has fewer than [`MIN_STEPS`] steps.
    TooFewSteps,
    /// B has no such module.
    OnlyInA,
    /// A has no such module.
    OnlyInB,
    /// The module ran, and its time is not known on one side: the device was not timed.
    NotTimed,
}

impl ComparisonVerdict {
    /// The verdict in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::WithinNoise => "within noise",
            Self::TooFewSteps => "too few steps",
            Self::OnlyInA => "only in A",
            Self::OnlyInB => "only in B",
            Self::NotTimed => "not timed",
        }
    }
}

/// One line of a comparison. Times are milliseconds a step, B against A.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparedRow {
    /// None for the whole step and its parts.
    pub what: Option<ModuleStage>,
    /// The stage, or the part of the step.
    pub stage: String,
    /// Median over A's steps.
    pub a_ms: Option<f64>,
    /// Median over B's steps.
    pub b_ms: Option<f64>,
    /// B's median less A's.
    pub change_ms: Option<f64>,
    /// B's median less A's, in percent of A's.
    pub change_percent: Option<f64>,
    /// The 95 % interval of that percentage.
    pub interval_percent: Option<(f64, f64)>,
    /// Steps of A in which the row was timed.
    pub steps_a: usize,
    /// Steps of B in which the row was timed.
    pub steps_b: usize,
    /// The judgement of the difference.
    pub verdict: ComparisonVerdict,
}

impl ComparedRow {
    /// The time of the change, or of the one side that has the row (ms): rows are ordered by it.
    fn weight(&self) -> f64 {
        self.change_ms.or(self.a_ms).or(self.b_ms).unwrap_or_default().abs()
    }
}

/// Compares two sides: the whole step and its parts first, then modules by how much time they gained or lost.
pub fn compare(a: &ComparedRun, b: &ComparedRun) -> Vec<ComparedRow> {
    let draws = (BootstrapDraws::new(a.steps.len(), 1), BootstrapDraws::new(b.steps.len(), 2));
    let known = |values: &[f64]| values.iter().copied().map(Some).collect::<Vec<_>>();
    let empty = Vec::new();
    let part = |(index, (name, _)): (usize, &(&str, &str))| {
        let times = |side: &ComparedRun| known(side.parts.get(index).unwrap_or(&empty));
        line(None, (*name).to_owned(), &times(a), &times(b), &draws)
    };
    let mut rows: Vec<ComparedRow> = PARTS.iter().enumerate().map(part).collect();
    let mut keys: Vec<&ModuleStage> = a.modules.keys().chain(b.modules.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut modules = in_parallel(&keys, |key| module(key, a.modules.get(*key), b.modules.get(*key), &draws));
    modules.sort_by(|one, other| other.weight().total_cmp(&one.weight()).then_with(|| one.what.cmp(&other.what)));
    rows.extend(modules);
    rows
}

fn module(
    key: &ModuleStage,
    a: Option<&Vec<Option<f64>>>,
    b: Option<&Vec<Option<f64>>>,
    draws: &(BootstrapDraws, BootstrapDraws),
) -> ComparedRow {
    let none = Vec::new();
    let mut row = line(Some(key.clone()), key.1.clone(), a.unwrap_or(&none), b.unwrap_or(&none), draws);
    row.verdict = match (a, b) {
        (Some(_), None) => ComparisonVerdict::OnlyInA,
        (None, Some(_)) => ComparisonVerdict::OnlyInB,
        _ if row.steps_a == 0 || row.steps_b == 0 => ComparisonVerdict::NotTimed,
        _ => row.verdict,
    };
    row
}

/// The row of a module or a part of a step, from its times in seconds a step.
fn line(
    what: Option<ModuleStage>,
    stage: String,
    a: &[Option<f64>],
    b: &[Option<f64>],
    draws: &(BootstrapDraws, BootstrapDraws),
) -> ComparedRow {
    let ms = |values: &[Option<f64>]| median(values.iter().flatten().map(|seconds| seconds * 1000.0).collect());
    let (steps_a, steps_b) = (a.iter().flatten().count(), b.iter().flatten().count());
    let (a_ms, b_ms) = (ms(a), ms(b));
    let both = a_ms.zip(b_ms);
    let (mut interval_percent, mut verdict) = (None, ComparisonVerdict::TooFewSteps);
    if steps_a >= MIN_STEPS && steps_b >= MIN_STEPS {
        let (in_a, in_b) = (draws.0.medians(a), draws.1.medians(b));
        let pairs = || in_a.iter().zip(&in_b).filter_map(|(a, b)| Some(((*a)?, (*b)?)));
        // Without time in A there is no ratio; the difference says as well whether B takes more or less.
        let difference = middle95(pairs().map(|(a, b)| b - a).collect());
        let all_positive = pairs().all(|(a, _)| a > 0.0);
        interval_percent = middle95(pairs().map(|(a, b)| (b / a - 1.0) * 100.0).collect()).filter(|_| all_positive);
        verdict = match difference {
            Some((low, _)) if low > 0.0 => ComparisonVerdict::Slower,
            Some((_, high)) if high < 0.0 => ComparisonVerdict::Faster,
            _ => ComparisonVerdict::WithinNoise,
        };
    }
    ComparedRow {
        what,
        stage,
        a_ms,
        b_ms,
        change_ms: both.map(|(a, b)| b - a),
        change_percent: both.filter(|(a, _)| *a > 0.0).map(|(a, b)| (b / a - 1.0) * 100.0),
        interval_percent,
        steps_a,
        steps_b,
        verdict,
    }
}

/// `work` on every item, on as many threads as there are cores; the results are in the items' order.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let chunk = items.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> =
            items.chunks(chunk).map(|items| scope.spawn(move || items.iter().map(work).collect::<Vec<_>>())).collect();
        let results = running.into_iter().map(|thread| thread.join());
        results.flat_map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(steps: usize, modules: &[(&str, f64)]) -> ComparedRun {
        let wobble = |step: usize| 1.0 + 0.01 * ((step * 7 % 11) as f64 - 5.0);
        let series = |seconds: f64| (0..steps).map(|step| seconds * wobble(step)).collect::<Vec<f64>>();
        let total: f64 = modules.iter().map(|(_, seconds)| seconds).sum();
        let module = |(name, seconds): &(&str, f64)| {
            ((Some((*name).to_owned()), "forward".to_owned()), series(*seconds).into_iter().map(Some).collect())
        };
        ComparedRun {
            steps: (0..steps as i64).collect(),
            processes: 2,
            parts: PARTS
                .iter()
                .map(|(name, _)| series(if matches!(*name, "all" | "forward") { total } else { 0.0 }))
                .collect(),
            modules: modules.iter().map(module).collect(),
            ..ComparedRun::default()
        }
    }

    fn find<'a>(rows: &'a [ComparedRow], module: &str) -> &'a ComparedRow {
        rows.iter().find(|row| row.what.as_ref().is_some_and(|key| key.0.as_deref() == Some(module))).unwrap()
    }

    #[test]
    fn what_changed_comes_first_and_is_told_from_noise() {
        let a = side(50, &[("small", 0.001), ("same", 0.1), ("gone", 0.002), ("better", 0.02)]);
        let b = side(40, &[("small", 0.0015), ("same", 0.1001), ("new", 0.003), ("better", 0.01)]);
        let rows = compare(&a, &b);
        assert_eq!(rows[0].stage, "all");
        assert!(rows[..PARTS.len()].iter().all(|row| row.what.is_none()));
        let order: Vec<_> = rows[PARTS.len()..].iter().map(|row| row.what.clone().unwrap().0.unwrap()).collect();
        assert_eq!(order, ["better", "new", "gone", "small", "same"]);
        let small = find(&rows, "small");
        assert_eq!((small.verdict, small.steps_a, small.steps_b), (ComparisonVerdict::Slower, 50, 40));
        assert!((small.change_percent.unwrap() - 50.0).abs() < 2.0 && (small.change_ms.unwrap() - 0.5).abs() < 0.02);
        let (low, high) = small.interval_percent.unwrap();
        assert!(low < 50.0 && 50.0 < high && low > 40.0, "{low} {high}");
        assert_eq!(find(&rows, "better").verdict, ComparisonVerdict::Faster);
        assert_eq!(find(&rows, "same").verdict, ComparisonVerdict::WithinNoise);
        let new = find(&rows, "new");
        assert_eq!((new.verdict, new.a_ms, new.change_ms, new.steps_a), (ComparisonVerdict::OnlyInB, None, None, 0));
        assert_eq!(find(&rows, "gone").verdict, ComparisonVerdict::OnlyInA);
        let data = &rows[1];
        assert_eq!(
            (data.verdict, data.change_percent, data.interval_percent),
            (ComparisonVerdict::WithinNoise, None, None)
        );
        assert_eq!(compare(&a, &b), rows, "the same again");
    }

    #[test]
    fn few_steps_say_nothing_about_noise() {
        let rows = compare(&side(4, &[("x", 1.0)]), &side(50, &[("x", 9.0)]));
        let x = find(&rows, "x");
        assert_eq!((x.verdict, x.interval_percent, x.steps_a), (ComparisonVerdict::TooFewSteps, None, 4));
        assert!(x.change_percent.unwrap() > 700.0);
    }

    #[test]
    fn what_was_not_timed_is_not_compared() {
        let (mut a, b) = (side(10, &[("x", 1.0)]), side(10, &[("x", 1.0)]));
        a.modules.values_mut().for_each(|values| values.fill(None));
        assert_eq!(find(&compare(&a, &b), "x").verdict, ComparisonVerdict::NotTimed);
    }
}
