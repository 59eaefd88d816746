//! A timing as a page for people, and as JSON for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::answer::TimedExpressions;
use super::figures::{BenchStatistics, TimingStatistics};
use crate::cli::eval::printer::boundary_text;

/// Seconds in the unit that people would choose.
fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        ..1e-6 => (seconds * 1e9, "ns"),
        ..1e-3 => (seconds * 1e6, "µs"),
        ..1.0 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}

fn or_dash(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), time)
}

pub(super) fn text(
    all: &BenchStatistics,
    timed: &TimedExpressions,
    rank: Option<i32>,
    step: i64,
    waited: f64,
) -> String {
    let mut out = String::new();
    let rank = rank.map(|rank| format!("rank {rank}, ")).unwrap_or_default();
    let boundary = boundary_text(step);
    let _ = writeln!(out, "{rank}{boundary}; training waited {waited:.2} s");
    let mut shown = None;
    for figures in &all.each {
        if shown != Some(figures.timing.index) {
            shown = Some(figures.timing.index);
            let _ = write!(out, "\n{}: {}", figures.name(), figures.expression);
            let inputs = &figures.timing.inputs;
            let _ =
                writeln!(out, "{}", if inputs.is_empty() { String::new() } else { format!("   called with {inputs}") });
        }
        line(&mut out, figures);
    }
    for compared in &all.compared {
        let part = if compared.part.is_empty() { String::new() } else { format!("{}: ", compared.part) };
        let interval = compared.interval.map(|(low, high)| format!(" [{low:.3}, {high:.3}]")).unwrap_or_default();
        let verdict = match compared.verdict() {
            "unknown" => "too few samples to say which is faster; --seconds takes more",
            "same" => "no difference beyond the noise",
            faster_or_slower => faster_or_slower,
        };
        let _ = writeln!(out, "\n{part}b takes {:.3}{interval} times as long as a: {verdict}", compared.ratio);
    }
    for remark in &timed.remarks {
        let _ = writeln!(out, "\n{remark}");
    }
    let kept = &timed.kept;
    let _ = writeln!(
        out,
        "\nput back: {} of {} tensors had changed ({:.1} MB were kept, in {:.2} s)",
        kept.put_back,
        kept.tensors,
        kept.bytes as f64 / 1e6,
        kept.seconds
    );
    out
}

fn line(out: &mut String, figures: &TimingStatistics) {
    let timing = &figures.timing;
    let part = if timing.part.is_empty() { "a call" } else { &timing.part };
    let interval = figures.interval.map(|(low, high)| format!(" [{}, {}]", time(low), time(high))).unwrap_or_default();
    let _ = writeln!(out, "  {part}: {}{interval} in the median", time(figures.median));
    let _ = writeln!(
        out,
        "    p5 {}, p95 {}, p99 {}; {} samples of {} call{}, after {} to warm up",
        or_dash(figures.p5),
        or_dash(figures.p95),
        or_dash(figures.p99),
        timing.samples.len(),
        timing.calls_per_sample,
        if timing.calls_per_sample == 1 { "" } else { "s" },
        timing.warm_up_calls
    );
    if !timing.is_settled {
        let _ =
            writeln!(out, "    calls were still getting faster when warm-up had to end; --seconds gives it more time");
    }
}

pub(super) fn json(
    all: &BenchStatistics,
    timed: &TimedExpressions,
    rank: Option<i32>,
    step: i64,
    waited: f64,
) -> Value {
    let kept = &timed.kept;
    json!({
        "rank": rank,
        "step": step,
        "training_waited": waited,
        "threads": timed.threads,
        "remarks": timed.remarks,
        "timings": all.each.iter().map(TimingStatistics::json).collect::<Vec<_>>(),
        "compared": all.compared.iter().map(super::figures::TimingRatio::json).collect::<Vec<_>>(),
        "text": text(all, timed, rank, step, waited),
        "kept": { "tensors": kept.tensors, "bytes": kept.bytes, "seconds": kept.seconds, "put_back": kept.put_back },
    })
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn times_have_units_that_people_would_choose() {
        let shown = [2.5e-7, 1.234e-5, 0.00987, 0.0123, 0.123_4, 2.0].map(time);
        assert_eq!(shown, ["250 ns", "12.3 µs", "9.87 ms", "12.3 ms", "123 ms", "2.00 s"]);
    }
}
