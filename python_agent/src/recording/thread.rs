//! What each thread knows of itself: its ring, how deep it is in what, and whether it records at all.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::autograd_passes::{PASSES, WATCHED};
use super::clock::ticks;
use super::open_spans::OpenSpans;
use super::ring::{LOST, Ring};
use super::{libtorch, process_flag};
use crate::shared::{ENABLED, TRAINING_THREAD};
use probe_trace::record::{Kind, Record, RecordTable};

/// Records.
pub(crate) const RECORD: u8 = 0;
/// Runs a snippet between two steps: records nothing, and its time is taken out of the step.
pub(crate) const SUSPENDED: u8 = 1;
/// Runs a snippet beside training: records nothing, and must not train.
pub(crate) const BESIDE: u8 = 2;
/// Tests the layers at install: what happens is counted and not recorded.
pub(crate) const TESTING: u8 = 3;

/// Threads that run a snippet between two steps: while there is one, autograd's threads record nothing.
pub(crate) static SUSPENSIONS: AtomicU64 = AtomicU64::new(0);

/// For intervals of which only the beginning knows whether it was recorded, and the end must: a stack of bits.
#[derive(Debug)]
pub(crate) struct Bits {
    depth: Cell<u32>,
    bits: Cell<u64>,
}

impl Bits {
    const fn new() -> Self {
        Self { depth: Cell::new(0), bits: Cell::new(0) }
    }

    fn forget(&self) {
        self.depth.set(0);
    }

    /// How many intervals are open.
    #[inline(always)]
    pub(crate) fn depth(&self) -> u32 {
        self.depth.get()
    }

    /// Opens an interval; `record` says whether it was recorded and is not asked where the stack is full.
    #[inline(always)]
    pub(crate) fn open(&self, record: impl FnOnce() -> bool) {
        let depth = self.depth.get();
        if depth < 64 {
            let bit = u64::from(record()) << depth;
            self.bits.set(self.bits.get() & !(1 << depth) | bit);
        }
        self.depth.set(depth + 1);
    }

    /// Closes the innermost one: whether its beginning was recorded.
    #[inline(always)]
    pub(crate) fn close(&self) -> bool {
        let Some(depth) = self.depth.get().checked_sub(1) else { return false };
        self.depth.set(depth);
        depth < 64 && self.bits.get() >> depth & 1 == 1
    }
}

/// State of a thread. `const` and without a destructor, so that reaching it is one address computation, at any time.
#[derive(Debug)]
pub(crate) struct ThreadState {
    ring: Cell<Option<&'static Ring>>,
    /// No ring could be had, or the thread is over.
    inert: Cell<bool>,
    /// [`RECORD`] and its siblings.
    pub(crate) mode: Cell<u8>,
    /// Whether the outermost call now open records the calls within it.
    pub(crate) detail: Cell<bool>,
    /// Module calls open, as far as they are recorded.
    pub(crate) depth: Cell<u32>,
    /// `backward()` calls open.
    pub(crate) backward: Bits,
    /// Autograd nodes open.
    pub(crate) nodes: Bits,
    /// Optimizer steps open.
    pub(crate) optimizers: Bits,
    /// DataLoader `__next__`s open.
    pub(crate) data: Bits,
    /// Waits for collectives open.
    pub(crate) waits: Bits,
    /// Saves open.
    pub(crate) checkpoints: Bits,
    /// The suspension that is open.
    pub(crate) suspensions: Bits,
    /// When the first autograd node of the outermost open `backward()` began, and the last one ended; 0: not yet.
    pub(crate) first_node: Cell<u64>,
    /// See `first_node`.
    pub(crate) last_node: Cell<u64>,
    /// The optimizer whose step is open.
    pub(crate) optimizer: Cell<u64>,
    /// A training step ended on this thread and no outermost module has been called since.
    pub(crate) between_steps: Cell<bool>,
    /// One had been called in that step.
    pub(crate) forward_before: Cell<bool>,
    /// A DataLoader was asked on this thread since the last training step ended.
    pub(crate) data_seen: Cell<bool>,
    /// Key of the collective being issued.
    pub(crate) collective: Cell<u64>,
    /// Whether the backend has begun to time it.
    pub(crate) collective_timed: Cell<bool>,
    /// Whether the next wait is for one that a stream waits for, and that was issued for that.
    pub(crate) collective_on_stream: Cell<bool>,
    /// Outermost modules known to be registered, by address, as of `roots_generation`.
    pub(crate) roots: [Cell<usize>; 8],
    /// Whether the outermost module that was called last has parameters, for each of `roots`, and for the one itself.
    pub(crate) roots_with_parameters: Cell<u8>,
    pub(crate) root_has_parameters: Cell<bool>,
    /// How it was called; see [`super::call_mode`].
    pub(crate) call_mode: Cell<u64>,
    /// See [`super::names::generation`].
    pub(crate) roots_generation: Cell<u64>,
    /// Ranges that the program names.
    pub(crate) spans: OpenSpans,
    /// What happened while [`TESTING`]: module calls, and user ranges of the right name.
    pub(crate) test_calls: Cell<u32>,
    /// See `test_calls`.
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
            backward: Bits::new(),
            nodes: Bits::new(),
            optimizers: Bits::new(),
            data: Bits::new(),
            waits: Bits::new(),
            checkpoints: Bits::new(),
            suspensions: Bits::new(),
            first_node: Cell::new(0),
            last_node: Cell::new(0),
            optimizer: Cell::new(0),
            between_steps: Cell::new(false),
            forward_before: Cell::new(false),
            data_seen: Cell::new(false),
            collective: Cell::new(0),
            collective_timed: Cell::new(false),
            collective_on_stream: Cell::new(false),
            roots: [const { Cell::new(0) }; 8],
            roots_with_parameters: Cell::new(0),
            root_has_parameters: Cell::new(false),
            call_mode: Cell::new(0),
            roots_generation: Cell::new(0),
            spans: OpenSpans::new(),
            test_calls: Cell::new(0),
            test_ranges: Cell::new(0),
        }
    };
    /// Gives the ring back when the thread ends. Only threads with a ring have one.
    static RETURN: Return = const { Return };
}

struct Return;

impl Drop for Return {
    fn drop(&mut self) {
        STATE.with(|state| {
            state.inert.set(true);
            if let Some(ring) = state.ring.take() {
                ring.finish();
            }
        });
    }
}

/// The thread goes on in a forked child, where nobody reads rings: it gives its own up.
pub(super) fn retire() {
    let _ = STATE.try_with(|state| {
        state.inert.set(true);
        state.ring.set(None);
    });
}

/// The thread goes on in a forked child that is an agent of its own: nothing is open there.
pub(super) fn begin_anew() {
    with(|state| {
        state.ring.set(None);
        state.inert.set(false);
        state.mode.set(RECORD);
        state.detail.set(false);
        state.depth.set(0);
        let intervals = [&state.backward, &state.nodes, &state.optimizers, &state.data, &state.waits];
        for bits in intervals.into_iter().chain([&state.checkpoints, &state.suspensions]) {
            bits.forget();
        }
        state.between_steps.set(false);
        state.forward_before.set(false);
        state.data_seen.set(false);
        state.spans.forget();
    });
}

/// This thread's state.
#[inline(always)]
pub(crate) fn with<T>(f: impl FnOnce(&ThreadState) -> T) -> T {
    STATE.with(f)
}

impl ThreadState {
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

    /// Says by which number torch knows this thread, as far as that is known yet.
    #[cold]
    pub(crate) fn know_torch_thread(&self) {
        if let Some(ring) = self.ring.get() {
            ring.set_torch_thread(libtorch::current_thread());
        }
    }

    /// See [`Ring::begin`].
    #[inline(always)]
    pub(crate) fn begin(&self, table: RecordTable, record: Record) -> bool {
        match self.ring() {
            Some(ring) => ring.begin(table, record),
            None => without_ring(table),
        }
    }

    /// See [`Ring::end`].
    #[inline(always)]
    pub(crate) fn end(&self, record: Record) {
        if let Some(ring) = self.ring.get() {
            ring.end(record);
        }
    }

    /// See [`Ring::instant`].
    #[inline(always)]
    pub(crate) fn instant(&self, record: Record) -> bool {
        match self.ring() {
            Some(ring) => ring.instant(record),
            None => without_ring(record.table()),
        }
    }

    /// See [`Ring::annotate`].
    pub(crate) fn annotate(&self, record: Record) {
        if let Some(ring) = self.ring.get() {
            ring.annotate(record);
        }
    }

    /// See [`Ring::remark`].
    pub(crate) fn remark(&self, record: Record) {
        if let Some(ring) = self.ring.get() {
            ring.remark(record);
        }
    }

    /// Begins an interval that a stack of bits remembers.
    pub(crate) fn open(&self, bits: &Bits, kind: Kind, payload: u64) {
        self.open_if(true, bits, kind, payload);
    }

    /// Begins an interval that a stack of bits remembers, if its layer is on.
    pub(crate) fn open_if(&self, on: bool, bits: &Bits, kind: Kind, payload: u64) {
        if on {
            self.open_marked(bits, kind, payload, 0);
        } else {
            bits.open(|| false);
        }
    }

    /// The same with a device's event (0: none); whether it was recorded.
    pub(crate) fn open_marked(&self, bits: &Bits, kind: Kind, payload: u64, mark: u16) -> bool {
        let wanted = self.mode.get() == RECORD && ENABLED.load(Ordering::Relaxed);
        let mut begun = false;
        bits.open(|| {
            begun = wanted && self.begin(kind.table(), Record::new(kind, payload, ticks(), 0, 0).marked(mark));
            begun
        });
        begun
    }

    /// Ends it; whether its beginning was recorded.
    pub(crate) fn close(&self, bits: &Bits, kind: Kind, payload: u64, a: u64, b: u64) -> bool {
        let recorded = bits.close();
        if recorded {
            self.end(Record::new(kind, payload, ticks(), a, b));
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

/// Whether the calling thread may be one of the engine's, inside a backward pass that another thread called. Asked only
/// where its nodes don't tell: then whatever is called while a pass is open elsewhere, off the training thread, counts.
#[inline]
fn runs_elsewhere() -> bool {
    !WATCHED.load(Ordering::Relaxed)
        && PASSES.load(Ordering::Relaxed) > 0
        && TRAINING_THREAD.load(Ordering::Relaxed) != identifier()
}

#[cold]
fn without_ring(table: RecordTable) -> bool {
    LOST.of(table).fetch_add(1, Ordering::Relaxed);
    false
}

/// Python's name for the calling thread (`threading.get_ident`).
pub(crate) fn identifier() -> u64 {
    // SAFETY: pthread_self has no arguments and always succeeds.
    unsafe { libc::pthread_self() as u64 }
}
