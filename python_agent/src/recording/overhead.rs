//! `probe.overhead`, and its report to the collector: counts of events times the cost of each, beside the durations of steps with
//! and without detail.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use probe_proto::table::Time;
use probe_proto::tables::overhead;
use probe_proto::v1;

use super::clock::ClockSample;
use super::symbolizer::Symbolizer;
use super::{cost as costs, module_memory, operators, policy, ring};
use crate::renewable::Renewable;
use crate::shared::STEP;
use probe_trace::row_buffer::RowBuffer;
use probe_trace::{Analyser, StepEvents};

/// Time between two rows.
const INTERVAL: Duration = Duration::from_secs(2);
/// Time between two examinations of the newest steps.
const LOOK: Duration = Duration::from_millis(400);

/// `overhead_budget`, as the bits of a float.
static BUDGET: AtomicU64 = AtomicU64::new(0.01_f64.to_bits());
static BUFFER_BYTES: AtomicUsize = AtomicUsize::new(0);
static STATE: Renewable<OverheadState> = Renewable::new(OverheadState::default);

/// Sets what recording may cost, as a share of step time.
pub(super) fn set_budget(share: f64) {
    BUDGET.store(share.to_bits(), Ordering::Relaxed);
}

/// Sets how many bytes wait for the collector.
pub fn set_buffer_bytes(bytes: usize) {
    BUFFER_BYTES.store(bytes, Ordering::Relaxed);
}

/// Begins anew in a forked child that becomes an agent.
pub(super) fn begin_anew() {
    STATE.renew();
    costs::begin_anew();
}

/// The cost that is reported to the collector; None before there are steps.
pub fn cost() -> Option<v1::Cost> {
    STATE.lock().reported
}

#[derive(Debug, Default)]
struct OverheadState {
    reported: Option<v1::Cost>,
    looked: Option<Instant>,
    row: Option<OverheadRow>,
    /// Ticks of rare hooks, and the step, at the examination before.
    rare: (u64, i64),
    rare_per_step: f64,
}

/// The newest row.
#[derive(Debug, Clone, Copy)]
struct OverheadRow {
    at: Instant,
    step: i64,
    cpu: Option<(i64, f64)>,
}

/// The calling thread's id, and its CPU seconds.
pub(super) fn cpu() -> Option<(i64, f64)> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours; gettid has no arguments.
    let (failed, thread) = unsafe {
        (libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) != 0, libc::syscall(libc::SYS_gettid))
    };
    (!failed).then_some((thread, time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9))
}

/// Examines the newest steps, if it is time, and adds a row if two seconds have passed or (`last`) training is over.
pub(super) fn add_row_if_due(analyser: &mut Analyser<Symbolizer>, now: ClockSample, last: bool, sink: &mut RowBuffer) {
    let mut state = STATE.lock();
    let step = STEP.load(Ordering::Relaxed);
    if step == 0 || !last && state.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
        return;
    }
    state.looked = Some(Instant::now());
    let policy = policy::in_force();
    let costs = costs::costs();
    let (rare, before) = state.rare;
    if step > before {
        state.rare_per_step = analyser.seconds(costs.rare.saturating_sub(rare)) / (step - before) as f64;
        state.rare = (costs.rare, step);
    }
    let [event, node, mark] = [costs.event, costs.node, costs.mark].map(|ticks| analyser.seconds(ticks));
    let seconds_of =
        |counts: StepEvents| counts.plain as f64 * event + counts.nodes as f64 * node + counts.marks as f64 * mark;
    let (with, without) = analyser.meter().counts();
    // Until a step without detail has been seen, the cost of every step is only that of rare hooks and of work in sampled steps.
    let thin = analyser.seconds(operators::cost() + module_memory::cost());
    let every_step = without.map_or(0.0, seconds_of) + state.rare_per_step + thin;
    let detail = with.map_or(0.0, |with| (seconds_of(with) - without.map_or(0.0, seconds_of)).max(0.0));
    let (ratio, step_seconds) = (analyser.meter().ratio(), analyser.meter().step_seconds());
    let (recent, baseline) = analyser.meter().recent_and_baseline().unwrap_or_default();
    state.reported = Some(v1::Cost {
        step_seconds: step_seconds.unwrap_or(0.0),
        every_step,
        detail,
        low: ratio.map(|ratio| ratio.low),
        high: ratio.map(|ratio| ratio.high),
        recent,
        baseline,
    });
    let due = match state.row {
        None => true,
        Some(row) => row.step < step && (last || row.at.elapsed() >= INTERVAL),
    };
    if !due {
        return;
    }
    let cpu = cpu();
    let share = match (state.row, cpu) {
        (Some(OverheadRow { at, cpu: Some((last_thread, then)), .. }), Some((thread, now)))
            if last_thread == thread =>
        {
            Some((now - then) / at.elapsed().as_secs_f64().max(1e-6))
        }
        _ => None,
    };
    let thinned = match policy.stride {
        0 => 0.0,
        1 if policy.compare => 31.0 / 32.0,
        stride => 1.0 / f64::from(stride),
    };
    let estimated = (with.is_some() || without.is_some()).then_some(every_step + detail * thinned);
    sink.push(overhead::Row {
        ts: Time(now.unix_ns),
        step,
        budget: f64::from_bits(BUDGET.load(Ordering::Relaxed)),
        detail_stride: i32::from(policy.stride),
        step_duration: step_seconds,
        events: with.map(|counts| counts.events() as f64),
        events_without_detail: without.map(|counts| counts.events() as f64),
        event_cost: event,
        node_cost: node,
        estimated_cost: estimated,
        estimated_share: estimated.zip(step_seconds).map(|(cost, step)| cost / step),
        measured_ratio: ratio.map(|ratio| ratio.median),
        measured_low: ratio.map(|ratio| ratio.low),
        measured_high: ratio.map(|ratio| ratio.high),
        measured_pairs: analyser.meter().pairs() as i32,
        ring_bytes: ring::used() as i64,
        buffer_bytes: BUFFER_BYTES.load(Ordering::Relaxed) as i64,
        string_bytes: sink.strings.bytes() as i64,
        sender_cpu: share,
    });
    state.row = Some(OverheadRow { at: Instant::now(), step, cpu });
}
