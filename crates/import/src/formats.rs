//! The formats that can be read: the name of each, how a file of it is recognised, and its reader. A new one is a line in
//! each function of this module, and its reader.

use probe_common::error::{Error, Result};
use probe_store::row_files::RowSink;

use super::capture::{CaptureSource, ImportedCapture};
use super::head::FileHead;
use super::{
    execution_trace, flight_recorder, kineto, memory_snapshot, nccl_inspector, nsight_compute, nsight_systems, xplane,
};

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// Execution traces of PyTorch.
    ExecutionTrace,
    /// Dumps of PyTorch's Flight Recorder, pickle or JSON.
    FlightRecorder,
    /// Traces of torch.profiler (Kineto), and Chrome JSON of TensorFlow and JAX.
    Kineto,
    /// Memory snapshots of torch's CUDA allocator.
    MemorySnapshot,
    /// Dumps of NCCL's inspector.
    NcclInspector,
    /// CSV pages of Nsight Compute.
    NsightCompute,
    /// SQLite exports of Nsight Systems.
    NsightSystems,
    /// Traces of TensorFlow, JAX and torch_xla.
    XPlane,
}

impl TraceFormat {
    /// All formats. A file has the first one that recognises it.
    pub const ALL: &'static [Self] = &[
        Self::ExecutionTrace,
        Self::FlightRecorder,
        Self::NcclInspector,
        Self::Kineto,
        Self::MemorySnapshot,
        Self::NsightCompute,
        Self::NsightSystems,
        Self::XPlane,
    ];

    /// The name in `--format` and `python.captures`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ExecutionTrace => execution_trace::NAME,
            Self::FlightRecorder => "flight-recorder",
            Self::Kineto => "kineto",
            Self::MemorySnapshot => memory_snapshot::NAME,
            Self::NcclInspector => nccl_inspector::NAME,
            Self::NsightCompute => nsight_compute::NAME,
            Self::NsightSystems => nsight_systems::NAME,
            Self::XPlane => xplane::NAME,
        }
    }

    /// A description of the format, for a list.
    pub const fn about(self) -> &'static str {
        match self {
            Self::ExecutionTrace => "execution traces of PyTorch",
            Self::FlightRecorder => "dumps of PyTorch's Flight Recorder",
            Self::Kineto => "traces of torch.profiler (Kineto), and Chrome JSON of TensorFlow and JAX",
            Self::MemorySnapshot => "memory snapshots of torch's CUDA allocator",
            Self::NcclInspector => "dumps of NCCL's inspector",
            Self::NsightCompute => "CSV pages of Nsight Compute",
            Self::NsightSystems => "SQLite exports of Nsight Systems",
            Self::XPlane => "XPlane traces of TensorFlow, JAX and torch_xla",
        }
    }

    /// Whether a file with this beginning has this format.
    fn recognises(self, head: &FileHead) -> bool {
        match self {
            Self::ExecutionTrace => execution_trace::recognises(head),
            Self::FlightRecorder => flight_recorder::is_dump(head),
            Self::NcclInspector => nccl_inspector::recognises(head),
            // Other formats in JSON have keys of their own, and come before this one.
            Self::Kineto => head.is_json(),
            Self::MemorySnapshot => memory_snapshot::recognises(head),
            Self::NsightCompute => nsight_compute::recognises(&head.bytes),
            Self::NsightSystems => nsight_systems::recognises(&head.bytes),
            Self::XPlane => xplane::recognises(&head.bytes),
        }
    }

    /// Reads a file and writes its rows. A file of several processes may be several captures.
    ///
    /// # Errors
    /// The file is not of the format, or rows can't be written.
    pub(crate) fn import(
        self,
        reading: &CaptureSource<'_>,
        rows: &mut dyn RowSink,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<ImportedCapture>> {
        match self {
            Self::ExecutionTrace => execution_trace::import(reading, rows, progress).map(|capture| vec![capture]),
            Self::NcclInspector => nccl_inspector::import(reading, rows, progress),
            Self::FlightRecorder => flight_recorder::import_file(reading, rows, progress).map(|capture| vec![capture]),
            Self::Kineto => kineto::import_file(reading, rows, progress),
            Self::MemorySnapshot => memory_snapshot::import_file(reading, rows, progress).map(|capture| vec![capture]),
            Self::NsightCompute => nsight_compute::import(reading, rows, progress),
            Self::NsightSystems => nsight_systems::import(reading, rows, progress),
            Self::XPlane => xplane::import(reading, rows, progress).map(|capture| vec![capture]),
        }
    }

    /// The format of a file with this beginning.
    pub(crate) fn detect(head: &FileHead) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.recognises(head))
    }

    /// The format with this name.
    ///
    /// # Errors
    /// No format has this name.
    pub fn named(name: &str) -> Result<Self> {
        let names: Vec<&str> = Self::ALL.iter().map(|format| format.name()).collect();
        Self::ALL.iter().copied().find(|format| format.name() == name).ok_or_else(|| {
            Error::usage(format!("there is no format {name}")).hint(format!("formats are {}", names.join(", ")))
        })
    }

    /// A hint that lists the formats.
    pub(crate) fn names_hint() -> String {
        let each: Vec<String> =
            Self::ALL.iter().map(|format| format!("{} ({})", format.about(), format.name())).collect();
        format!("probe import reads {}, plain or gzip; --format NAME names one of them", each.join("; "))
    }
}
