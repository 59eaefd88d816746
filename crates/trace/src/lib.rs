//! Records of the rings to rows of the tables, on the background thread.
//!
//! [`Analyser::feed`] takes records one by one, each thread's in order and the threads merged by time. Each thread has a
//! stack of what is open on it ([`thread`]); the time between two records goes to the top of the stack, so that it is
//! counted once and own times add up. Records may be missing or make no sense; nothing here panics over that.

use probe_proto::config::Layers;
use probe_proto::encode::StringTable;
use probe_proto::table::Text;

use crate::clock::Sample;
use crate::record::{Kind, Record};
use crate::sink::Sink;

mod backward;
mod calls;
pub mod clock;
mod collective_row;
mod collectives;
pub mod custom;
pub mod cut;
mod data;
mod device;
mod device_step;
mod forward;
pub mod keep;
mod kind;
pub mod known;
pub mod mapping;
mod memory;
mod meter;
mod module_memory;
mod modules;
pub mod names;
pub mod open;
mod operators;
mod parts;
mod pauses;
pub mod payload;
mod processor;
pub mod record;
pub mod recover;
mod settling;
pub mod sink;
mod spans;
mod state;
mod steps;
#[cfg(test)]
mod tests;
mod thread;
mod validation;

use calls::{CallId, Calls, EndedThreads, NO_CALL};
use clock::{Clock, seconds};
pub use device::Device;
use device::DeviceTime;
pub use kind::{
    COPIES, DATA_TRACE, MEMORY, METRICS, NCCL_TRACE, PAUSES, RecordTable, SPANS, STEPS, SYNC_POINTS, TORCH_TRACE,
};
pub use meter::Counts;
use meter::Meter;
use modules::Modules;
use names::Names;
use settling::Settling;
use steps::Ended;
use thread::{Frame, Thread};

/// `python.checkpoints`, as drops are counted.
pub const CHECKPOINTS: &str = "python.checkpoints";
/// Why rows are missing after a ring had no room.
pub const RING_FULL: &str = "ring full";
/// Why the row of a step is missing in which a clock stood still.
const CLOCK_STOPPED: &str = "a clock stood still";
/// Why rows are missing of intervals whose end never came.
const INCOMPLETE: &str = "incomplete";

/// All that is known between two drains.
#[derive(Debug)]
pub struct Analyser<N> {
    names: N,
    clock: Option<Clock>,
    threads: Vec<Thread>,
    ended: EndedThreads,
    modules: Modules,
    calls: Calls,
    /// Steps finished.
    step: i64,
    /// When the step under way began.
    step_begin: Option<u64>,
    /// Whether modules are recorded.
    detail: bool,
    /// Whether a capture by torch.profiler is on.
    captured: bool,
    /// Something that the step's times are made of was lost.
    broken: bool,
    /// Recording began in the middle of the step under way, so it gets no row.
    is_partial: bool,
    /// A backward pass or an optimizer's step was seen: this process trains.
    trained: bool,
    /// Optimizers get rows.
    optimizers: bool,
    operations: collectives::Operations,
    /// Where the host read tensors in the step under way.
    reads: Vec<operators::Read>,
    /// Peak memory of a device, as its allocator said at the end of the step under way.
    peak: Option<f64>,
    queue: device_step::Queue,
    /// Processor time of the thread that ends steps.
    processor: processor::ProcessorTimes,
    /// Garbage collections in the step under way.
    collecting: u64,
    /// Whether they are recorded.
    pauses: bool,
    meter: Meter,
    settling: Settling,
    /// Shape given to an outermost module with parameters, the newest.
    batch_shape: Option<Text>,
    words: Words,
    /// When the newest record was made.
    newest: u64,
}

/// What a row of `python.torch_trace` says of time.
#[derive(Debug, Clone, Copy)]
struct Times {
    begin: u64,
    /// On the host.
    own: u64,
    total: u64,
    /// On the device.
    device: Option<u64>,
    device_total: Option<u64>,
}

impl Times {
    /// Own time and total in seconds: the host's, or the device's, since what was launched on one is not done when the
    /// call returns.
    fn where_it_computes(self, on_host: bool) -> (Option<f64>, Option<f64>) {
        match on_host {
            true => (Some(seconds(self.own)), Some(seconds(self.total))),
            false => (self.device.map(seconds), self.device_total.map(seconds)),
        }
    }
}

/// Strings that many rows have, by id.
#[derive(Debug, Default)]
struct Words {
    forward: Option<Text>,
    validation: Option<Text>,
    backward: Option<Text>,
    recompute: Option<Text>,
    step: Option<Text>,
    host: Option<Text>,
    /// What ends steps, as [`Ended`].
    ended: [Option<Text>; 5],
}

fn word(place: &mut Option<Text>, strings: &mut StringTable, text: &str) -> Text {
    *place.get_or_insert_with(|| strings.id(text))
}

impl<N: Names> Analyser<N> {
    /// One that asks `names` who is who.
    pub fn new(names: N) -> Self {
        Self {
            names,
            clock: None,
            threads: Vec::new(),
            ended: EndedThreads::default(),
            modules: Modules::default(),
            calls: Calls::default(),
            step: 0,
            step_begin: None,
            detail: false,
            captured: false,
            broken: false,
            is_partial: false,
            trained: false,
            optimizers: true,
            operations: collectives::Operations::default(),
            reads: Vec::new(),
            peak: None,
            queue: device_step::Queue::default(),
            processor: processor::ProcessorTimes::default(),
            collecting: 0,
            pauses: false,
            meter: Meter::default(),
            settling: Settling::default(),
            batch_shape: None,
            words: Words::default(),
            newest: 0,
        }
    }

    /// Takes a comparison of the clocks into account. Nothing can be fed before the first.
    pub fn compare_clocks(&mut self, sample: Sample) {
        self.clock.get_or_insert_with(|| Clock::new(sample)).compare(sample);
    }

    /// Whether the clocks have been compared over less than a few milliseconds when `sample` was taken.
    pub fn is_new_at(&self, sample: Sample) -> bool {
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

    /// What the newest steps were like.
    pub fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }

    /// The thread behind the number `thread`, with its operating-system id. Numbers are small: rings in order.
    pub fn name_thread(&mut self, thread: usize, id: i64) {
        if self.threads.len() <= thread {
            self.threads.resize_with(thread + 1, Thread::default);
        }
        self.threads[thread].id = id;
    }

    /// The number by which autograd nodes say that the thread behind `thread` made them; 0: it is not known.
    pub fn know_torch_thread(&mut self, thread: usize, number: u64) {
        if let Some(thread) = self.threads.get_mut(thread).filter(|_| number != 0) {
            thread.torch_thread = number;
        }
    }

    /// The thread is over; its number may come to mean another one.
    pub fn end_thread(&mut self, thread: usize) {
        if let Some(thread) = self.threads.get_mut(thread) {
            // What it did in this step stays done.
            let parts = std::mem::take(&mut thread.parts);
            // And backward may still come to it: `nn.DataParallel` has a thread for each forward pass of a replica.
            self.ended.push(thread.torch_thread, self.step, std::mem::take(&mut thread.breakpoints));
            *thread = Thread::default();
            thread.parts = parts;
        }
    }

    /// Takes the next record of `thread`, and when a device came to it.
    pub fn feed(&mut self, thread: usize, record: Record, device: Device, sink: &mut Sink) {
        let (Some(kind), true) = (record.kind(), thread < self.threads.len()) else { return };
        let Some(clock) = &mut self.clock else { return };
        let ticks = record.ts;
        // From here on all times are points in whole units (clock.rs), which never go back on a thread: what passes
        // between two of them is counted once and exactly.
        let mut record = record;
        let has_parted = clock.has_parted(ticks);
        record.ts = self.threads[thread].not_before(clock.take(ticks));
        self.newest = self.newest.max(record.ts);
        if kind == Kind::BackwardEnd {
            let at = |ticks| if ticks == 0 { 0 } else { clock.at(ticks) };
            (record.a, record.b) = (at(record.a), at(record.b));
        }
        if has_parted {
            self.give_step_up(record.ts, sink);
        }
        if record.lost_detail() {
            self.threads[thread].taint();
        }
        self.broken |= record.lost_other();
        if kind == Kind::Resume {
            return self.resume(record.ts, record.a == 1);
        }
        self.meter.count(kind);
        // Python collects garbage also before there is anything to train.
        if kind != Kind::Pause {
            self.step_begin.get_or_insert(record.ts);
        }
        if !kind.is_within_pass() {
            self.end_implicit_pass(thread, sink);
        }
        self.threads[thread].advance(record.ts, &mut self.calls);
        self.threads[thread].advance_device(device, &mut self.calls);
        if device != Device::None {
            self.meter.count_mark();
            // Of the others the event is recorded before the time is read.
            let exact = matches!(kind, Kind::Exit | Kind::NodeStart | Kind::NodeEnd);
            self.queue.note(record.ts, device, exact);
        }
        match kind {
            Kind::Enter => self.enter(thread, record, device, ticks, sink),
            Kind::Exit => self.exit(thread, record, device, sink),
            Kind::Shape => self.shape(thread, record, sink),
            Kind::NodeStart => self.node_start(thread, record),
            Kind::NodeEnd => self.node_end(thread),
            Kind::GradReady => self.gradient_ready(thread, record),
            Kind::BackwardBegin => self.backward_begin(thread, record.ts, sink),
            Kind::BackwardEnd => self.backward_end(thread, record, sink),
            Kind::OptimizerBegin => {
                self.learns(thread, record.ts, sink);
                self.threads[thread].push(Frame::Optimizer {
                    begin: record.ts,
                    own: 0,
                    class: record.payload(),
                    device: DeviceTime::default(),
                    device_begin: device,
                });
            }
            Kind::OptimizerEnd => self.optimizer_end(thread, record, device, sink),
            Kind::MarkStep => {
                self.end_step(thread, record.ts, record.b as i64, Ended::of(record.payload()), device, sink)
            }
            Kind::DataBegin => self.data_begin(thread, record, sink),
            Kind::DataEnd => self.data_end(thread, record, sink),
            Kind::SuspendBegin => self.threads[thread].push(Frame::Suspended),
            Kind::SuspendEnd => self.close(thread, |frame| matches!(frame, Frame::Suspended), sink),
            Kind::CheckpointBegin => self.threads[thread].push(Frame::Checkpoint { begin: record.ts }),
            Kind::CheckpointEnd => self.close(thread, |frame| matches!(frame, Frame::Checkpoint { .. }), sink),
            Kind::Memory => self.memory(thread, record, sink),
            Kind::Allocated => self.threads[thread].allocated(record),
            Kind::Span => self.span(thread, record, sink),
            Kind::Metric => self.metric(record, sink),
            Kind::Copy => self.copy(thread, record, sink),
            Kind::Sync => self.read(thread, record, sink),
            Kind::ProcessorTimes => self.processor.note(thread, record),
            Kind::Pause => self.pause(thread, record, sink),
            Kind::Detail => {
                self.detail = record.payload() & 1 != 0;
                self.captured = record.payload() & payload::CAPTURED != 0;
                let layers = Layers((record.payload() >> 1) as u16);
                (self.optimizers, self.pauses) = (layers.has("optimizer"), layers.has("pauses"));
            }
            Kind::WaitBegin | Kind::WaitEnd => self.wait(thread, kind, record, device, sink),
            Kind::Issue | Kind::Started | Kind::Finished | Kind::Done | Kind::Posted => {
                self.collective(thread, kind, record, device, sink);
            }
            // Above, before the time that has passed was credited.
            Kind::Resume => {}
        }
    }

    /// Takes out a frame whose end is all there is to say about it.
    fn close(&mut self, thread: usize, wanted: impl Fn(&Frame) -> bool, sink: &mut Sink) {
        if let Some((_, missing @ 1..)) = self.threads[thread].take(wanted) {
            sink.dropped(TORCH_TRACE, INCOMPLETE, missing);
        }
    }

    /// Shape of the first tensor given to an outermost module, the newest.
    pub fn batch_shape(&self) -> Option<Text> {
        self.batch_shape
    }

    /// The oldest call that is still open on any thread.
    fn oldest_open(&self) -> CallId {
        self.threads.iter().filter_map(Thread::outermost_call).map(|(call, _)| call).min().unwrap_or(NO_CALL)
    }

    /// Everything up to `ticks` has been fed: forgets what only the past needed, and gives up what never ended.
    pub fn settle(&mut self, ticks: u64, last: bool, sink: &mut Sink) {
        self.names.forget_before(ticks);
        let now = self.clock.as_ref().map_or(0, |clock| clock.at(ticks));
        if last {
            self.flush_reads(sink);
        }
        self.give_up_collectives(now, last, sink);
        self.report_groups(now.saturating_sub(collectives::PENDING), sink);
        if let Some(clock) = self.clock.as_ref().filter(|_| self.newest > 0) {
            sink.last_record_ns = clock.unix_ns(self.newest);
            sink.validates = self.trained && self.threads.iter().any(Thread::is_validating);
        }
    }
}
