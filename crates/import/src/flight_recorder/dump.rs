//! The form of a dump. Fields that newer versions add are skipped.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::lenient::{BoundedList, BoundedMap, LenientName, LenientNumber, LenientRanks};

/// Most operations of a dump.
const MAX_OPERATIONS: usize = 1 << 17;
/// Most groups of a dump.
pub(super) const MAX_GROUPS: usize = 1 << 14;
/// Most tensors of an operation, and most sizes of a tensor.
const MAX_TENSORS: usize = 1024;
const MAX_SIZES: usize = 64;
/// Most lines of a stack.
const MAX_FRAMES: usize = 256;

/// Shapes of tensors.
pub(super) type TensorShapes = BoundedList<BoundedList<i64, MAX_SIZES>, MAX_TENSORS>;
/// Types of tensors.
pub(super) type TensorTypes = BoundedList<String, MAX_TENSORS>;
/// A stack.
pub(super) type DumpedFrames = BoundedList<DumpedFrame, MAX_FRAMES>;

/// A dump of one process.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct FlightDump {
    pub(super) version: Option<LenientName>,
    /// The version of NCCL, in dumps before version 2.10.
    nccl_version: Option<LenientName>,
    comm_lib_version: Option<LenientName>,
    /// Absent in a dump without collectives.
    pub(super) entries: Option<BoundedList<DumpedOperation, MAX_OPERATIONS>>,
    /// Groups by name; gloo has one for all.
    pub(super) pg_config: Option<BoundedMap<GroupConfig, MAX_GROUPS>>,
    /// Status of groups, by the number that the process gives the group.
    pub(super) pg_status: Option<BoundedMap<GroupStatus, MAX_GROUPS>>,
}

/// The configuration of a group.
#[derive(Debug, Default, Deserialize)]
pub(super) struct GroupConfig {
    pub desc: Option<LenientName>,
    pub ranks: Option<LenientRanks>,
}

/// The progress of a group. A number is -1 before the first operation.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct GroupStatus {
    pub last_enqueued_collective: LenientNumber,
    pub last_started_collective: LenientNumber,
    pub last_completed_collective: LenientNumber,
}

/// An operation.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DumpedOperation {
    pub record_id: LenientNumber,
    pub pg_id: LenientNumber,
    /// Name and description of the group.
    pub process_group: Option<(LenientName, LenientName)>,
    #[serde(alias = "seq_id")]
    pub collective_seq_id: LenientNumber,
    pub p2p_seq_id: LenientNumber,
    pub is_p2p: Option<bool>,
    pub profiling_name: Option<LenientName>,
    pub time_created_ns: LenientNumber,
    pub time_discovered_started_ns: LenientNumber,
    pub time_discovered_completed_ns: LenientNumber,
    pub duration_ms: Option<f64>,
    pub timeout_ms: LenientNumber,
    pub input_sizes: Option<TensorShapes>,
    pub input_dtypes: Option<TensorTypes>,
    pub output_sizes: Option<TensorShapes>,
    pub output_dtypes: Option<TensorTypes>,
    pub state: Option<LenientName>,
    pub retired: Option<bool>,
    pub thread_name: Option<LenientName>,
    pub frames: Option<DumpedFrames>,
}

/// A line of a stack, innermost first.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DumpedFrame {
    pub name: String,
    pub filename: String,
    pub line: LenientNumber,
}

impl FlightDump {
    /// Versions as JSON.
    pub(super) fn versions(&self) -> Option<String> {
        let library = self.nccl_version.as_ref().or(self.comm_lib_version.as_ref());
        let known = [("dump", self.version.as_ref()), ("nccl", library)];
        let versions: BTreeMap<&str, &str> = known
            .into_iter()
            .filter_map(|(what, version)| Some((what, version?.0.as_str())))
            .filter(|(_, version)| !version.is_empty() && version.len() < 64)
            .collect();
        (!versions.is_empty()).then(|| serde_json::to_string(&versions).unwrap_or_default())
    }
}
