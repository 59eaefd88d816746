//! Calls of modules: their state when they begin, and their rows when they end.

use probe_proto::stage::Stage;
use probe_proto::table::{Text, Time};
use probe_proto::tables::torch_trace;

use super::analyser::{Analyser, TraceRowTimes, common_text};
use super::call_memory::EndedCallMemory;
use super::calls::{CallId, ModuleCall, NO_CALL};
use super::clock::seconds;
use super::device::DeviceTime;
use super::device::DeviceTimestamp;
use super::drops::{INCOMPLETE, RING_FULL};
use super::frame::ThreadFrame;
use super::kind::TORCH_TRACE;
use super::payload;
use super::symbol_lookup::SymbolLookup;
use crate::record::RingRecord;
use crate::row_buffer::RowBuffer;

/// Further columns of a row of `python.torch_trace`.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallColumns {
    pub(super) shape: Option<Text>,
    pub(super) memory: Option<EndedCallMemory>,
    pub(super) thread: i64,
}

impl<N: SymbolLookup> Analyser<N> {
    /// Begins a call of a module. `ticks` are those of the record, for the registry.
    pub(super) fn enter(
        &mut self,
        number: usize,
        record: RingRecord,
        device: DeviceTimestamp,
        ticks: u64,
        sink: &mut RowBuffer,
    ) {
        let thread = &mut self.threads[number];
        let outermost = thread.outermost_call();
        let recompute = thread.passes > 0;
        if outermost.is_none() {
            self.modules.refresh(&self.names);
        }
        let root = outermost.map_or(record.a, |(_, address)| address);
        let module = self.modules.find(&self.names, &mut sink.strings, record.a, record.b, ticks, root);
        if let Some(call) =
            thread.innermost_call().filter(|_| self.modules.get(module).is_some_and(|module| !module.known))
        {
            // torch.compile turns a module into another one (fx's GraphModule), which is not part of the model.
            let inner = self.calls.get(call).and_then(|call| self.modules.get(call.module));
            if inner.is_some_and(|inner| inner.compiled) {
                thread.push(ThreadFrame::Module { call, address: record.a, tainted: false, hidden: true });
                return;
            }
        }
        if thread.modules == 0 && !recompute {
            let mode = record.payload() & !payload::SEQUENCE;
            if self.modules.get(module).is_some_and(|module| module.has_parameters) {
                self.section_calls(number, record.a, mode, record.ts, sink);
                let thread = &mut self.threads[number];
                thread.parts.micro_steps += 1;
                thread.called.clear();
            } else {
                self.section_prepares(number, mode, record.ts, sink);
            }
        }
        let thread = &mut self.threads[number];
        let called = if recompute { &mut thread.recomputed } else { &mut thread.called };
        let calls_before = called.entry(module).or_insert(0);
        let call_index = *calls_before;
        *calls_before += 1;
        let micro_step = thread.micro_step();
        let call = self.calls.push(ModuleCall {
            module,
            address: record.a,
            parent: thread.innermost_call().unwrap_or(NO_CALL),
            depth: thread.modules,
            call_index,
            step: self.step,
            micro_step,
            begin: record.ts,
            own: 0,
            device: DeviceTime::default(),
            device_begin: device,
            recompute,
            detail: self.detail,
            shape: None,
        });
        if self.detail {
            thread.breakpoints.push(record.payload() & payload::SEQUENCE, call);
        }
        thread.push(ThreadFrame::Module { call, address: record.a, tainted: false, hidden: false });
    }

    pub(super) fn exit(&mut self, number: usize, record: RingRecord, device: DeviceTimestamp, sink: &mut RowBuffer) {
        let thread = &mut self.threads[number];
        let ours = |frame: &ThreadFrame| matches!(frame, ThreadFrame::Module { address, .. } if *address == record.a);
        let Some((ThreadFrame::Module { call: id, tainted, hidden, .. }, missing)) = thread.take_frame(ours) else {
            return;
        };
        if missing > 0 {
            sink.dropped(TORCH_TRACE, INCOMPLETE, missing);
        }
        let memory = thread.take_measured();
        if hidden {
            return;
        }
        if thread.modules == 0 {
            self.section_goes_on(number, record.ts);
        }
        let thread = &mut self.threads[number];
        let Some(call) = self.calls.get(id) else { return };
        if !call.detail {
            return;
        }
        thread.breakpoints.push(record.payload(), thread.innermost_call().unwrap_or(NO_CALL));
        if tainted {
            sink.dropped(TORCH_TRACE, RING_FULL, 1);
            return;
        }
        let total = record.ts.saturating_sub(call.begin);
        let stage = if call.recompute {
            common_text(&mut self.words.recompute, &mut sink.strings, Stage::Recompute.as_str())
        } else {
            let forward = common_text(&mut self.words.forward, &mut sink.strings, Stage::Forward.as_str());
            if thread.is_validating() {
                let validation = common_text(&mut self.words.validation, &mut sink.strings, Stage::Validation.as_str());
                sink.quiet = (!self.trained).then_some((validation, forward));
                validation
            } else {
                forward
            }
        };
        let device_total = device.since(call.device_begin);
        let times = TraceRowTimes {
            begin: call.begin,
            own: call.own.min(total),
            total,
            device: device_total.and(call.device.sum()),
            device_total,
        };
        let (more, idle) = (CallColumns { shape: call.shape, memory, thread: thread.id }, thread.is_idle());
        self.push_call(id, stage, times, more, sink);
        if idle {
            let oldest = self.oldest_open();
            self.calls.drop_oldest(oldest);
        }
    }

    /// Adds a row about a module call in `stage`.
    pub(super) fn push_call(
        &self,
        id: CallId,
        stage: Text,
        times: TraceRowTimes,
        more: CallColumns,
        sink: &mut RowBuffer,
    ) {
        let (Some(clock), Some(call)) = (&self.clock, self.calls.get(id)) else { return };
        let Some(module) = self.modules.get(call.module) else { return };
        let (duration, total_duration) = times.where_it_computes(module.on_host);
        // The memory was measured on one device. Nothing is known about any other.
        let is_of_device =
            |measured: &EndedCallMemory| module.device.is_none_or(|device| measured.is_of(sink.strings.get(device)));
        let memory = more.memory.filter(is_of_device);
        sink.push(torch_trace::Row {
            step: call.step,
            micro_step: call.micro_step,
            call_index: call.call_index,
            module: module.name,
            module_type: module.class,
            depth: call.depth,
            stage,
            ts: Time(clock.unix_ns(times.begin)),
            duration,
            total_duration,
            host_duration: seconds(times.own),
            allocated: memory.map(|memory| memory.allocated),
            allocated_delta: memory.and_then(|memory| memory.own_delta),
            max_allocated: memory.map(|memory| memory.peak),
            reserved: memory.map(|memory| memory.reserved),
            input_shape: more.shape,
            device: module.device,
            compiled: module.compiled,
            captured: Some(self.captured),
            thread: more.thread,
        });
    }

    /// Adds dimensions to the shape given to the call that began last.
    pub(super) fn shape(&mut self, number: usize, record: RingRecord, sink: &mut RowBuffer) {
        let thread = &mut self.threads[number];
        let Some(ThreadFrame::Module { call: id, .. }) = thread.frames.last() else { return };
        let (bits, first) = (record.payload(), (record.payload() & 0xff) as usize);
        let dimensions = (bits >> payload::SHAPE_COUNT & 0xff_ffff) as usize;
        let words = [record.a & 0xffff_ffff, record.a >> 32, record.b & 0xffff_ffff, record.b >> 32];
        let known = dimensions.min(payload::SHAPE_DIMENSIONS);
        let in_record = words.iter().take(known.saturating_sub(first));
        let depth = thread.modules;
        let Some(call) = self.calls.get_mut(*id) else { return };
        let is_root = self.modules.get(call.module).is_some_and(|module| module.has_parameters);
        if first == 0
            && depth == 1
            && is_root
            && !call.recompute
            && let Some(more) = samples(bits >> payload::VMAPPED, words[0]).filter(|_| dimensions > 0)
        {
            thread.parts.samples.add((call.module, call.address), more as i64);
        }
        let listed: Vec<String> = in_record.map(u64::to_string).collect();
        let more = if first + listed.len() == known && dimensions > known { ", …" } else { "" };
        let text = match call.shape.and_then(|before| sink.strings.get(before)) {
            _ if first == 0 => Some(format!("[{}{more}]", listed.join(", "))),
            before => before.map(|before| format!("{}, {}{more}]", before.trim_end_matches(']'), listed.join(", "))),
        };
        call.shape = text.and_then(|text| sink.shape(&text));
        if depth == 1 && is_root {
            self.batch_shapes.set(call.address, call.shape);
        }
    }
}

/// Number of samples given to a model in a tensor whose first dimension is `first`. Of `vmapped` tensors at once it is only
/// known where each is one sample: otherwise the first dimension may be of samples, or of the parts of one.
fn samples(vmapped: u64, first: u64) -> Option<u64> {
    match (vmapped, first) {
        (0, _) => Some(first),
        (payload::MANY_VMAPPED, _) => None,
        (_, 1) => Some(vmapped),
        _ => None,
    }
}
