//! The end of optimizers' steps and of training steps.

use probe_proto::stage::Stage;
use probe_proto::table::{Text, Time};
use probe_proto::tables::{steps, torch_trace};

use super::analyser::{Analyser, TraceRowTimes, common_text};
use super::call_memory::EndedCallMemory;
use super::clock::seconds;
use super::device::DeviceTime;
use super::device::DeviceTimestamp;
use super::device_step::DeviceStep;
use super::drops::{CLOCK_STOPPED, INCOMPLETE, RING_FULL};
use super::frame::ThreadFrame;
use super::kind::{STEPS, TORCH_TRACE};
use super::meter::DetailMeter;
use super::settling::SettlingDetector;
use super::step_parts::StepParts;
use super::symbol_lookup::SymbolLookup;
use super::thread::AnalysedThread;
use crate::payload::{BY_BACKWARD, BY_CALL, BY_OPTIMIZER, UNIT_UNKNOWN};
use crate::record::RingRecord;
use crate::row_buffer::RowBuffer;

/// What ended a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepEnd {
    ByOptimizer,
    ByMark,
    ByBackward,
    ByCall,
    /// By several passes or calls together, before it was known that each is a step.
    UnitUnknown,
}

impl StepEnd {
    /// What ended a step, by the payload of a record that only says so.
    pub(super) fn of(payload: u64) -> Self {
        match payload {
            _ if payload & UNIT_UNKNOWN != 0 => Self::UnitUnknown,
            _ if payload & BY_BACKWARD != 0 => Self::ByBackward,
            _ if payload & BY_CALL != 0 => Self::ByCall,
            _ if payload & BY_OPTIMIZER != 0 => Self::ByOptimizer,
            _ => Self::ByMark,
        }
    }

    /// The word for it in `python.steps.kind` and `probe.agents.layers`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ByOptimizer => "optimizer",
            Self::ByMark => "marked",
            Self::ByBackward => "backward",
            Self::ByCall | Self::UnitUnknown => "call",
        }
    }
}

/// Times of a step on the host in addition to its parts.
struct HostTimes {
    /// Seconds on a processor, and ready without one.
    processor: (Option<f64>, Option<f64>),
    /// Time in garbage collections, in units of the clock.
    collecting: u64,
}

impl<N: SymbolLookup> Analyser<N> {
    pub(super) fn optimizer_end(
        &mut self,
        number: usize,
        record: RingRecord,
        now: DeviceTimestamp,
        sink: &mut RowBuffer,
    ) {
        let thread = &mut self.threads[number];
        if let Some((ThreadFrame::Optimizer { begin, own, class, device, device_begin }, missing)) =
            thread.take_frame(|frame| matches!(frame, ThreadFrame::Optimizer { .. }))
        {
            if missing > 0 {
                sink.dropped(TORCH_TRACE, INCOMPLETE, missing);
            }
            // An optimizer within an optimizer (a wrapper) gets no row: its time belongs to the outer one.
            let memory = thread.take_measured();
            let is_outermost = !thread.frames.iter().any(|frame| matches!(frame, ThreadFrame::Optimizer { .. }));
            if !is_outermost {
                thread.add_time_to_open(own, &mut self.calls);
            } else if self.detail && self.optimizers {
                let total = record.ts.saturating_sub(begin);
                let device_total = now.since(device_begin);
                let device = device_total.and(device.sum());
                self.push_optimizer(
                    number,
                    TraceRowTimes { begin, own, total, device, device_total },
                    class,
                    memory,
                    sink,
                );
            }
        }
        if record.a == 1 {
            self.end_step(number, record.ts, record.b as i64, StepEnd::ByOptimizer, now, sink);
        }
    }

    fn push_optimizer(
        &mut self,
        number: usize,
        times: TraceRowTimes,
        class: u64,
        memory: Option<EndedCallMemory>,
        sink: &mut RowBuffer,
    ) {
        let (Some(clock), thread) = (&self.clock, &self.threads[number]) else { return };
        let class: Option<Text> = self.names.optimizer(class).map(|class| sink.strings.id(&class));
        let (duration, total_duration) = times.where_it_computes(self.modules.computes_on_host());
        let row = torch_trace::Row {
            step: self.step,
            micro_step: thread.micro_step(),
            call_index: 0,
            module: class,
            module_type: class,
            depth: 0,
            stage: common_text(&mut self.words.step, &mut sink.strings, Stage::Step.as_str()),
            ts: Time(clock.unix_ns(times.begin)),
            duration,
            total_duration,
            host_duration: seconds(times.own),
            allocated: memory.map(|memory| memory.allocated),
            allocated_delta: memory.and_then(|memory| memory.own_delta),
            max_allocated: memory.map(|memory| memory.peak),
            reserved: memory.map(|memory| memory.reserved),
            input_shape: None,
            device: None,
            compiled: false,
            captured: Some(self.captured),
            thread: thread.id,
        };
        sink.push(row);
    }

    /// Ends a training step on thread `number` at `now`, on the device at `device`. `finished` steps have ended with it.
    pub(super) fn end_step(
        &mut self,
        number: usize,
        now: u64,
        finished: i64,
        by: StepEnd,
        device: DeviceTimestamp,
        sink: &mut RowBuffer,
    ) {
        let (Some(clock), Some(begin)) = (&self.clock, self.step_begin.replace(now)) else { return };
        let ts = Time(clock.unix_ns(begin));
        let whole = now.saturating_sub(begin);
        self.end_section(number);
        let on_device = self.queue.end_step(now, whole, device);
        self.flush_reads(sink);
        let mut parts = std::mem::take(&mut self.threads[number].parts);
        parts.lost = self.threads.iter().any(|thread| thread.lost);
        if !self.trained {
            // The program marked the step, and infers.
            self.meter.set(self.meter.so_far().plus(parts.validation.counts));
            parts.put_back();
        }
        let ended = finished - 1;
        let missed = ended.saturating_sub(self.step);
        let host =
            HostTimes { processor: self.processor.end_step(number), collecting: std::mem::take(&mut self.collecting) };
        if std::mem::take(&mut self.is_partial) {
            sink.forget_held();
            self.meter.end_step(ended, None, self.detail);
        } else if by == StepEnd::UnitUnknown {
            sink.release();
            self.meter.end_step(ended, None, self.detail);
        } else if missed > 0 || self.broken {
            // The ends of steps were lost with their times: one row that spans several would be wrong.
            sink.dropped(STEPS, RING_FULL, missed.max(0).unsigned_abs() + 1);
            self.meter.end_step(ended, None, self.detail);
        } else {
            self.push_step((ended, by), ts, whole, parts, (host, on_device), sink);
        }
        self.step = finished;
        self.broken = false;
        self.peak = None;
        self.threads.iter_mut().for_each(|thread| begin_step(thread, now));
        let oldest = self.oldest_open();
        self.calls.forget_before(finished - 1, oldest);
        self.ended.forget_before(finished - 1);
    }

    /// Resumes at `now` after recording was off. The step that was running when it went off is given up, because it is not
    /// known what else happened in it. The next step begins with the next record, as the first one did. `is_partial`: recording
    /// begins in the middle of a step, which then gets no row.
    pub(super) fn resume(&mut self, now: u64, is_partial: bool) {
        self.is_partial |= is_partial;
        let idle = self.threads.iter().all(AnalysedThread::is_idle);
        self.step_begin = (!idle).then_some(now);
        self.broken = false;
        self.queue.skip();
        self.processor.skip();
        self.collecting = 0;
        for thread in &mut self.threads {
            begin_step(thread, now);
            thread.skip(now);
        }
    }

    /// Gives up the current step, in which the machine slept or was stopped: durations of what was open are not known.
    pub(super) fn give_step_up(&mut self, now: u64, sink: &mut RowBuffer) {
        if self.step_begin.is_none() {
            return;
        }
        if self.step > 0 && !self.is_partial {
            sink.dropped(STEPS, CLOCK_STOPPED, 1);
        }
        self.resume(now, true);
    }

    fn push_step(
        &mut self,
        (step, by): (i64, StepEnd),
        ts: Time,
        whole: u64,
        mut parts: StepParts,
        (host, on_device): (HostTimes, DeviceStep),
        sink: &mut RowBuffer,
    ) {
        parts.backward += std::mem::take(&mut parts.pending);
        let duration = whole.saturating_sub(parts.suspended);
        let training = duration.saturating_sub(parts.validation.sum() + parts.checkpoint);
        let inferred = std::mem::replace(&mut self.infers, by == StepEnd::ByCall);
        if inferred && !self.infers {
            // The program has begun to train: what was learned from calls says nothing of its steps.
            self.settling = SettlingDetector::default();
            let counts = self.meter.so_far();
            self.meter = DetailMeter::default();
            self.meter.set(counts);
        }
        // The profiler's cost is not part of recording's.
        self.meter.end_step(step, (!self.captured).then(|| seconds(training)), self.detail);
        let computes_there = !self.modules.computes_on_host();
        let timed = |time: Option<u64>| time.filter(|_| computes_there).map(seconds);
        // Without detail only the step's end has an event.
        let is_known = self.detail && on_device.idle.is_some();
        let part = |time: DeviceTime| timed(time.sum().filter(|_| is_known && !parts.lost));
        let (cpu_time, run_delay) = if parts.suspended == 0 { host.processor } else { (None, None) };
        let row = steps::Row {
            step,
            ts,
            duration: seconds(duration),
            data_time: seconds(parts.data),
            forward_time: seconds(parts.forward),
            backward_time: seconds(parts.backward),
            optimizer_time: seconds(parts.optimizer),
            comm_time: seconds(parts.comm),
            validation_time: Some(seconds(parts.validation.sum())),
            checkpoint_time: Some(seconds(parts.checkpoint)),
            other_time: seconds(duration.saturating_sub(parts.sum())),
            cpu_time,
            run_delay,
            gc_time: self.pauses.then_some(seconds(host.collecting)),
            kind: Some(common_text(&mut self.words.ended[by as usize], &mut sink.strings, by.as_str())),
            clock: common_text(&mut self.words.host, &mut sink.strings, "host"),
            micro_steps: parts.micro_steps,
            samples: parts.samples.of_step(parts.batch_samples),
            max_allocated: self.peak,
            detail: self.detail,
            warmup: Some(if self.captured { self.settling.is_unsettled() } else { self.settling.is_warmup(training) }),
            device_duration: timed(on_device.duration),
            device_forward_time: part(parts.device.forward),
            device_backward_time: part(parts.device.backward),
            device_optimizer_time: part(parts.device.optimizer),
            gpu_idle_max: timed(on_device.idle.filter(|_| is_known && parts.suspended == 0)),
            captured: Some(self.captured),
        };
        sink.push(row);
    }
}

/// Begins another step on `thread` at `now`.
fn begin_step(thread: &mut AnalysedThread, now: u64) {
    thread.parts = StepParts { comm_until: now, ..StepParts::default() };
    thread.waiting_since = None;
    (thread.section, thread.validated) = (None, None);
    thread.breakpoints.end_step();
    thread.lost &= !thread.frames.is_empty();
    // A backward call that is open counts for the new step from here on.
    if let Some(pass) = thread.outermost_pass() {
        pass.begin = now;
    }
}
