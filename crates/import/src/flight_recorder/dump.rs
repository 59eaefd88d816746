//! A dump as it is written. What newer versions add is passed over.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::lenient::{Name, Number, Ranks};

/// A dump of one process.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Dump {
    pub(super) version: Option<Name>,
    /// Before version 2.10 of dumps.
    nccl_version: Option<Name>,
    comm_lib_version: Option<Name>,
    /// Absent in a dump without collectives.
    pub(super) entries: Option<Vec<Entry>>,
    /// By the group's name; gloo has one for all.
    pub(super) pg_config: Option<BTreeMap<Name, GroupConfig>>,
    /// By the number that the process gives the group.
    pub(super) pg_status: Option<BTreeMap<Name, GroupStatus>>,
}

/// What a group is.
#[derive(Debug, Default, Deserialize)]
pub(super) struct GroupConfig {
    pub desc: Option<Name>,
    pub ranks: Option<Ranks>,
}

/// How far a group is. -1 where it is nowhere yet.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
pub(super) struct GroupStatus {
    pub last_enqueued_collective: Number,
    pub last_started_collective: Number,
    pub last_completed_collective: Number,
}

/// An operation.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Entry {
    pub record_id: Number,
    pub pg_id: Number,
    /// Name and description.
    pub process_group: Option<(Name, Name)>,
    #[serde(alias = "seq_id")]
    pub collective_seq_id: Number,
    pub p2p_seq_id: Number,
    pub is_p2p: Option<bool>,
    pub profiling_name: Option<Name>,
    pub time_created_ns: Number,
    pub time_discovered_started_ns: Number,
    pub time_discovered_completed_ns: Number,
    pub duration_ms: Option<f64>,
    pub timeout_ms: Number,
    pub input_sizes: Option<Vec<Vec<i64>>>,
    pub input_dtypes: Option<Vec<String>>,
    pub output_sizes: Option<Vec<Vec<i64>>>,
    pub output_dtypes: Option<Vec<String>>,
    pub state: Option<Name>,
    pub retired: Option<bool>,
    pub thread_name: Option<Name>,
    pub frames: Option<Vec<Frame>>,
}

/// A line of a stack, innermost first.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Frame {
    pub name: String,
    pub filename: String,
    pub line: Number,
}

impl Dump {
    /// Versions in JSON.
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
