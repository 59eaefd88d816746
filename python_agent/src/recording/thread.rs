//! The state of each thread: its ring, the intervals that are open on it, and whether it records at all.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::autograd_passes::{PASSES, WATCHED};
use super::clock::ticks;
use super::open_intervals::OpenIntervals;
use super::open_spans::OpenSpans;
use super::ring::{LOST, Ring};
use super::{libtorch, process_flag};
use crate::shared::{ENABLED, TRAINING_THREAD};
use probe_trace::record::{RecordKind, RecordTable, RingRecord};

/// Mode of a thread that records.
pub(crate) const RECORD: u8 = 0;
/// Mode of a thread that runs a snippet between two steps: it records nothing, and its time is taken out of the step.
pub(crate) const SUSPENDED: u8 = 1;
/// Mode of a thread that runs a snippet beside training: it records nothing, and must not train.
pub(crate) const BESIDE: u8 = 2;
/// Mode of a thread that tests the layers at install: events are counted and not recorded.
pub(crate) const TESTING: u8 = 3;

/// Threads that run a snippet between two steps: while there is one, autograd's threads record nothing.
pub(crate) static SUSPENSIONS: AtomicU64 = AtomicU64::new(0);

/// State of a thread. It is `const` and has no destructor, so that access is one address computation, at any time.
#[derive(Debug)]
pub(crate) struct ThreadState {
    ring: Cell<Option<&'static Ring>>,
    /// Whether there was no memory for a ring, or the thread is over.
    inert: Cell<bool>,
    /// [`RECORD`], [`SUSPENDED`], [`BESIDE`] or [`TESTING`].
    pub(crate) mode: Cell<u8>,
    /// Whether the outermost call now open records the calls within it.
    pub(crate) detail: Cell<bool>,
    /// Number of open module calls, as far as they are recorded.
    pub(crate) depth: Cell<u32>,
    /// Open calls of `backward()`.
    pub(crate) backward: OpenIntervals,
    /// Open autograd nodes.
    pub(crate) nodes: OpenIntervals,
    /// Open optimizer steps.
    pub(crate) optimizers: OpenIntervals,
    /// Open calls of a DataLoader's `__next__`.
    pub(crate) data: OpenIntervals,
    /// Open waits for collectives.
    pub(crate) waits: OpenIntervals,
    /// Open saves of checkpoints.
    pub(crate) checkpoints: OpenIntervals,
    /// The suspension that is open.
    pub(crate) suspensions: OpenIntervals,
    /// When the first autograd node of the outermost open `backward()` began, in ticks; 0: not yet.
    pub(crate) first_node: Cell<u64>,
    /// When the last autograd node of the outermost open `backward()` ended, in ticks; 0: not yet.
    pub(crate) last_node: Cell<u64>,
    /// Whether the open `backward()` does without the callback of ranges; see [`super::ranges_in_passes`].
    pub(crate) pass_without_ranges: Cell<bool>,
    /// The optimizer whose step is open.
    pub(crate) optimizer: Cell<u64>,
    /// Where torch's hook before steps began the outermost open step of an optimizer, one more than the passes that were open on
    /// this thread then; else 0.
    pub(crate) optimizer_by_hooks: Cell<u32>,
    /// Whether an optimizer has stepped in the backward pass that is open, with whose end the training step ends.
    pub(crate) ends_with_pass: Cell<bool>,
    /// Whether a training step ended on this thread and no outermost module has been called since.
    pub(crate) between_steps: Cell<bool>,
    /// Whether an outermost module was called in the step that ended last.
    pub(crate) forward_before: Cell<bool>,
    /// Whether a backward pass has ended on this thread since the last training step ended.
    pub(crate) pass_seen: Cell<bool>,
    /// Whether one ended in the step that ended last.
    pub(crate) pass_before: Cell<bool>,
    /// Steps of the primary optimizer since then that belong to that step.
    pub(crate) repeated: Cell<u32>,
    /// Whether a DataLoader was asked for a batch on this thread since the last training step ended.
    pub(crate) data_seen: Cell<bool>,
    /// Key of the collective being issued.
    pub(crate) collective: Cell<u64>,
    /// Whether the backend has begun to time that collective.
    pub(crate) collective_timed: Cell<bool>,
    /// Whether the next wait is for a collective that the current stream waits for and that was issued as a synchronous one.
    pub(crate) collective_on_stream: Cell<bool>,
    /// Outermost modules known to be registered, by address, as of `roots_generation`.
    pub(crate) roots: [Cell<usize>; 8],
    /// Whether each of `roots` has parameters, one bit for each.
    pub(crate) roots_with_parameters: Cell<u8>,
    /// Whether each of `roots` had no parameters and was called only once.
    pub(crate) roots_maybe_unbuilt: Cell<u8>,
    /// Whether the outermost module that was called last has parameters.
    pub(crate) root_has_parameters: Cell<bool>,
    /// Whether the outermost call that began last trains; see [`super::call_mode`].
    pub(crate) call_mode: Cell<u64>,
    /// The generation of modules for which `roots` holds; see [`super::module_names`].
    pub(crate) roots_generation: Cell<u64>,
    /// Open ranges that the program names.
    pub(crate) spans: OpenSpans,
    /// Module calls while [`TESTING`].
    pub(crate) test_calls: Cell<u32>,
    /// User ranges with the name of the test while [`TESTING`].
    pub(crate) test_ranges: Cell<u32>,
}

thread_local! {
    static STATE: ThreadState = const {
        ThreadState {
            ring: Cell::new(None),
            inert: Cell::new(false),
            mode: Cell::new(RECORD),
            detail: Cell::new(false),
            depth: Cell::new(0),
            backward: OpenIntervals::new(),
            nodes: OpenIntervals::new(),
            optimizers: OpenIntervals::new(),
            data: OpenIntervals::new(),
            waits: OpenIntervals::new(),
            checkpoints: OpenIntervals::new(),
            suspensions: OpenIntervals::new(),
            first_node: Cell::new(0),
            last_node: Cell::new(0),
            pass_without_ranges: Cell::new(false),
            optimizer: Cell::new(0),
            optimizer_by_hooks: Cell::new(0),
            ends_with_pass: Cell::new(false),
            between_steps: Cell::new(false),
            forward_before: Cell::new(false),
            pass_seen: Cell::new(false),
            pass_before: Cell::new(false),
            repeated: Cell::new(0),
            data_seen: Cell::new(false),
            collective: Cell::new(0),
            collective_timed: Cell::new(false),
            collective_on_stream: Cell::new(false),
            roots: [const { Cell::new(0) }; 8],
            roots_with_parameters: Cell::new(0),
            roots_maybe_unbuilt: Cell::new(0),
            root_has_parameters: Cell::new(false),
            call_mode: Cell::new(0),
            roots_generation: Cell::new(0),
            spans: OpenSpans::new(),
            test_calls: Cell::new(0),
            test_ranges: Cell::new(0),
        }
    };
    /// Gives the ring back when the thread ends. Only threads with a ring have this.
    static RETURN: ReturnRing = const { ReturnRing };
}

struct ReturnRing;

impl Drop for ReturnRing {
    fn drop(&mut self) {
        STATE.with(|state| {
            state.inert.set(true);
            if let Some(ring) = state.ring.take() {
                ring.finish();
            }
        });
    }
}

/// Makes the thread that continues in a forked child give up its ring, which is not read there, and forget what was open.
pub(super) fn retire() {
    let _ = STATE.try_with(|state| {
        state.ring.set(None);
        state.forget_open();
    });
}

/// Whether the calling thread records, where recording is on.
pub(super) fn records() -> bool {
    STATE.try_with(|state| state.mode.get() == RECORD).unwrap_or(false)
}

/// Resets the state of the thread that begins to record in a forked child: what was open while nothing was recorded does not count.
pub(super) fn begin_anew() {
    SUSPENSIONS.store(0, Ordering::Relaxed);
    with(|state| {
        state.mode.set(RECORD);
        state.forget_open();
    });
}

/// This thread's state.
#[inline(always)]
pub(crate) fn with<T>(f: impl FnOnce(&ThreadState) -> T) -> T {
    STATE.with(f)
}

impl ThreadState {
    /// Forgets what is open, and what is known of the step.
    fn forget_open(&self) {
        self.detail.set(false);
        self.depth.set(0);
        let intervals = [&self.backward, &self.nodes, &self.optimizers, &self.data, &self.waits];
        for bits in intervals.into_iter().chain([&self.checkpoints, &self.suspensions]) {
            bits.forget();
        }
        let flags = [
            &self.pass_without_ranges,
            &self.ends_with_pass,
            &self.between_steps,
            &self.forward_before,
            &self.pass_seen,
        ];
        for flag in flags.into_iter().chain([&self.pass_before, &self.data_seen, &self.collective_timed]) {
            flag.set(false);
        }
        self.collective_on_stream.set(false);
        for number in [&self.first_node, &self.last_node, &self.optimizer, &self.collective] {
            number.set(0);
        }
        self.repeated.set(0);
        self.optimizer_by_hooks.set(0);
        self.spans.forget();
    }

    #[inline(always)]
    fn ring(&self) -> Option<&'static Ring> {
        match self.ring.get() {
            Some(ring) => Some(ring),
            None => self.acquire(),
        }
    }

    #[cold]
    fn acquire(&self) -> Option<&'static Ring> {
        if self.inert.get() || process_flag::is_child() {
            return None;
        }
        let ring = Ring::acquire();
        self.inert.set(ring.is_none());
        self.ring.set(ring);
        self.know_torch_thread();
        if ring.is_some() {
            RETURN.with(|_| {});
        }
        ring
    }

    /// Notes torch's number of this thread in the ring, as far as it is known yet.
    #[cold]
    pub(crate) fn know_torch_thread(&self) {
        if let Some(ring) = self.ring.get() {
            ring.set_torch_thread(libtorch::current_thread());
        }
    }

    /// Begins an interval in this thread's ring; see [`Ring::begin`].
    #[inline(always)]
    pub(crate) fn begin(&self, table: RecordTable, record: RingRecord) -> bool {
        match self.ring() {
            Some(ring) => ring.begin(table, record),
            None => without_ring(table),
        }
    }

    /// Ends an interval in this thread's ring; see [`Ring::end`].
    #[inline(always)]
    pub(crate) fn end(&self, record: RingRecord) {
        if let Some(ring) = self.ring.get() {
            ring.end(record);
        }
    }

    /// Writes a single record into this thread's ring; see [`Ring::instant`].
    #[inline(always)]
    pub(crate) fn instant(&self, record: RingRecord) -> bool {
        match self.ring() {
            Some(ring) => ring.instant(record),
            None => without_ring(record.table()),
        }
    }

    /// Adds to an open interval in this thread's ring; see [`Ring::write_required`].
    pub(crate) fn write_required(&self, record: RingRecord) {
        if let Some(ring) = self.ring.get() {
            ring.write_required(record);
        }
    }

    /// Adds to a row, if there is room; see [`Ring::write_optional`].
    pub(crate) fn write_optional(&self, record: RingRecord) {
        if let Some(ring) = self.ring.get() {
            ring.write_optional(record);
        }
    }

    /// Begins an interval that `bits` notes.
    pub(crate) fn open(&self, bits: &OpenIntervals, kind: RecordKind, payload: u64) {
        self.open_if(true, bits, kind, payload);
    }

    /// Begins an interval that `bits` notes; records it if its layer is `on`.
    pub(crate) fn open_if(&self, on: bool, bits: &OpenIntervals, kind: RecordKind, payload: u64) {
        if on {
            self.open_marked(bits, kind, payload, 0);
        } else {
            bits.open(|| false);
        }
    }

    /// Begins an interval that `bits` notes, with a device's event `mark` (0: none). Returns whether it was recorded.
    pub(crate) fn open_marked(&self, bits: &OpenIntervals, kind: RecordKind, payload: u64, mark: u16) -> bool {
        let wanted = self.mode.get() == RECORD && ENABLED.load(Ordering::Relaxed);
        let mut begun = false;
        bits.open(|| {
            begun = wanted && self.begin(kind.table(), RingRecord::new(kind, payload, ticks(), 0, 0).marked(mark));
            begun
        });
        begun
    }

    /// Ends the innermost interval that `bits` notes. Returns whether its beginning was recorded.
    pub(crate) fn close(&self, bits: &OpenIntervals, kind: RecordKind, payload: u64, a: u64, b: u64) -> bool {
        let recorded = bits.close();
        if recorded {
            self.end(RingRecord::new(kind, payload, ticks(), a, b));
        }
        recorded
    }

    /// Whether this thread is inside a backward pass, its own or a node that the engine gave to it.
    #[inline(always)]
    pub(crate) fn is_in_backward(&self) -> bool {
        self.backward.depth() + self.nodes.depth() > 0 || runs_elsewhere()
    }

    /// Whether nothing of training is open on this thread.
    pub(crate) fn is_idle(&self) -> bool {
        self.depth.get() + self.optimizers.depth() + self.data.depth() == 0 && !self.is_in_backward()
    }
}

/// Whether the calling thread may be one of autograd's engine, inside a backward pass that another thread called. True only where
/// nodes are not watched: then all calls off the training thread count while a pass is open on any thread.
#[inline]
fn runs_elsewhere() -> bool {
    !WATCHED.load(Ordering::Relaxed)
        && PASSES.load(Ordering::Relaxed) > 0
        && TRAINING_THREAD.load(Ordering::Relaxed) != identifier()
}

#[cold]
fn without_ring(table: RecordTable) -> bool {
    LOST.counter(table).fetch_add(1, Ordering::Relaxed);
    false
}

/// Whether the calling thread is the training thread, or there is none yet.
pub(crate) fn may_train() -> bool {
    let training = TRAINING_THREAD.load(Ordering::Relaxed);
    training == 0 || training == identifier()
}

/// Python's identifier of the calling thread (`threading.get_ident`).
pub(crate) fn identifier() -> u64 {
    // SAFETY: pthread_self has no arguments and always succeeds.
    unsafe { libc::pthread_self() as u64 }
}
