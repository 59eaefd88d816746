//! Writes the rows of the second pass, in the units of the tables.

use std::collections::HashMap;

use probe_common::error::Result;
use probe_proto::table::{Text, Time};
use probe_proto::tables::{frames, kernels, launches, memory_events, operators, spans};

use super::device_lines::DeviceLines;
use super::kinds;
use super::python_frame::PythonFrame;
use super::records::{DeviceEvent, HostEvent, MemoryEvent, UNKNOWN, device, host, known};
use super::rows::ProcessRows;
use super::tensor_bytes::tensor_bytes;
use super::text_table::{NONE, TextTable};
use probe_proto::stage::Stage;

/// An operator call.
pub(crate) struct OperatorRow<'a> {
    pub event: &'a HostEvent,
    pub self_duration: i64,
    pub device: i64,
    pub device_self: i64,
    pub module: Option<&'a str>,
    pub stage: Option<Stage>,
    pub depth: i32,
    /// The number of the name in the table of texts.
    pub parent: Option<u32>,
    pub step: Option<i64>,
    pub stack: Option<i64>,
    pub frame: Option<&'a PythonFrame>,
    pub thread: i64,
}

/// A call of a Python function.
pub(crate) struct FrameRow<'a> {
    pub event: &'a HostEvent,
    pub self_duration: i64,
    pub frame: &'a PythonFrame,
    pub parent: Option<i64>,
    pub module: Option<&'a str>,
    pub depth: i32,
    pub step: Option<i64>,
    pub thread: i64,
}

/// A range of the program.
pub(crate) struct SpanRow<'a> {
    pub event: &'a HostEvent,
    pub depth: i32,
    /// The number of the name in the table of texts.
    pub parent: Option<u32>,
    pub step: Option<i64>,
    pub thread: i64,
}

/// The table in which ranges of the program become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeTable {
    /// In python.operators, as annotations: those of torch.profiler.
    Operators,
    /// In python.spans: those of NVTX. The innermost of them stands for the operator of a launch that is in none.
    Spans,
}

/// A call of the runtime.
pub(crate) struct LaunchRow<'a> {
    pub event: &'a HostEvent,
    /// The number of the name in the table of texts.
    pub operator: Option<u32>,
    pub module: Option<&'a str>,
    pub step: Option<i64>,
    pub thread: i64,
    pub kernels: i32,
    pub device: i64,
}

/// An allocation or a free.
pub(crate) struct MemoryRow<'a> {
    pub event: &'a MemoryEvent,
    /// The number of the name in the table of texts.
    pub operator: Option<u32>,
    pub module: Option<&'a str>,
    pub stage: Option<Stage>,
    pub step: Option<i64>,
    pub frame: Option<&'a PythonFrame>,
    pub thread: i64,
}

/// Numbers of rows.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct WrittenRowCounts {
    pub operators: i64,
    pub kernels: i64,
    pub launches: i64,
    pub frames: i64,
    pub spans: i64,
    pub memory_events: i64,
    pub without_launch: i64,
}

/// Writes rows of one capture.
pub(crate) struct RowWriter<'a, 'f> {
    pub rows: &'a mut ProcessRows<'f>,
    pub texts: &'a TextTable,
    pub capture: &'a str,
    /// Added to every time (nanoseconds).
    pub base: i64,
    pub ranges: RangeTable,
    pub has_devices: bool,
    pub lines: &'a DeviceLines,
    pub counts: WrittenRowCounts,
    /// Bytes of tensors by the numbers of their shapes and types.
    pub tensor_bytes: HashMap<(u32, u32), Option<i64>>,
}

fn seconds(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn number(value: f64) -> Option<f64> {
    (!value.is_nan()).then_some(value)
}

fn small(value: i64) -> Option<i32> {
    known(value).and_then(|value| i32::try_from(value).ok())
}

impl RowWriter<'_, '_> {
    pub(crate) fn operator(&mut self, row: &OperatorRow<'_>) -> Result<()> {
        let (texts, capture, base, event) = (self.texts, self.capture, self.base, row.event);
        let with_devices = |time: i64| self.has_devices.then_some(seconds(time));
        self.counts.operators += 1;
        let input_bytes = self
            .tensor_bytes
            .entry((event.shapes, event.types))
            .or_insert_with(|| tensor_bytes(texts.get(event.shapes)?, texts.get(event.types)?));
        let input_bytes = *input_bytes;
        self.rows.push(|id| operators::Row {
            capture: id(capture),
            step: row.step,
            ts: Time(event.ts + base),
            duration: seconds(event.end - event.ts),
            self_duration: seconds(row.self_duration),
            device_duration: with_devices(row.device),
            device_self_duration: with_devices(row.device_self),
            kind: id(if event.kind == host::ANNOTATION { "annotation" } else { "operator" }),
            stage: row.stage.map(|stage| id(stage.as_str())),
            module: row.module.map(&mut *id),
            name: text(texts, event.name, id),
            depth: row.depth,
            parent: row.parent.map(|parent| text(texts, parent, id)),
            input_shapes: texts.get(event.shapes).map(|shapes| id(shapes)),
            input_types: texts.get(event.types).map(|types| id(types)),
            input_bytes,
            flops: number(event.flops),
            file: row.frame.and_then(|frame| frame.file.as_deref()).map(&mut *id),
            line: row.frame.and_then(|frame| frame.line),
            stack: row.stack,
            thread: row.thread,
            sequence: known(event.id),
            external_id: known(event.external_id),
            record_function: known(event.record_function),
            collective: texts.get(event.collective).map(|collective| id(collective)),
        })
    }

    pub(crate) fn frame(&mut self, row: &FrameRow<'_>) -> Result<()> {
        let (capture, base, event) = (self.capture, self.base, row.event);
        self.counts.frames += 1;
        self.rows.push(|id| frames::Row {
            capture: id(capture),
            step: row.step,
            id: known(event.id),
            parent: row.parent,
            ts: Time(event.ts + base),
            duration: seconds(event.end - event.ts),
            self_duration: seconds(row.self_duration),
            function: id(&row.frame.function),
            file: row.frame.file.as_deref().map(&mut *id),
            line: row.frame.line,
            module: row.module.filter(|_| row.frame.is_module).map(&mut *id),
            depth: row.depth,
            thread: row.thread,
        })
    }

    pub(crate) fn span(&mut self, row: &SpanRow<'_>) -> Result<()> {
        let (texts, base, event) = (self.texts, self.base, row.event);
        self.counts.spans += 1;
        self.rows.push(|id| spans::Row {
            step: row.step,
            ts: Time(event.ts + base),
            duration: seconds(event.end - event.ts),
            name: text(texts, event.name, id),
            kind: id("nvtx"),
            depth: row.depth,
            parent: row.parent.map(|parent| text(texts, parent, id)),
            thread: row.thread,
        })
    }

    pub(crate) fn launch(&mut self, row: &LaunchRow<'_>) -> Result<()> {
        let (texts, capture, base, event) = (self.texts, self.capture, self.base, row.event);
        self.counts.launches += 1;
        self.rows.push(|id| launches::Row {
            capture: id(capture),
            step: row.step,
            ts: Time(event.ts + base),
            duration: seconds(event.end - event.ts),
            name: text(texts, event.name, id),
            operator: row.operator.map(|operator| text(texts, operator, id)),
            module: row.module.map(&mut *id),
            thread: row.thread,
            correlation: known(event.id),
            kernels: row.kernels,
            device_duration: seconds(row.device),
            external_id: known(event.external_id),
        })
    }

    pub(crate) fn memory(&mut self, row: &MemoryRow<'_>) -> Result<()> {
        let (texts, capture, base, event) = (self.texts, self.capture, self.base, row.event);
        let device = kinds::device_name(event.device_type, event.device);
        self.counts.memory_events += 1;
        self.rows.push(|id| memory_events::Row {
            capture: id(capture),
            number: event.number,
            step: row.step,
            ts: Some(Time(event.ts + base)),
            action: id(if event.bytes < 0 { "free" } else { "alloc" }),
            device: id(&device),
            address: known(event.address),
            size: Some(event.bytes.abs()),
            stream: None,
            allocated: known(event.allocated),
            reserved: known(event.reserved),
            device_free: None,
            operator: row.operator.map(|operator| text(texts, operator, id)),
            module: row.module.map(&mut *id),
            stage: row.stage.map(|stage| id(stage.as_str())),
            file: row.frame.and_then(|frame| frame.file.as_deref()).map(&mut *id),
            line: row.frame.and_then(|frame| frame.line),
            function: row.frame.map(|frame| id(&frame.function)),
            thread: Some(row.thread),
            metadata: None,
        })
    }

    /// Writes a device activity. `operator` is the number of the operator's name.
    pub(crate) fn kernel(
        &mut self,
        event: &DeviceEvent,
        operator: Option<u32>,
        module: Option<&str>,
        step: Option<i64>,
    ) -> Result<()> {
        let (texts, capture, base) = (self.texts, self.capture, self.base);
        let has_launch = event.launch != UNKNOWN;
        self.counts.kernels += 1;
        self.counts.without_launch += i64::from(!has_launch);
        let optional = |value: u32, id: &mut dyn FnMut(&str) -> Text| texts.get(value).map(|text| id(text));
        // The activity's own operator and module come before those of its launch.
        let operator = Some(event.operator).filter(|own| *own != NONE).or(operator);
        let own_module = texts.get(event.module).or_else(|| texts.get(self.lines.program(event)?));
        let module = own_module.map(|module| &**module).or(module);
        let step = self.lines.step(event).or(step);
        self.rows.push(|id| kernels::Row {
            capture: id(capture),
            step,
            ts: Time(event.ts + base),
            duration: seconds(event.end - event.ts),
            kind: id(match event.kind {
                device::MEMCPY => "memcpy",
                device::MEMSET => "memset",
                device::SYNC => "sync",
                device::GRAPH => "graph",
                _ => "kernel",
            }),
            category: id(match event.kind {
                device::MEMCPY | device::MEMSET => "memory",
                device::SYNC => "sync",
                _ if event.communication != 0 => "communication",
                _ => "computation",
            }),
            name: text(texts, event.name, id),
            device: small(event.device),
            stream: known(event.stream),
            operator: operator.map(|operator| text(texts, operator, id)),
            module: module.map(&mut *id),
            correlation: known(event.correlation),
            launch_ts: has_launch.then(|| Time(event.launch_ts + base)),
            launch_duration: has_launch.then(|| seconds(event.launch_end - event.launch_ts)),
            launch_delay: has_launch.then(|| seconds((event.ts - event.launch_end).max(0))),
            launch_kernels: has_launch.then_some(event.launch_kernels),
            grid: optional(event.grid, id),
            block: optional(event.block, id),
            registers: small(event.registers),
            shared_memory: known(event.shared_memory),
            blocks_per_sm: number(event.blocks_per_sm),
            warps_per_sm: number(event.warps_per_sm),
            occupancy: number(event.occupancy),
            bytes: known(event.bytes),
            bandwidth: number(event.bandwidth),
            flops: number(event.flops),
            bytes_accessed: known(event.bytes_accessed),
            collective: optional(event.collective, id),
            group_name: optional(event.group_name, id),
            ranks: optional(event.group_ranks, id),
            group_size: small(event.group_size),
            seq: known(event.seq),
            dtype: optional(event.dtype, id),
            elements: known(event.elements),
            busbw_gbps: number(event.busbw),
            graph_launch: has_launch.then_some(event.graph != 0),
            external_id: known(event.external_id),
        })
    }
}

/// The text of a name, or a placeholder for a name past the limit.
fn text(texts: &TextTable, name: u32, id: &mut dyn FnMut(&str) -> Text) -> Text {
    id(texts.get(name).map_or("(past the limit of text)", |text| text))
}
