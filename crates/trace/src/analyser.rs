//! The state of the analysis between two drains: what is open on each thread, the current step and the clocks. The modules
//! that turn records into rows add their methods to [`Analyser`].

use probe_proto::encode::StringTable;
use probe_proto::table::Text;

use super::batch_shapes::BatchShapes;
use super::calls::{CallId, EndedThreads, ModuleCalls, NO_CALL};
use super::clock::{ClockSample, TickClock, seconds};
use super::device_step::DeviceQueue;
use super::meter::DetailMeter;
use super::modules::Modules;
use super::pending_collectives::PendingOperations;
use super::processor::ProcessorTimes;
use super::settling::SettlingDetector;
use super::symbol_lookup::SymbolLookup;
use super::tensor_read::TensorRead;
use super::thread::AnalysedThread;

/// The state of the analysis between two drains.
#[derive(Debug)]
pub struct Analyser<N> {
    pub(super) names: N,
    pub(super) clock: Option<TickClock>,
    pub(super) threads: Vec<AnalysedThread>,
    pub(super) ended: EndedThreads,
    pub(super) modules: Modules,
    pub(super) calls: ModuleCalls,
    /// Number of steps finished.
    pub(super) step: i64,
    /// When the current step began.
    pub(super) step_begin: Option<u64>,
    /// Whether modules are recorded.
    pub(super) detail: bool,
    /// Whether a capture by torch.profiler is on.
    pub(super) captured: bool,
    /// Whether a record that the step's times are computed from was lost.
    pub(super) broken: bool,
    /// Whether recording began in the middle of the current step, so that it gets no row.
    pub(super) is_partial: bool,
    /// Whether a backward pass or an optimizer's step was seen: this process trains.
    pub(super) trained: bool,
    /// Whether an optimizer has stepped.
    pub(super) stepped: bool,
    /// Whether a call ended the newest step: nothing trains.
    pub(super) infers: bool,
    /// Whether optimizers get rows.
    pub(super) optimizers: bool,
    pub(super) operations: PendingOperations,
    /// The host's reads of tensors in the current step.
    pub(super) reads: Vec<TensorRead>,
    /// Peak memory of a device, as its allocator reported at the end of the current step.
    pub(super) peak: Option<f64>,
    pub(super) queue: DeviceQueue,
    /// Processor time of the thread that ends steps.
    pub(super) processor: ProcessorTimes,
    /// Time of garbage collections in the current step.
    pub(super) collecting: u64,
    /// Whether garbage collections are recorded.
    pub(super) pauses: bool,
    pub(super) meter: DetailMeter,
    pub(super) settling: SettlingDetector,
    pub(super) batch_shapes: BatchShapes,
    pub(super) words: CommonTexts,
    /// When the newest record was made.
    pub(super) newest: u64,
}

/// The times of a row of `python.torch_trace`.
#[derive(Debug, Clone, Copy)]
pub(super) struct TraceRowTimes {
    pub(super) begin: u64,
    /// Own time on the host.
    pub(super) own: u64,
    pub(super) total: u64,
    /// Own time on the device.
    pub(super) device: Option<u64>,
    pub(super) device_total: Option<u64>,
}

impl TraceRowTimes {
    /// Own time and total in seconds: the host's, or the device's, because work that was launched on a device is not done
    /// when the call returns.
    pub(super) fn where_it_computes(self, on_host: bool) -> (Option<f64>, Option<f64>) {
        match on_host {
            true => (Some(seconds(self.own)), Some(seconds(self.total))),
            false => (self.device.map(seconds), self.device_total.map(seconds)),
        }
    }
}

/// Strings that many rows have, by id.
#[derive(Debug, Default)]
pub(super) struct CommonTexts {
    pub(super) forward: Option<Text>,
    pub(super) validation: Option<Text>,
    pub(super) backward: Option<Text>,
    pub(super) recompute: Option<Text>,
    pub(super) step: Option<Text>,
    pub(super) host: Option<Text>,
    /// Names of what ends steps, by number of [`StepEnd`](super::steps::StepEnd).
    pub(super) ended: [Option<Text>; 5],
}

/// The id of `text`, which `known` remembers.
pub(super) fn common_text(known: &mut Option<Text>, strings: &mut StringTable, text: &str) -> Text {
    *known.get_or_insert_with(|| strings.id(text))
}

impl<N: SymbolLookup> Analyser<N> {
    /// An analyser that looks names up in `names`.
    pub fn new(names: N) -> Self {
        Self {
            names,
            clock: None,
            threads: Vec::new(),
            ended: EndedThreads::default(),
            modules: Modules::default(),
            calls: ModuleCalls::default(),
            step: 0,
            step_begin: None,
            detail: false,
            captured: false,
            broken: false,
            is_partial: false,
            trained: false,
            stepped: false,
            infers: false,
            optimizers: true,
            operations: PendingOperations::default(),
            reads: Vec::new(),
            peak: None,
            queue: DeviceQueue::default(),
            processor: ProcessorTimes::default(),
            collecting: 0,
            pauses: false,
            meter: DetailMeter::default(),
            settling: SettlingDetector::default(),
            batch_shapes: BatchShapes::default(),
            words: CommonTexts::default(),
            newest: 0,
        }
    }

    /// Takes a comparison of the clocks into account. No record can be fed before the first one.
    pub fn compare_clocks(&mut self, sample: ClockSample) {
        self.clock.get_or_insert_with(|| TickClock::new(sample)).compare(sample);
    }

    /// Whether the clocks have been compared over less than a few milliseconds when `sample` was taken.
    pub fn is_new_at(&self, sample: ClockSample) -> bool {
        self.clock.as_ref().is_none_or(|clock| clock.is_new_at(sample))
    }

    /// Ticks in `nanoseconds`.
    pub fn ticks(&self, nanoseconds: u64) -> u64 {
        self.clock.as_ref().map_or(0, |clock| clock.ticks(nanoseconds))
    }

    /// Seconds that `ticks` take; 0 before the clocks have been compared.
    pub fn seconds(&self, ticks: u64) -> f64 {
        self.clock.as_ref().map_or(0.0, |clock| clock.seconds_in(ticks))
    }

    /// The meter of the newest steps.
    pub fn meter(&mut self) -> &mut DetailMeter {
        &mut self.meter
    }

    /// Sets the operating-system id of the thread with the number `thread`. Numbers are small: those of rings, in order.
    pub fn name_thread(&mut self, thread: usize, id: i64) {
        if self.threads.len() <= thread {
            self.threads.resize_with(thread + 1, AnalysedThread::default);
        }
        self.threads[thread].id = id;
    }

    /// Sets torch's number of the thread with the number `thread`, which autograd nodes have that it made; 0: not known.
    pub fn know_torch_thread(&mut self, thread: usize, number: u64) {
        if let Some(thread) = self.threads.get_mut(thread).filter(|_| number != 0) {
            thread.torch_thread = number;
        }
    }

    /// Ends a thread. Its number may be given to another one.
    pub fn end_thread(&mut self, thread: usize) {
        if let Some(thread) = self.threads.get_mut(thread) {
            // What the thread did in this step still counts.
            let parts = std::mem::take(&mut thread.parts);
            // A backward pass may still come to its calls: `nn.DataParallel` has a thread for each forward pass of a replica.
            self.ended.push(thread.torch_thread, self.step, std::mem::take(&mut thread.breakpoints));
            *thread = AnalysedThread::default();
            thread.parts = parts;
        }
    }

    /// The newest shape of the first tensor given to each outermost module with parameters.
    pub fn batch_shapes(&self) -> BatchShapes {
        self.batch_shapes
    }

    /// The oldest call that is still open on any thread.
    pub(super) fn oldest_open(&self) -> CallId {
        self.threads.iter().filter_map(AnalysedThread::outermost_call).map(|(call, _)| call).min().unwrap_or(NO_CALL)
    }
}
