//! How often operators run in a watched step, by part of the step, and the host's time in them without the operators that they
//! call: counted in fixed tables, and recorded when the step ends.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::clock::ticks;
use super::interned::{self, InternedNames};
use super::thread::ThreadState;
use probe_trace::RecordedPart;
use probe_trace::record::{RecordKind, RingRecord};
use probe_trace::symbol_table::LearnedName;

/// Operators that are counted: those with a number, and all others together.
const OPERATORS: usize = interned::MAX_NAMES + 1;
const OTHERS: u16 = interned::MAX_NAMES as u16;
/// Operators that may be open on a thread. What is deeper counts as time of those above it.
const MAX_OPEN: usize = 32;

/// How torch names the run of a node of a backward pass.
const NODE: &[u8] = b"autograd::engine::evaluate_function";

static NAMES: InternedNames = InternedNames::new(|id, name| LearnedName::Operator(id, name));
static COUNTS: [[OperatorCount; OPERATORS]; RecordedPart::ALL.len()] =
    [const { [const { OperatorCount::new() }; OPERATORS] }; RecordedPart::ALL.len()];
/// Watched steps that ended. What a thread has open from an earlier one has ended on another thread.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// How often an operator ran in a part of the current step.
struct OperatorCount {
    times: AtomicU32,
    outermost: AtomicU32,
    ticks: AtomicU64,
}

impl OperatorCount {
    const fn new() -> Self {
        Self { times: AtomicU32::new(0), outermost: AtomicU32::new(0), ticks: AtomicU64::new(0) }
    }

    /// How often the operator ran, how often no other one called it, and the ticks, which begin from zero again; None where it did
    /// not run.
    fn take(&self) -> Option<(u32, u32, u64)> {
        (self.times.load(Ordering::Relaxed) > 0).then(|| {
            let [times, outermost] = [&self.times, &self.outermost].map(|of| of.swap(0, Ordering::Relaxed));
            (times, outermost, self.ticks.swap(0, Ordering::Relaxed))
        })
    }
}

/// An operator that runs.
#[derive(Debug, Clone, Copy)]
struct RunningOperator {
    range: u64,
    operator: u16,
    part: RecordedPart,
    /// When torch called us for it, in ticks.
    called: u64,
    /// When it began: when we returned.
    began: u64,
    /// Ticks of the operators that it called, and of watching them.
    within: u64,
}

struct RunningOperators {
    open: [Cell<RunningOperator>; MAX_OPEN],
    count: Cell<usize>,
    /// The value of [`ENDED`] for which this holds.
    step: Cell<u64>,
}

thread_local! {
    static STACK: RunningOperators = const {
        const NOTHING: RunningOperator = RunningOperator { range: 0, operator: 0, part: RecordedPart::Other, called: 0, began: 0, within: 0 };
        RunningOperators { open: [const { Cell::new(NOTHING) }; MAX_OPEN], count: Cell::new(0), step: Cell::new(0) }
    };
}

/// Notes that an operator begins on this thread. `called`: when torch called us for it, in ticks.
pub(super) fn begin(state: &ThreadState, range: u64, name: &[u8], called: u64) {
    let operator = NAMES.intern(name).unwrap_or(OTHERS);
    STACK.with(|stack| {
        let step = ENDED.load(Ordering::Relaxed);
        if stack.step.replace(step) != step {
            stack.count.set(0);
        }
        let count = stack.count.get();
        let part = match (part(state), count.checked_sub(1).and_then(|above| stack.open.get(above))) {
            // A thread of the engine runs a node, and what it knows begins within the node.
            (RecordedPart::Other, None) if name.starts_with(NODE) => RecordedPart::Backward,
            (RecordedPart::Other, Some(above)) => above.get().part,
            (part, _) => part,
        };
        if let Some(open) = stack.open.get(count) {
            open.set(RunningOperator { range, operator, part, called, began: ticks(), within: 0 });
            stack.count.set(count + 1);
        }
    });
}

/// Notes that an operator has ended on this thread, at `now`. `way`: ticks that torch takes to call us for an operator.
pub(super) fn end(range: u64, now: u64, way: u64) {
    STACK.with(|stack| {
        // One that ended on another thread may still be above it.
        let is_it = |index: &usize| stack.open[*index].get().range == range;
        let Some(index) = (0..stack.count.get()).rev().find(is_it) else { return };
        stack.count.set(index);
        let open = stack.open[index].get();
        let own = now.saturating_sub(open.began).saturating_sub(open.within);
        let count = &COUNTS[open.part as usize][usize::from(open.operator)];
        let above = index.checked_sub(1).map(|above| &stack.open[above]);
        // An operator may call another overload of itself.
        if above.is_none_or(|above| above.get().operator != open.operator) {
            count.times.fetch_add(1, Ordering::Relaxed);
        }
        count.ticks.fetch_add(own, Ordering::Relaxed);
        match above {
            None => {
                count.outermost.fetch_add(1, Ordering::Relaxed);
            }
            Some(above) => {
                let mut outer = above.get();
                outer.within += ticks().saturating_sub(open.called) + way;
                above.set(outer);
            }
        }
    });
}

fn part(state: &ThreadState) -> RecordedPart {
    if state.checkpoints.depth() > 0 {
        RecordedPart::Checkpoint
    } else if state.optimizers.depth() > 0 {
        RecordedPart::Optimizer
    } else if state.is_in_backward() {
        RecordedPart::Backward
    } else if state.data.depth() > 0 {
        RecordedPart::Data
    } else if state.depth.get() > 0 {
        RecordedPart::Forward
    } else {
        RecordedPart::Other
    }
}

/// Forgets what was counted since the last watched step: what other threads had open at its end.
pub(super) fn forget() {
    ENDED.fetch_add(1, Ordering::Relaxed);
    for count in COUNTS.iter().flatten() {
        let _ = count.take();
    }
}

/// Records what was counted since the last call, and counts from zero again. Called at the end of a watched step, which stands
/// for `stride` steps.
pub(super) fn end_step(state: &ThreadState, stride: u32) {
    ENDED.fetch_add(1, Ordering::Relaxed);
    for (part, counts) in COUNTS.iter().enumerate() {
        for (operator, count) in counts.iter().enumerate() {
            let Some((times, outermost, own)) = count.take() else { continue };
            let (now, payload) = (ticks(), operator as u64 | (part as u64) << 16 | u64::from(stride) << 24);
            let counted = u64::from(times) | u64::from(outermost) << 32;
            state.instant(RingRecord::new(RecordKind::OperatorCount, payload, now, now.saturating_sub(own), counted));
        }
    }
}

/// The operator with this number.
pub(super) fn name_of(number: u64) -> Option<String> {
    NAMES.get(number)
}
