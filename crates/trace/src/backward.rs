//! Backward passes: gives each part of their time to a module call.
//!
//! A node belongs to the call that was innermost when the forward pass made it, by its sequence number and the thread that
//! counted it; a node without a number (`AccumulateGrad`) belongs to the owner of the node before it. The engine's time
//! between two nodes goes to the first of them.

use std::collections::HashMap;

use probe_proto::stage::Stage;
use probe_proto::table::Time;
use probe_proto::tables::torch_trace;

use super::analyser::{Analyser, TraceRowTimes, common_text};
use super::calls::{CallId, NO_CALL};
use super::clock::seconds;
use super::drops::{INCOMPLETE, RING_FULL};
use super::forward::CallColumns;
use super::frame::{BackwardPass, BackwardWork, ThreadFrame};
use super::kind::TORCH_TRACE;
use super::modules::IntMap;
use super::symbol_lookup::SymbolLookup;
use super::thread::AnalysedThread;
use crate::payload::RETURNS_GRADIENTS;
use crate::record::RingRecord;
use crate::row_buffer::RowBuffer;

impl<N: SymbolLookup> Analyser<N> {
    pub(super) fn backward_begin(&mut self, number: usize, record: RingRecord, sink: &mut RowBuffer) {
        let now = record.ts;
        if record.payload() & RETURNS_GRADIENTS == 0 {
            self.learning_begins(number, now, sink);
        } else {
            self.differentiates(number, now, sink);
        }
        let thread = &mut self.threads[number];
        if thread.passes == 0 {
            thread.recomputed.clear();
        }
        thread.push(ThreadFrame::Pass(Box::new(BackwardPass {
            begin: now,
            explicit: true,
            caller: number,
            ..BackwardPass::default()
        })));
    }

    pub(super) fn node_start(&mut self, number: usize, record: RingRecord) {
        if self.threads[number].passes == 0 {
            let explicit = self.explicit_pass();
            // A node that a module's forward runs by itself computes what the module computes. torch.compile does this with the
            // inputs of a graph that it makes.
            if explicit.is_none() && self.threads[number].modules > 0 {
                return;
            }
            // Nodes on a thread of the engine (a device's), or run by something that calls the engine itself.
            let caller = explicit.unwrap_or(number);
            self.threads[number].push(ThreadFrame::Pass(Box::new(BackwardPass {
                begin: record.ts,
                caller,
                ..BackwardPass::default()
            })));
        }
        let Some(pass) = self.threads[number].innermost_pass() else { return };
        let (caller, previous) = (pass.caller, pass.owner.unwrap_or(NO_CALL));
        let owner = match record.a {
            u64::MAX => previous,
            sequence => self.owner(sequence, record.b, caller),
        };
        let thread = &mut self.threads[number];
        let is_inner = matches!(thread.frames.last(), Some(ThreadFrame::Node { .. }));
        if let Some(pass) = thread.innermost_pass() {
            if !is_inner {
                // The time between the last node and this one belongs to the last one.
                let (linger, on_device) = (std::mem::take(&mut pass.linger), std::mem::take(&mut pass.device_linger));
                if let Some(last) = pass.owner {
                    let work = pass.work.entry(last).or_default();
                    work.own += linger;
                    work.device.add(on_device.sum());
                }
                pass.owner = Some(owner);
            }
            let work = pass.work.entry(owner).or_default();
            if work.begin == 0 {
                work.begin = record.ts;
            }
        }
        thread.push(ThreadFrame::Node { owner });
    }

    /// The call in which the node `sequence` of the thread that torch knows as `made_on` was made; in a pass of the thread
    /// `caller`, which mostly is the same.
    fn owner(&self, sequence: u64, made_on: u64, caller: usize) -> CallId {
        let is_made_on = |thread: &&AnalysedThread| thread.torch_thread == made_on;
        let caller = self.threads.get(caller);
        let is_known = made_on != 0 && caller.is_none_or(|caller| caller.torch_thread != 0);
        if !is_known || caller.as_ref().is_some_and(is_made_on) {
            return caller.map_or(NO_CALL, |thread| thread.breakpoints.owner(sequence));
        }
        let maker = self.threads.iter().find(is_made_on).map(|thread| &thread.breakpoints);
        maker.or_else(|| self.ended.get(made_on)).map_or(NO_CALL, |breakpoints| breakpoints.owner(sequence))
    }

    pub(super) fn node_end(&mut self, number: usize) {
        let _ = self.threads[number].take_frame(|frame| matches!(frame, ThreadFrame::Node { .. }));
    }

    /// The fallback without nodes: a module's gradient became ready, so the time since the last gradient was its work.
    pub(super) fn gradient_ready(&mut self, number: usize, record: RingRecord) {
        if self.threads[number].passes == 0 {
            let caller = self.explicit_pass().unwrap_or(number);
            self.threads[number].push(ThreadFrame::Pass(Box::new(BackwardPass {
                begin: record.ts,
                caller,
                ..BackwardPass::default()
            })));
        }
        let calls = &self.calls;
        let thread = &mut self.threads[number];
        let Some(ThreadFrame::Pass(pass)) = thread.frames.last_mut() else { return };
        let newest = pass.newest.get_or_insert_with(|| calls.iter().map(|(id, call)| (call.address, id)).collect());
        let owner = newest.get(&record.a).copied().unwrap_or(NO_CALL);
        let time =
            std::mem::take(&mut pass.linger) + if pass.owner.is_none() { std::mem::take(&mut pass.head) } else { 0 };
        let work = pass.work.entry(owner).or_default();
        if work.begin == 0 {
            work.begin = record.ts.saturating_sub(time);
        }
        work.own += time;
        pass.owner = Some(owner);
    }

    pub(super) fn backward_end(&mut self, number: usize, record: RingRecord, sink: &mut RowBuffer) {
        let thread = &mut self.threads[number];
        let Some((ThreadFrame::Pass(pass), missing)) =
            thread.take_frame(|frame| matches!(frame, ThreadFrame::Pass(pass) if pass.explicit))
        else {
            return;
        };
        if missing > 0 {
            sink.dropped(TORCH_TRACE, INCOMPLETE, missing);
        }
        if thread.passes == 0 {
            // The backward part of the call is the time from the first node's start to the last one's end.
            // A clock that went back must not end the pass before it began.
            let end = record.ts.max(pass.begin);
            let (begin, whole) = (pass.begin, std::mem::take(&mut thread.parts.pending));
            let first = if record.a == 0 { begin } else { record.a }.clamp(begin, end);
            // Where nodes were not watched, the pass was busy until it issued its last collective, or to its end.
            let unseen = if record.payload() == 0 { first } else { pass.collective.unwrap_or(end) };
            let last = if record.b == 0 { unseen } else { record.b }.clamp(first, end);
            let head = (first - begin).min(whole);
            let tail = (end - last).min(whole - head);
            thread.parts.backward += whole - head - tail;
            match thread.frames.last() {
                Some(ThreadFrame::Module { .. }) => thread.parts.forward += head + tail,
                Some(ThreadFrame::Optimizer { .. }) => thread.parts.optimizer += head + tail,
                // After the last node, DDP waits for its last buckets.
                _ if pass.collective.is_some() => thread.parts.comm += tail,
                _ => {}
            }
        }
        // The time before its first node and after its last one belongs to the frame that called it.
        thread.add_time_to_open(pass.head + pass.linger, &mut self.calls);
        self.push_pass(number, *pass, sink);
        for other in 0..self.threads.len() {
            if self.threads[other].innermost_pass().is_some_and(|pass| !pass.explicit && pass.caller == number) {
                self.end_implicit_pass(other, sink);
            }
        }
        match (self.threads[number].is_idle(), self.threads[number].is_validating()) {
            (true, true) => self.section_goes_on(number, record.ts),
            (true, false) => self.end_section(number),
            (false, _) => {}
        }
    }

    /// Ends a pass that was begun by nodes and not by a call, if one is open.
    pub(super) fn end_implicit_pass(&mut self, number: usize, sink: &mut RowBuffer) {
        let thread = &mut self.threads[number];
        let implicit = |frame: &ThreadFrame| matches!(frame, ThreadFrame::Pass(pass) if !pass.explicit);
        // Frames that are open inside a node (recomputation) are part of it.
        if !thread.frames.last().is_some_and(implicit) {
            return;
        }
        if let Some((ThreadFrame::Pass(pass), _)) = thread.take_frame(implicit) {
            let pending = std::mem::take(&mut thread.parts.pending);
            thread.parts.backward += pending;
            if pass.caller != number {
                // A device's own thread did the work for the thread that called.
                let done = std::mem::take(&mut thread.parts.device.backward);
                if let Some(caller) = self.threads.get_mut(pass.caller) {
                    caller.parts.device.backward.add(done.sum());
                }
            }
            self.push_pass(number, *pass, sink);
        }
    }

    /// A thread that is inside `backward()`.
    pub(super) fn explicit_pass(&self) -> Option<usize> {
        self.threads.iter().position(|thread| {
            thread.frames.iter().any(|frame| matches!(frame, ThreadFrame::Pass(pass) if pass.explicit))
        })
    }

    /// Adds the rows of a pass: one for each call that had work in it, and for each call around such a call.
    fn push_pass(&mut self, number: usize, pass: BackwardPass, sink: &mut RowBuffer) {
        if pass.work.is_empty() {
            return;
        }
        let thread = &self.threads[number];
        if thread.lost || self.threads.get(pass.caller).is_some_and(|thread| thread.lost) {
            sink.dropped(TORCH_TRACE, RING_FULL, pass.work.len() as u64);
            return;
        }
        // A device's own thread counts no calls.
        let caller = self.threads.get(pass.caller).unwrap_or(thread);
        let (id, micro_step) = (thread.id, caller.micro_step());
        let stage = common_text(&mut self.words.backward, &mut sink.strings, Stage::Backward.as_str());
        // Without any event the sums would be 0 although no time is known.
        let on_device = |work: BackwardWork| work.device.sum().filter(|_| pass.on_device);
        let times = |own: BackwardWork, total: BackwardWork| TraceRowTimes {
            begin: total.begin,
            own: own.own,
            total: total.own,
            device: on_device(own),
            device_total: on_device(total),
        };
        let mut totals: IntMap<CallId, BackwardWork> = HashMap::default();
        for (call, work) in &pass.work {
            let mut within = *call;
            while let Some(call) = self.calls.get(within) {
                let total =
                    totals.entry(within).or_insert(BackwardWork { begin: work.begin, ..BackwardWork::default() });
                total.own += work.own;
                total.device.add(work.device.sum());
                total.begin = total.begin.min(work.begin);
                within = call.parent;
            }
        }
        let mut rows: Vec<(CallId, BackwardWork)> = totals.into_iter().collect();
        rows.sort_unstable_by_key(|(_, work)| work.begin);
        for (call, total) in rows {
            let own = pass.work.get(&call).copied().unwrap_or_default();
            self.push_call(call, stage, times(own, total), CallColumns { shape: None, memory: None, thread: id }, sink);
        }
        // Work of the loss, of other computation outside every module, and of forgotten calls.
        let outside = pass.work.iter().filter(|(call, _)| self.calls.get(**call).is_none()).map(|(_, work)| *work);
        let outside = outside.reduce(|mut a, b| {
            a.device.add(b.device.sum());
            BackwardWork { own: a.own + b.own, begin: a.begin.min(b.begin), ..a }
        });
        let (Some(outside), Some(clock)) = (outside, &self.clock) else { return };
        let (duration, total_duration) = times(outside, outside).where_it_computes(self.modules.computes_on_host());
        sink.push(torch_trace::Row {
            step: self.step,
            micro_step,
            call_index: 0,
            module: None,
            module_type: None,
            depth: 0,
            stage,
            ts: Time(clock.unix_ns(outside.begin)),
            duration,
            total_duration,
            host_duration: seconds(outside.own),
            allocated: None,
            allocated_delta: None,
            max_allocated: None,
            reserved: None,
            input_shape: None,
            device: None,
            compiled: false,
            captured: Some(self.captured),
            thread: id,
        });
    }
}
