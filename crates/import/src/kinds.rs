//! The kind of an event, by its category and name, in the names of every version.

use super::records::{device, host};

/// What an event becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// An event of a host, with its kind of [`host`].
    Host(u8),
    /// An event of a device, with its kind of [`device`].
    Device(u8),
    /// An allocation or a free.
    Memory,
    /// Work of the profiler itself.
    Overhead,
    /// An event that becomes no row, with the reason.
    LeftOut(&'static str),
}

/// Names that were operators by category in 2021, and are ranges of the program.
const ANNOTATIONS: &[&str] = &["ProfilerStep#", "enumerate(Data", "Optimizer.step#", "Optimizer.zero_grad#"];

pub(crate) fn event_kind(ph: &str, cat: &str, name: &str) -> EventKind {
    match ph {
        "X" => {}
        "M" => return EventKind::LeftOut("metadata of viewers"),
        "s" | "f" | "t" => return EventKind::LeftOut("flow"),
        "C" => return EventKind::LeftOut("counter"),
        "i" | "I" | "R" if name == "[memory]" => return EventKind::Memory,
        "i" | "I" | "R" => return EventKind::LeftOut("instant"),
        "b" | "e" | "n" => return EventKind::LeftOut("begin or end of an asynchronous event"),
        "B" | "E" => return EventKind::LeftOut("begin or end without a duration"),
        _ => return EventKind::LeftOut("unknown phase"),
    }
    let lower = cat.to_ascii_lowercase();
    match lower.as_str() {
        "cpu_op" | "operator" | "hpu_op" | "glow_runtime"
            if ANNOTATIONS.iter().any(|start| name.starts_with(start)) =>
        {
            EventKind::Host(host::ANNOTATION)
        }
        "cpu_op" | "user_annotation" if module_name(name).is_some() => EventKind::Host(host::MODULE),
        "cpu_op" | "operator" => EventKind::Host(host::OPERATOR),
        "user_annotation" => EventKind::Host(host::ANNOTATION),
        "python_function" => EventKind::Host(host::FRAME),
        "runtime"
        | "cuda_runtime"
        | "cuda_driver"
        | "xpu_runtime"
        | "xpu_driver"
        | "mtia_runtime"
        | "privateuse1_runtime"
        | "privateuse1_driver" => EventKind::Host(host::LAUNCH),
        "kernel" => EventKind::Device(device::KERNEL),
        "mtia_ccp_events" if name.starts_with("dma") => EventKind::Device(device::MEMCPY),
        "mtia_ccp_events" => EventKind::Device(device::KERNEL),
        "memcpy" | "gpu_memcpy" => EventKind::Device(device::MEMCPY),
        "memset" | "gpu_memset" => EventKind::Device(device::MEMSET),
        "cuda_sync" | "xpu_sync" => EventKind::Device(device::SYNC),
        "gpu_user_annotation" => EventKind::LeftOut("range shown on a stream"),
        "cuda_profiler_range" => EventKind::LeftOut("hardware counters"),
        "overhead" => EventKind::Overhead,
        "trace" => EventKind::LeftOut("span of the whole capture"),
        _ => EventKind::LeftOut("other category"),
    }
}

/// The number of the step that a range is.
pub(crate) fn step_number(name: &str) -> Option<i64> {
    name.strip_prefix("ProfilerStep#")?.parse().ok()
}

/// What the name of a range begins with that the agent began around the call of a module (`probe_agent/capture/session.py`).
pub(crate) const MODULE_PREFIX: &str = "probe_agent.module: ";

/// The module of a range that the agent began around its call.
pub(crate) fn module_name(name: &str) -> Option<&str> {
    name.strip_prefix(MODULE_PREFIX)
}

/// Whether a kernel belongs to a library for collectives.
pub(crate) fn is_communication(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    ["nccl", "rccl", "oneccl", "hccl"].iter().any(|library| lower.contains(library))
}

/// Torch's name of a device, by c10's number of its type and its own number.
pub(crate) fn device_name(device_type: i64, device: i64) -> String {
    let name = match device_type {
        0 => return "cpu".into(),
        1 => "cuda",
        6 => "hip",
        9 => "xla",
        12 => "xpu",
        13 => "mps",
        15 => "hpu",
        19 => "mtia",
        20 => "privateuseone",
        other => return format!("type{other}:{device}"),
    };
    format!("{name}:{device}")
}

/// Bytes of an element of a type, by c10's name.
pub(crate) fn dtype_bytes(dtype: &str) -> Option<i64> {
    Some(match dtype.to_ascii_lowercase().as_str() {
        "double" | "long" | "complexfloat" | "int64" | "float64" => 8,
        "float" | "int" | "float32" | "int32" | "uint32" => 4,
        "half" | "bfloat16" | "short" | "float16" => 2,
        "byte" | "char" | "bool" | "int8" | "uint8" | "float8_e4m3fn" | "float8_e5m2" | "float8_e4m3fnuz"
        | "float8_e5m2fnuz" => 1,
        "complexdouble" => 16,
        _ => return None,
    })
}
