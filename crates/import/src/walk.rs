//! The second pass: through each thread's events in order of time, with a stack of what is open, so that operators know what
//! encloses them, launches their operator, and device activities by their launch the operator, module and step.

use std::collections::HashMap;

use probe_common::error::Result;

use super::collect::HostThread;
use super::device_lines::DeviceLines;
use super::kinds;
use super::python_frame::PythonFrame;
use super::records::{DeviceEvent, HostEvent, MemoryEvent, UNKNOWN, device, host, known};
use super::row_writer::{FrameRow, LaunchRow, MemoryRow, OperatorRow, RangeTable, RowWriter, SpanRow};
use super::sorter::{RecordGroup, SortedRecords};
use super::steps::{StepInterval, step_at};
use super::text_table::{NONE, TextTable};
use probe_proto::stage::Stage;

/// Most operators, and most frames, that can be open within each other.
const MAX_OPEN: usize = 1024;
/// Most forward operators whose module is remembered for their backward work.
const MAX_SEQUENCES: usize = 2 << 20;

/// An operator or range that is open.
struct OpenOperator {
    event: HostEvent,
    /// Index of the operator around this one.
    parent: Option<usize>,
    /// Time of the operators directly within this one (nanoseconds).
    within: i64,
    device: i64,
    device_self: i64,
    module: u32,
    stage: Option<Stage>,
    stack: i64,
    user_frame: u32,
}

/// A Python frame that is open.
struct OpenFrame {
    event: HostEvent,
    parent: Option<usize>,
    within: i64,
    /// The module that runs in the frame.
    module: u32,
    /// The innermost frame of the program itself, this one included: the number of its name.
    user_frame: u32,
}

/// A range of the agent's around a module that is open.
struct OpenModule {
    end: i64,
    module: u32,
}

/// Walks the threads of a capture.
pub(crate) struct ThreadWalk<'a> {
    texts: &'a TextTable,
    steps: &'a [StepInterval],
    lines: &'a DeviceLines,
    frames: HashMap<u32, PythonFrame>,
    modules: TextTable,
    /// The module of forward operators, by sequence number.
    forward_modules: HashMap<i64, u32>,
    open: Vec<OpenOperator>,
    open_frames: Vec<OpenFrame>,
    open_modules: Vec<OpenModule>,
    /// The module of the autograd node that the thread ran last.
    node_module: u32,
    launch_end: i64,
    thread: i64,
    /// Events with more than [`MAX_OPEN`] others open around them.
    pub too_deep: u64,
}

impl<'a> ThreadWalk<'a> {
    pub(crate) fn new(texts: &'a TextTable, steps: &'a [StepInterval], lines: &'a DeviceLines) -> Self {
        Self {
            texts,
            steps,
            lines,
            frames: HashMap::new(),
            modules: TextTable::default(),
            forward_modules: HashMap::new(),
            open: Vec::new(),
            open_frames: Vec::new(),
            open_modules: Vec::new(),
            node_module: NONE,
            launch_end: i64::MIN,
            thread: 0,
            too_deep: 0,
        }
    }

    /// Walks all threads; those that call modules first, so that backward work on others finds its module.
    ///
    /// # Errors
    /// Rows can't be written.
    pub(crate) fn run(
        &mut self,
        threads: &[HostThread],
        (events, devices, memory): (
            &SortedRecords<HostEvent>,
            &SortedRecords<DeviceEvent>,
            &SortedRecords<MemoryEvent>,
        ),
        rows: &mut RowWriter<'_, '_>,
    ) -> Result<()> {
        let mut order = events.groups();
        order.extend(memory.groups());
        order.sort_unstable();
        order.dedup();
        order.sort_by_key(|thread| !threads[*thread as usize].has_modules);
        for thread in order {
            self.thread = threads[thread as usize].number;
            self.launch_end = i64::MIN;
            self.node_module = NONE;
            let mut launched = devices.group(thread).peekable();
            let mut allocated = memory.group(thread).peekable();
            for event in events.group(thread) {
                while let Some(memory) = allocated.next_if(|memory| memory.ts < event.ts) {
                    self.memory(&memory, rows)?;
                }
                self.close(event.ts, rows)?;
                match event.kind {
                    host::FRAME => self.open_frame(event),
                    host::MODULE => self.open_module(event),
                    host::LAUNCH => self.launch(&event, &mut launched, rows)?,
                    host::LOOSE_RANGE => {
                        let (step, thread) = (self.step(&event), self.thread);
                        rows.span(&SpanRow { event: &event, depth: 0, parent: None, step, thread })?;
                    }
                    _ => self.open_operator(event),
                }
            }
            for memory in allocated {
                self.memory(&memory, rows)?;
            }
            self.close(i64::MAX, rows)?;
        }
        events.check()?;
        memory.check()?;
        devices.check()
    }

    /// The step of an event, by its group, else by the time at which it began.
    fn step(&self, event: &HostEvent) -> Option<i64> {
        self.lines.step_of_group(event.step_group).or_else(|| step_at(self.steps, event.ts))
    }

    /// Closes all that has ended by `ts`, and writes the rows.
    fn close(&mut self, ts: i64, rows: &mut RowWriter<'_, '_>) -> Result<()> {
        while self.open_modules.pop_if(|open| open.end <= ts).is_some() {}
        while let Some(open) = self.open.pop_if(|open| open.event.end <= ts) {
            let parent = open.parent.and_then(|index| self.open.get_mut(index));
            let parent = parent.map(|parent| {
                parent.device = parent.device.saturating_add(open.device);
                parent.event.name
            });
            if open.event.kind == host::ANNOTATION && rows.ranges == RangeTable::Spans {
                let around = self.open.iter().filter(|open| open.event.kind == host::ANNOTATION);
                let parent = around.clone().next_back().map(|open| open.event.name);
                let (depth, step) = (around.count() as i32, self.step(&open.event));
                rows.span(&SpanRow { event: &open.event, depth, parent, step, thread: self.thread })?;
                continue;
            }
            let frame = self.frames.get(&open.user_frame);
            let row = OperatorRow {
                event: &open.event,
                self_duration: (open.event.end - open.event.ts - open.within).max(0),
                device: open.device,
                device_self: open.device_self,
                module: self.modules.get(open.module).map(|module| &**module),
                stage: open.stage,
                depth: self.open.len() as i32,
                parent,
                step: self.step(&open.event),
                stack: known(open.stack),
                frame,
                thread: self.thread,
            };
            rows.operator(&row)?;
        }
        while let Some(open) = self.open_frames.pop_if(|open| open.event.end <= ts) {
            let parent = open.parent.and_then(|index| self.open_frames.get(index));
            let Some(frame) = self.frames.get(&open.event.name) else { continue };
            rows.frame(&FrameRow {
                event: &open.event,
                self_duration: (open.event.end - open.event.ts - open.within).max(0),
                frame,
                parent: parent
                    .and_then(|parent| known(parent.event.id))
                    .or(known(open.event.external_id).filter(|_| parent.is_some())),
                module: self.modules.get(open.module).map(|module| &**module),
                depth: self.open_frames.len() as i32,
                step: self.step(&open.event),
                thread: self.thread,
            })?;
        }
        Ok(())
    }

    fn open_frame(&mut self, event: HostEvent) {
        if self.open_frames.len() >= MAX_OPEN {
            self.too_deep += 1;
            return;
        }
        let name = event.name;
        let text = self.texts.get(name).map_or("", |text| text);
        let named = self.open_modules.last().map(|open| open.module);
        let frame = self.frames.entry(name).or_insert_with(|| PythonFrame::of(text));
        let parent = self.open_frames.iter().rposition(|open| open.event.end >= event.end);
        let around = parent.map_or(NONE, |parent| self.open_frames[parent].module);
        let module = match (frame.is_module, self.modules.get(around)) {
            _ if named.is_some() => named.unwrap_or(NONE),
            (false, _) => around,
            (true, None) => self.modules.number(&frame.function),
            (true, Some(around)) => {
                let path = format!("{around}.{}", frame.function);
                self.modules.number(&path)
            }
        };
        let around = parent.map_or(NONE, |parent| self.open_frames[parent].user_frame);
        let user_frame = if frame.is_users() { name } else { around };
        if let Some(parent) = parent {
            let within = &mut self.open_frames[parent].within;
            *within = within.saturating_add(event.end - event.ts);
        }
        self.open_frames.push(OpenFrame { event, parent, within: 0, module, user_frame });
    }

    fn open_module(&mut self, event: HostEvent) {
        if self.open_modules.len() >= MAX_OPEN {
            self.too_deep += 1;
            return;
        }
        let name = self.texts.get(event.name).and_then(|name| kinds::module_name(name));
        let module = name.map_or(NONE, |name| self.modules.number(name));
        self.open_modules.push(OpenModule { end: event.end, module });
    }

    /// The module that runs: by the agent's ranges, which have its name, else by Python's frames.
    fn running_module(&self) -> u32 {
        match (self.open_modules.last(), self.open_frames.last()) {
            (Some(open), _) => open.module,
            (None, Some(frame)) => frame.module,
            (None, None) => NONE,
        }
    }

    fn open_operator(&mut self, event: HostEvent) {
        if self.open.len() >= MAX_OPEN {
            self.too_deep += 1;
            return;
        }
        let name = self.texts.get(event.name).map_or("", |text| text);
        let parent = self.open.iter().rposition(|open| open.event.end >= event.end);
        let (outer_stage, outer_module) = match parent.map(|parent| &self.open[parent]) {
            Some(parent) if parent.event.kind == host::OPERATOR || parent.stage == Some(Stage::Step) => {
                (parent.stage, parent.module)
            }
            _ => (None, NONE),
        };
        let frame = self.open_frames.last();
        let running = self.running_module();
        let is_node = name.starts_with("autograd::engine::evaluate_function");
        let is_backward = is_node || name.contains("Backward") && !name.starts_with("aten::");
        let stage = match outer_stage {
            Some(Stage::Backward | Stage::Step) => outer_stage,
            _ if is_backward => Some(Stage::Backward),
            _ if name.starts_with("Optimizer.step") => Some(Stage::Step),
            _ if running != NONE => Some(Stage::Forward),
            _ => outer_stage,
        };
        let module = match stage {
            // The node has no number of its own, and runs right after the node whose gradient it adds up.
            Some(Stage::Backward) if is_node && name.ends_with("AccumulateGrad") => self.node_module,
            Some(Stage::Backward) if outer_module == NONE && event.id != UNKNOWN => {
                self.forward_modules.get(&event.id).copied().unwrap_or(running)
            }
            Some(Stage::Backward) => outer_module,
            _ => running,
        };
        if is_node {
            self.node_module = module;
        }
        if stage == Some(Stage::Forward)
            && event.id != UNKNOWN
            && module != NONE
            && self.forward_modules.len() < MAX_SEQUENCES
        {
            // Operators within others, and those without a gradient, have the number of the next operator that has one.
            self.forward_modules.insert(event.id, module);
        }
        let stack = frame.map_or(UNKNOWN, |frame| frame.event.id);
        let mut user_frame = frame.map_or(NONE, |frame| frame.user_frame);
        if let Some(stack) = self.texts.get(event.call_stack) {
            user_frame = event.call_stack;
            if !self.frames.contains_key(&user_frame)
                && let Some(frame) = PythonFrame::in_call_stack(stack)
            {
                self.frames.insert(user_frame, frame);
            }
        }
        if let Some(parent) = parent {
            let within = &mut self.open[parent].within;
            *within = within.saturating_add(event.end - event.ts);
        }
        self.open.push(OpenOperator {
            event,
            parent,
            within: 0,
            device: 0,
            device_self: 0,
            module,
            stage,
            stack,
            user_frame,
        });
    }

    /// Writes an allocation or a free, with the innermost operator around it.
    fn memory(&mut self, event: &MemoryEvent, rows: &mut RowWriter<'_, '_>) -> Result<()> {
        self.close(event.ts, rows)?;
        let around = self.open.iter().rev().find(|open| open.event.end > event.ts);
        let operator =
            self.open.iter().rev().find(|open| open.event.kind == host::OPERATOR && open.event.end > event.ts);
        let module = operator.map_or_else(|| self.running_module(), |operator| operator.module);
        let in_frame = self.open_frames.last().map(|frame| frame.user_frame).filter(|frame| *frame != NONE);
        let user_frame = in_frame.or(around.map(|around| around.user_frame)).unwrap_or(NONE);
        rows.memory(&MemoryRow {
            event,
            operator: operator.map(|operator| operator.event.name),
            module: self.modules.get(module).map(|module| &**module),
            stage: around.and_then(|around| around.stage),
            step: step_at(self.steps, event.ts),
            frame: self.frames.get(&user_frame),
            thread: self.thread,
        })
    }

    fn launch(
        &mut self,
        event: &HostEvent,
        launched: &mut std::iter::Peekable<RecordGroup<'_, DeviceEvent>>,
        rows: &mut RowWriter<'_, '_>,
    ) -> Result<()> {
        let around = self.open.iter().rposition(|open| open.event.end > event.ts);
        let is_operator = |open: &OpenOperator| open.event.kind == host::OPERATOR || rows.ranges == RangeTable::Spans;
        let operator = self.open.iter().rposition(|open| is_operator(open) && open.event.end > event.ts);
        let module = operator.map_or_else(|| self.running_module(), |index| self.open[index].module);
        let operator = operator.map(|index| self.open[index].event.name);
        let module = self.modules.get(module).map(|module| &**module);
        let step = self.step(event);
        let (mut kernels, mut device) = (0, 0_i64);
        while let Some(activity) =
            launched.next_if(|activity| activity.launch_ts < event.ts || activity.launch == event.number)
        {
            if activity.kind != device::SYNC {
                kernels += 1;
                device = device.saturating_add(activity.end - activity.ts);
            }
            rows.kernel(&activity, operator, module, step)?;
        }
        if let Some(around) = around.map(|index| &mut self.open[index]) {
            around.device = around.device.saturating_add(device);
            around.device_self = around.device_self.saturating_add(device);
            // A call of the runtime may make one of the driver.
            if event.end > self.launch_end && around.event.end >= event.end {
                around.within = around.within.saturating_add(event.end - event.ts);
            }
        }
        self.launch_end = self.launch_end.max(event.end);
        let thread = self.thread;
        rows.launch(&LaunchRow { event, operator, module, step, thread, kernels, device })
    }
}
