//! What our files say about their row groups beyond Parquet's own footer: key-value metadata `probe`, in JSON.

use std::sync::Arc;

use parquet::file::metadata::KeyValue;
use probe_proto::table::Table;
use serde::{Deserialize, Serialize};

use super::identity::{Identity, Origin};
use super::range::Values;
use super::segment::Segment;
use probe_proto::table::ColumnType;

/// The key.
const KEY: &str = "probe";

/// Of these notes; a file of a later one is refused, for what it says may mean something else.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Notes {
    version: u32,
    /// In the order of the row groups.
    groups: Vec<Note>,
}

/// Of one row group. What is about an agent is missing for rows of the collector itself.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Note {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_seq: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_seq: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rank: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    local_rank: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    world_size: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    /// Float columns whose bounds Parquet's footer can't tell: it leaves NaN out, and knows no sign of zero.
    #[serde(default)]
    pub(super) nan: Vec<String>,
}

impl Note {
    fn of(segment: &Segment, table: &Table) -> Self {
        let identity = segment.identity.as_deref();
        let origin = segment.origin.as_ref();
        let text = |text: &Arc<str>| text.to_string();
        Self {
            instance: origin.map(|origin| text(&origin.instance)),
            first_seq: origin.map(|origin| origin.first_seq),
            last_seq: origin.map(|origin| origin.last_seq),
            run: identity.map(|identity| text(&identity.run)),
            host: identity.map(|identity| text(&identity.host)),
            pid: identity.map(|identity| identity.pid),
            rank: identity.and_then(|identity| identity.rank),
            local_rank: identity.and_then(|identity| identity.local_rank),
            world_size: identity.and_then(|identity| identity.world_size),
            role: identity.map(|identity| text(&identity.role)),
            nan: untold(segment, table),
        }
    }

    /// The process, where the note is about one.
    pub(super) fn identity(&self) -> Option<Identity> {
        Some(Identity {
            run: self.run.as_deref()?.into(),
            host: self.host.as_deref()?.into(),
            pid: self.pid?,
            rank: self.rank,
            local_rank: self.local_rank,
            world_size: self.world_size,
            role: self.role.as_deref()?.into(),
        })
    }

    /// The batches, where the note says them.
    pub(super) fn origin(&self) -> Option<Origin> {
        let instance = self.instance.as_deref()?.into();
        Some(Origin { instance, first_seq: self.first_seq?, last_seq: self.last_seq? })
    }
}

fn untold(segment: &Segment, table: &Table) -> Vec<String> {
    let negative_zero = |value: f64| value == 0.0 && value.is_sign_negative();
    let columns = table.columns.iter().zip(segment.ranges()).filter(|(column, range)| match range.values {
        Values::Unknown => column.kind == ColumnType::Float64,
        Values::Floats(low, high) => negative_zero(low) || negative_zero(high),
        Values::None | Values::Ints(..) => false,
    });
    columns.map(|(column, _)| column.name.to_owned()).collect()
}

/// The notes of a file whose row groups are `segments`.
pub(super) fn write(segments: &[Arc<Segment>], table: &Table) -> Result<KeyValue, serde_json::Error> {
    let groups = segments.iter().map(|segment| Note::of(segment, table)).collect();
    let text = serde_json::to_string(&Notes { version: VERSION, groups })?;
    Ok(KeyValue::new(KEY.to_owned(), text))
}

/// A file's notes; None for a file that is none of ours.
pub(super) fn read(metadata: Option<&Vec<KeyValue>>) -> Result<Option<Vec<Note>>, String> {
    let Some(entry) = metadata.into_iter().flatten().find(|entry| entry.key == KEY) else { return Ok(None) };
    let text = entry.value.as_deref().unwrap_or_default();
    let notes: Notes = serde_json::from_str(text).map_err(|error| format!("its metadata '{KEY}': {error}"))?;
    if notes.version != VERSION {
        return Err(format!("it was written by another version of probe ({KEY} metadata {})", notes.version));
    }
    Ok(Some(notes.groups))
}
