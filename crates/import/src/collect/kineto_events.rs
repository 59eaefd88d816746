//! The records of events, by their kind.

use std::borrow::Cow;

use probe_common::error::Result;
use probe_proto::bus_factor::bus_factor;

use super::{CollectedEvents, MAX_STEPS, trailing_number};
use crate::blank_records::{DeviceActivity, device_event};
use crate::event::ChromeEvent;
use crate::flops::flops;
use crate::kinds;
use crate::number::integer;
use crate::records::{DeviceEvent, HostEvent, Launch, MemoryEvent, UNKNOWN, device, host};
use crate::steps::StepInterval;

impl CollectedEvents {
    pub(super) fn take_host(&mut self, kind: u8, event: &ChromeEvent<'_>) -> Result<()> {
        let Some(thread) = self.thread(&event.pid, &event.tid) else {
            self.leave_out("past the number of threads", 1);
            return Ok(());
        };
        let Some((ts, end)) = self.interval(event) else { return Ok(()) };
        self.widen(ts, end);
        self.processes.count(event, kind);
        if kind == host::ANNOTATION {
            if let Some(ranges) = &mut self.step_ranges {
                ranges.add(self.texts.number(&event.name), &event.name, ts, end);
            } else if let Some(number) = kinds::step_number(&event.name)
                && self.steps.len() < MAX_STEPS
            {
                self.steps.push(StepInterval { ts, end, number });
            }
        }
        if kind == host::MODULE || kind == host::FRAME && event.name.starts_with("nn.Module: ") {
            self.threads[thread as usize].has_modules = true;
        }
        let (args, number) = (&event.args, self.events as i64);
        let (external_id, id) = match kind {
            host::FRAME => (args.python_parent, args.python_id),
            host::LAUNCH => (args.external_id, args.correlation),
            _ => (args.external_id, args.sequence.filter(|sequence| *sequence >= 0)),
        };
        let texts = &mut self.texts;
        self.host.push(HostEvent {
            thread,
            kind,
            ts,
            end,
            name: texts.number(&event.name),
            number,
            external_id: external_id.unwrap_or(UNKNOWN),
            id: id.unwrap_or(UNKNOWN),
            shapes: texts.optional(args.input_shapes.map(compact).as_deref()),
            types: texts.optional(args.input_types.map(compact).as_deref()),
            call_stack: texts.optional(args.call_stack.as_deref()),
            collective: texts.optional(args.collective().as_deref()),
            flops: args.flops.or_else(|| flops(&event.name, args.input_shapes?, args.inputs)).unwrap_or(f64::NAN),
            record_function: args.record_function.unwrap_or(UNKNOWN),
            step_group: UNKNOWN,
        })?;
        if kind == host::LAUNCH
            && let Some(correlation) = args.correlation.filter(|correlation| *correlation != 0)
        {
            let graph = u8::from(event.name.contains("GraphLaunch"));
            self.launches.push(Launch { correlation, thread, ts, end, number, graph })?;
        }
        Ok(())
    }

    pub(super) fn take_memory(&mut self, event: &ChromeEvent<'_>) -> Result<()> {
        let args = &event.args;
        let Some(bytes) = args.memory_bytes.filter(|bytes| *bytes != i64::MIN) else {
            self.leave_out("memory without its size", 1);
            return Ok(());
        };
        let Some(thread) = self.thread(&event.pid, &event.tid) else {
            self.leave_out("past the number of threads", 1);
            return Ok(());
        };
        let Some((ts, end)) = self.interval(event) else { return Ok(()) };
        self.widen(ts, end);
        let unknown = |value: Option<i64>| value.unwrap_or(UNKNOWN);
        self.memory.push(MemoryEvent {
            thread,
            ts,
            number: self.events as i64,
            sorted: 0,
            device_type: args.device_type.unwrap_or(0),
            device: args.device_id.unwrap_or(0),
            address: unknown(args.address),
            bytes,
            allocated: unknown(args.total_allocated),
            reserved: unknown(args.total_reserved),
        })
    }

    pub(super) fn take_device(&mut self, kind: u8, event: &ChromeEvent<'_>) -> Result<()> {
        let Some((ts, end)) = self.interval(event) else { return Ok(()) };
        self.widen(ts, end);
        let args = &event.args;
        self.has_devices |= kind != device::SYNC;
        let elements = args.in_elements.max(args.out_elements);
        let bytes = args.bytes.or_else(|| elements?.checked_mul(kinds::dtype_bytes(args.dtype.as_deref()?)?));
        let speed = bytes.filter(|_| end > ts).map(|bytes| bytes as f64 / (end - ts) as f64);
        let busbw = match (&args.collective, args.group_size, speed) {
            (Some(collective), Some(ranks), Some(speed)) => speed * bus_factor(collective, ranks),
            _ => f64::NAN,
        };
        let communication =
            kind == device::KERNEL && (args.collective.is_some() || kinds::is_communication(&event.name));
        let (unknown, float) =
            (|value: Option<i64>| value.unwrap_or(UNKNOWN), |value: Option<f64>| value.unwrap_or(f64::NAN));
        let activity = DeviceActivity {
            ts,
            end,
            device: unknown(args.device.or_else(|| integer(&event.pid))),
            stream: unknown(args.stream.or_else(|| trailing_number(&event.tid))),
            correlation: unknown(args.correlation.filter(|correlation| *correlation != 0)),
        };
        let texts = &mut self.texts;
        self.devices.push(DeviceEvent {
            communication: u8::from(communication),
            name: texts.number(&event.name),
            external_id: unknown(args.external_id),
            grid: texts.optional(args.grid.map(compact).as_deref()),
            block: texts.optional(args.block.map(compact).as_deref()),
            registers: unknown(args.registers),
            shared_memory: unknown(args.shared_memory),
            blocks_per_sm: float(args.blocks_per_sm),
            warps_per_sm: float(args.warps_per_sm),
            occupancy: float(args.occupancy),
            bytes: unknown(bytes),
            bandwidth: float(args.bandwidth),
            collective: texts.optional(args.collective.as_deref()),
            group_name: texts.optional(args.group_name.as_deref()),
            group_ranks: texts.optional(args.group_ranks.as_deref()),
            group_size: unknown(args.group_size),
            dtype: texts.optional(args.dtype.as_deref()),
            seq: unknown(args.seq),
            elements: unknown(elements),
            busbw,
            graph: u8::from(args.graph_id.is_some_and(|graph| graph != 0)),
            ..device_event(&activity, kind)
        })
    }
}

/// JSON without the white space between its values.
fn compact(json: &str) -> Cow<'_, str> {
    if !json.contains([' ', '\n', '\t', '\r']) {
        return Cow::Borrowed(json);
    }
    let (mut out, mut quoted, mut escaped) = (String::with_capacity(json.len()), false, false);
    for character in json.chars() {
        if quoted || !matches!(character, ' ' | '\n' | '\t' | '\r') {
            out.push(character);
        }
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
    }
    Cow::Owned(out)
}
