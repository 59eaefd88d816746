//! Takes in records: the time before a record goes to what is open, and the record to the module for its kind.

use probe_proto::config::Layers;

use super::analyser::Analyser;
use super::collectives::PENDING;
use super::device::{Device, DeviceTime};
use super::drops::INCOMPLETE;
use super::frame::Frame;
use super::kind::TORCH_TRACE;
use super::payload;
use super::steps::StepEnd;
use super::symbol_lookup::Names;
use super::thread::Thread;
use crate::record::{Kind, Record};
use crate::row_buffer::RowBuffer;

impl<N: Names> Analyser<N> {
    /// Takes the next record of `thread`, with when a device reached it.
    pub fn feed(&mut self, thread: usize, record: Record, device: Device, sink: &mut RowBuffer) {
        let (Some(kind), true) = (record.kind(), thread < self.threads.len()) else { return };
        let Some(clock) = &mut self.clock else { return };
        let ticks = record.ts;
        // From here on all times are points in whole units (clock.rs), which never go back on a thread: the time between
        // two of them is counted once and exactly.
        let mut record = record;
        let has_parted = clock.has_parted(ticks);
        record.ts = self.threads[thread].not_before(clock.take(ticks));
        self.threads[thread].works |= kind != Kind::Pause;
        if self.threads[thread].works {
            self.newest = self.newest.max(record.ts);
        }
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
        // Python also collects garbage before the first step.
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
            // For other kinds the event is recorded before the time is read.
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
            Kind::BackwardBegin => self.backward_begin(thread, record, sink),
            Kind::BackwardEnd => self.backward_end(thread, record, sink),
            Kind::OptimizerBegin => {
                self.stepped = true;
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
                self.end_step(thread, record.ts, record.b as i64, StepEnd::of(record.payload()), device, sink)
            }
            Kind::DataBegin => self.data_begin(thread, record, sink),
            Kind::Loaded => self.data_loaded(thread, record),
            Kind::Padding => self.data_padding(thread, record),
            Kind::DataEnd => self.data_end(thread, record, sink),
            Kind::SuspendBegin => self.threads[thread].push(Frame::Suspended),
            Kind::SuspendEnd => self.close(thread, |frame| matches!(frame, Frame::Suspended), sink),
            Kind::CheckpointBegin => self.threads[thread].push(Frame::Checkpoint { begin: record.ts }),
            Kind::CheckpointEnd => self.close(thread, |frame| matches!(frame, Frame::Checkpoint { .. }), sink),
            Kind::Saved => self.saved(thread, record, sink),
            Kind::Memory => self.memory(thread, record, sink),
            Kind::Allocated => self.threads[thread].allocated(record),
            Kind::Span => self.span(thread, record, sink),
            Kind::Metric => self.metric(record, sink),
            Kind::Copy => self.copy(thread, record, sink),
            Kind::Sync => self.read(thread, record, sink),
            Kind::OperatorCount => self.operator_count(record, sink),
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
            // Done above, before the time that has passed was credited.
            Kind::Resume => {}
        }
    }

    /// Takes out a frame that gets no row.
    fn close(&mut self, thread: usize, wanted: impl Fn(&Frame) -> bool, sink: &mut RowBuffer) {
        if let Some((_, missing @ 1..)) = self.threads[thread].take(wanted) {
            sink.dropped(TORCH_TRACE, INCOMPLETE, missing);
        }
    }

    /// Ends a drain, after all records up to `ticks` have been fed: forgets names that only those needed, and gives up operations
    /// that never ended.
    pub fn end_drain(&mut self, ticks: u64, last: bool, sink: &mut RowBuffer) {
        self.names.forget_before(ticks);
        let now = self.clock.as_ref().map_or(0, |clock| clock.at(ticks));
        if last {
            self.flush_reads(sink);
        }
        self.give_up_collectives(now, last, sink);
        self.report_groups(now.saturating_sub(PENDING), sink);
        if let Some(clock) = self.clock.as_ref().filter(|_| self.newest > 0) {
            sink.last_record_ns = clock.unix_ns(self.newest);
            sink.validates = self.trained && self.threads.iter().any(Thread::is_validating);
        }
    }
}
