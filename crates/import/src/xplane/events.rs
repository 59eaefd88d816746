//! Turns events into records, by their line: for XPlane and for the Chrome JSON that is made of it.

use probe_common::error::Result;

use super::event_stats::{EventStats, KernelDetails, bytes_in_details};
use super::lines::{Line, Plane};
use crate::blank_records::{DeviceActivity, device_event, host_event};
use crate::collect::{CollectedEvents, MAX_STEPS};
use crate::kinds;
use crate::records::{DeviceEvent, HostEvent, Launch, UNKNOWN, device, host};
use crate::steps::StepInterval;

/// An event and the line that it is on.
pub(crate) struct PlaneEvent<'a> {
    pub plane: Plane,
    pub line: Line,
    /// The thread, for a line of the host.
    pub thread: Option<u32>,
    pub name: &'a str,
    pub ts: i64,
    pub end: i64,
    pub stats: EventStats<'a>,
}

impl CollectedEvents {
    /// Takes an event.
    ///
    /// # Errors
    /// Records can't be written.
    pub(crate) fn take_plane_event(&mut self, event: &PlaneEvent<'_>) -> Result<()> {
        let device = match event.plane {
            Plane::Gpu(device) | Plane::Tpu(device) => device,
            _ => UNKNOWN,
        };
        match event.line {
            Line::Stream(stream) => {
                self.widen(event.ts, event.end);
                let record = self.activity(event, device, stream);
                self.devices.push(record)
            }
            Line::Operations(line) => {
                self.widen(event.ts, event.end);
                let record = self.activity(event, device, line);
                match self.device_lines.take_operation(record) {
                    Some(before) => self.devices.push(before),
                    None => Ok(()),
                }
            }
            Line::Programs => {
                // jit_train_step(9646411105960254074): the number in brackets is the program's.
                let name = event.name.split_once('(').map_or(event.name, |(name, _)| name);
                let name = self.texts.number(name);
                self.device_lines.take_program(device, (event.ts, event.end), name);
                self.leave_out("run of a program, which is in the module of its activities", 1);
                Ok(())
            }
            Line::Steps => {
                let number = event.stats.step.or_else(|| event.name.trim().parse().ok()).or(event.stats.group);
                if let Some(number) = number {
                    let step = StepInterval { ts: event.ts, end: event.end, number };
                    self.device_lines.take_step(device, step, event.stats.group);
                }
                self.leave_out("step, which is in the step of its activities", 1);
                Ok(())
            }
            Line::Thread => self.take_thread_event(event),
            Line::Derived => {
                self.leave_out("line that repeats the time of others", 1);
                Ok(())
            }
            Line::Other => {
                self.leave_out("other line or plane", 1);
                Ok(())
            }
        }
    }

    /// Takes the operations that are open after the last event.
    ///
    /// # Errors
    /// Records can't be written.
    pub(crate) fn finish_planes(&mut self) -> Result<()> {
        for event in self.device_lines.finish() {
            self.devices.push(event)?;
        }
        let enclosing = self.device_lines.enclosing;
        if enclosing > 0 {
            self.leave_out("operation around others, whose time is theirs", enclosing);
        }
        Ok(())
    }

    fn activity(&mut self, event: &PlaneEvent<'_>, device: i64, stream: i64) -> DeviceEvent {
        self.has_devices = true;
        let stats = &event.stats;
        let (kind, name) = match stats.memcpy_details.or(stats.memset_details) {
            Some(_) if stats.memset_details.is_some() => (device::MEMSET, "Memset"),
            Some(_) => (device::MEMCPY, copy_name(event.name)),
            None if event.name.starts_with("Memset") => (device::MEMSET, "Memset"),
            None if event.name.starts_with("Memcpy") => (device::MEMCPY, copy_name(event.name)),
            None if stats.hlo_category.is_some_and(|category| category.starts_with("copy")) => {
                (device::MEMCPY, event.name)
            }
            None => (device::KERNEL, event.name),
        };
        let bytes = stats.memcpy_details.or(stats.memset_details).and_then(bytes_in_details);
        let bandwidth =
            bytes.filter(|_| event.end > event.ts).map(|bytes| bytes as f64 / (event.end - event.ts) as f64);
        let details = stats.kernel_details.map(KernelDetails::of).unwrap_or_default();
        let occupancy = stats.occupancy.filter(|occupancy| *occupancy > 0.0).or(details.occupancy);
        let is_library = kinds::is_communication(event.name);
        let collective =
            stats.collective(event.name).filter(|_| is_library || matches!(event.line, Line::Operations(_)));
        let is_communication = kind == device::KERNEL && (is_library || collective.is_some());
        let texts = &mut self.texts;
        let correlation = stats.correlation.unwrap_or(UNKNOWN);
        let activity = DeviceActivity { ts: event.ts, end: event.end, device, stream, correlation };
        DeviceEvent {
            communication: u8::from(is_communication),
            name: texts.number(name),
            grid: texts.optional(details.grid.as_deref()),
            block: texts.optional(details.block.as_deref()),
            registers: details.registers.unwrap_or(UNKNOWN),
            shared_memory: details.shared_memory.unwrap_or(UNKNOWN),
            occupancy: occupancy.unwrap_or(f64::NAN),
            bytes: bytes.unwrap_or(UNKNOWN),
            bandwidth: bandwidth.unwrap_or(f64::NAN),
            collective: texts.optional(collective),
            operator: texts.optional(stats.operator()),
            module: texts.optional(stats.hlo_module),
            step_group: stats.group.unwrap_or(UNKNOWN),
            flops: stats.flops.unwrap_or(f64::NAN),
            bytes_accessed: stats.bytes_accessed.unwrap_or(UNKNOWN),
            ..device_event(&activity, kind)
        }
    }

    fn take_thread_event(&mut self, event: &PlaneEvent<'_>) -> Result<()> {
        let Some(thread) = event.thread else {
            self.leave_out("past the number of threads", 1);
            return Ok(());
        };
        let (stats, name) = (&event.stats, event.name);
        let kind = match stats.correlation {
            _ if name.starts_with('$') => host::FRAME,
            Some(_) => host::LAUNCH,
            None if matches!(name, "MemoryAllocation" | "MemoryDeallocation") => {
                self.leave_out("memory", 1);
                return Ok(());
            }
            None if event.end == event.ts => {
                self.leave_out("instant", 1);
                return Ok(());
            }
            None if is_operator(name) => host::OPERATOR,
            None => host::ANNOTATION,
        };
        let (ts, end) = (event.ts, event.end);
        self.widen(ts, end);
        if let Some(number) = stats.step
            && kind == host::ANNOTATION
            && self.steps.len() < MAX_STEPS
        {
            self.steps.push(StepInterval { ts, end, number });
        }
        let number = self.events as i64;
        let correlation = stats.correlation.filter(|_| kind == host::LAUNCH);
        let record = HostEvent {
            name: self.texts.number(name),
            id: correlation.unwrap_or(UNKNOWN),
            step_group: stats.group.unwrap_or(UNKNOWN),
            ..host_event(thread, kind, ts, end, number)
        };
        self.host.push(record)?;
        match correlation {
            Some(correlation) => {
                let graph = u8::from(name.contains("GraphLaunch"));
                self.launches.push(Launch { correlation, thread, ts, end, number, graph })
            }
            None => Ok(()),
        }
    }
}

/// Whether a name is that of a TensorFlow operator with its type: `dense/MatMul:MatMul`.
pub(super) fn is_operator(name: &str) -> bool {
    let Some((operator, kind)) = name.rsplit_once(':') else { return false };
    let is_type = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = |c: char| c.is_ascii_uppercase() || c == '_';
    !operator.is_empty() && !operator.ends_with(':') && kind.starts_with(begins) && kind.chars().all(is_type)
}

/// The name of a copy, as in other captures.
fn copy_name(name: &str) -> &str {
    match name {
        "MemcpyH2D" | "CopyHostToDevice" => "Memcpy HtoD",
        "MemcpyD2H" | "CopyDeviceToHost" => "Memcpy DtoH",
        "MemcpyD2D" | "CopyDeviceToDevice" => "Memcpy DtoD",
        "MemcpyP2P" => "Memcpy PtoP",
        "MemcpyH2H" => "Memcpy HtoH",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::is_operator;

    #[test]
    fn operators_are_told_from_ranges_of_the_runtime() {
        for operator in ["dense/MatMul:MatMul", "identity_RetVal:_Retval"] {
            assert!(is_operator(operator), "{operator}");
        }
        for other in ["ExecutorState::Process", "jit_f:XLA GPU module", "MatMul", ":MatMul", "a:b", "PjitFunction(f)"] {
            assert!(!is_operator(other), "{other}");
        }
    }
}
