//! Takes in records: the time before a record goes to what is open, and the record to the module for its kind.

use probe_proto::config::Layers;

use super::analyser::Analyser;
use super::collectives::PENDING;
use super::device::{DeviceTime, DeviceTimestamp};
use super::drops::INCOMPLETE;
use super::frame::ThreadFrame;
use super::kind::TORCH_TRACE;
use super::payload;
use super::steps::StepEnd;
use super::symbol_lookup::SymbolLookup;
use super::thread::AnalysedThread;
use crate::record::{RecordKind, RingRecord};
use crate::row_buffer::RowBuffer;

impl<N: SymbolLookup> Analyser<N> {
    /// Takes the next record of `thread`, with when a device reached it.
    pub fn feed(&mut self, thread: usize, record: RingRecord, device: DeviceTimestamp, sink: &mut RowBuffer) {
        let (Some(kind), true) = (record.kind(), thread < self.threads.len()) else { return };
        let Some(clock) = &mut self.clock else { return };
        let ticks = record.ts;
        // From here on all times are points in whole units (clock.rs), which never go back on a thread: the time between
        // two of them is counted once and exactly.
        let mut record = record;
        let has_parted = clock.has_parted(ticks);
        record.ts = self.threads[thread].not_before(clock.place_record(ticks));
        self.threads[thread].works |= kind != RecordKind::Pause;
        if self.threads[thread].works {
            self.newest = self.newest.max(record.ts);
        }
        if kind == RecordKind::BackwardEnd {
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
        if kind == RecordKind::Resume {
            return self.resume(record.ts, record.a == 1);
        }
        self.meter.count(kind);
        // Python also collects garbage before the first step.
        if kind != RecordKind::Pause {
            self.step_begin.get_or_insert(record.ts);
        }
        if !kind.is_within_pass() {
            self.end_implicit_pass(thread, sink);
        }
        self.threads[thread].advance(record.ts, &mut self.calls);
        self.threads[thread].advance_device(device, &mut self.calls);
        if device != DeviceTimestamp::None {
            self.meter.count_mark();
            // For other kinds the event is recorded before the time is read.
            let exact = matches!(kind, RecordKind::Exit | RecordKind::NodeStart | RecordKind::NodeEnd);
            self.queue.note_event(record.ts, device, exact);
        }
        match kind {
            RecordKind::Enter => self.enter(thread, record, device, ticks, sink),
            RecordKind::Exit => self.exit(thread, record, device, sink),
            RecordKind::Shape => self.shape(thread, record, sink),
            RecordKind::NodeStart => self.node_start(thread, record),
            RecordKind::NodeEnd => self.node_end(thread),
            RecordKind::GradReady => self.gradient_ready(thread, record),
            RecordKind::BackwardBegin => self.backward_begin(thread, record, sink),
            RecordKind::BackwardEnd => self.backward_end(thread, record, sink),
            RecordKind::OptimizerBegin => {
                self.stepped = true;
                self.learning_begins(thread, record.ts, sink);
                self.threads[thread].push(ThreadFrame::Optimizer {
                    begin: record.ts,
                    own: 0,
                    class: record.payload(),
                    device: DeviceTime::default(),
                    device_begin: device,
                });
            }
            RecordKind::OptimizerEnd => self.optimizer_end(thread, record, device, sink),
            RecordKind::MarkStep => {
                self.end_step(thread, record.ts, record.b as i64, StepEnd::of(record.payload()), device, sink)
            }
            RecordKind::DataBegin => self.data_begin(thread, record, sink),
            RecordKind::Loaded => self.data_loaded(thread, record),
            RecordKind::Padding => self.data_padding(thread, record),
            RecordKind::DataEnd => self.data_end(thread, record, sink),
            RecordKind::SuspendBegin => self.threads[thread].push(ThreadFrame::Suspended),
            RecordKind::SuspendEnd => self.close(thread, |frame| matches!(frame, ThreadFrame::Suspended), sink),
            RecordKind::CheckpointBegin => self.threads[thread].push(ThreadFrame::Checkpoint { begin: record.ts }),
            RecordKind::CheckpointEnd => {
                self.close(thread, |frame| matches!(frame, ThreadFrame::Checkpoint { .. }), sink)
            }
            RecordKind::Saved => self.saved(thread, record, sink),
            RecordKind::Memory => self.memory(thread, record, sink),
            RecordKind::Allocated => self.threads[thread].allocated(record),
            RecordKind::Span => self.span(thread, record, sink),
            RecordKind::Metric => self.metric(record, sink),
            RecordKind::Copy => self.copy(thread, record, sink),
            RecordKind::Sync => self.read(thread, record, sink),
            RecordKind::OperatorCount => self.operator_count(record, sink),
            RecordKind::ProcessorTimes => self.processor.note_times(thread, record),
            RecordKind::Pause => self.pause(thread, record, sink),
            RecordKind::Detail => {
                self.detail = record.payload() & 1 != 0;
                self.captured = record.payload() & payload::CAPTURED != 0;
                let layers = Layers((record.payload() >> 1) as u16);
                (self.optimizers, self.pauses) = (layers.has("optimizer"), layers.has("pauses"));
            }
            RecordKind::WaitBegin | RecordKind::WaitEnd => self.wait(thread, kind, record, device, sink),
            RecordKind::Issue | RecordKind::Started | RecordKind::Finished | RecordKind::Done | RecordKind::Posted => {
                self.collective(thread, kind, record, device, sink);
            }
            // Done above, before the time that has passed was credited.
            RecordKind::Resume => {}
        }
    }

    /// Takes out a frame that gets no row.
    fn close(&mut self, thread: usize, wanted: impl Fn(&ThreadFrame) -> bool, sink: &mut RowBuffer) {
        if let Some((_, missing @ 1..)) = self.threads[thread].take_frame(wanted) {
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
            sink.validates = self.trained && self.threads.iter().any(AnalysedThread::is_validating);
        }
    }
}
