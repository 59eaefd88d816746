//! Notes on row groups beyond Parquet's own footer, in JSON, as key-value metadata `probe` of our files.

use std::collections::BTreeMap;
use std::sync::Arc;

use parquet::file::metadata::KeyValue;
use probe_proto::table::ColumnType;
use probe_proto::table::Table;
use serde::{Deserialize, Serialize};

use super::column_range::ValueBounds;
use super::identity::{BatchOrigin, ProcessIdentity};
use super::row_group::RowGroup;
use super::schema::identity_columns;
use super::segment::Segment;
use super::sums::{self, ExactSums};

/// The metadata key of the notes.
const KEY: &str = "probe";

/// The newest version of notes. A file of a later one is refused, because its notes may mean something else.
const VERSION: u32 = 2;
/// The version of notes without ranges of batches, which older programs read correctly.
const WITHOUT_RANGES: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct FileNotes {
    version: u32,
    /// The notes, in the order of the row groups.
    groups: Vec<RowGroupNote>,
}

/// The note on one row group. The fields about an agent are missing for rows of the collector itself.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct RowGroupNote {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_seq: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_seq: Option<u64>,
    /// The batches of a merged row group: first and last of each stretch, where they are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ranges: Vec<(u64, u64)>,
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
    /// Float columns whose bounds are not in Parquet's footer: it leaves NaN out, and does not keep the sign of zero.
    #[serde(default)]
    pub(super) nan: Vec<String>,
    /// Exact sums of float columns, in whole multiples of 2^-27.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    sums: BTreeMap<String, i64>,
}

impl RowGroupNote {
    /// The note on a row group that is this segment.
    pub(super) fn of(segment: &Segment, table: &Table) -> Self {
        let origins = segment.origin.as_slice();
        Self::new(segment.identity.as_deref(), origins, without_range(segment, table), &segment.sums, table)
    }

    /// The note on a row group that is made of these `groups`.
    pub(super) fn merged(groups: &[&RowGroup], table: &Table) -> Self {
        let identity = groups.first().and_then(|group| group.identity.as_deref());
        let mut origins: Vec<BatchOrigin> = Vec::new();
        for origin in groups.iter().flat_map(|group| &group.origins) {
            match origins.last_mut() {
                Some(last) if last.last_seq.checked_add(1) == Some(origin.first_seq) => last.last_seq = origin.last_seq,
                _ => origins.push(origin.clone()),
            }
        }
        let unknown = |index: &usize| {
            let own = *index + identity_columns(table);
            table.columns[*index].kind == ColumnType::Float64
                && groups.iter().any(|group| match group.ranges[own].values {
                    ValueBounds::Unknown => true,
                    ValueBounds::Floats(low, high) => is_negative_zero(low) || is_negative_zero(high),
                    ValueBounds::None | ValueBounds::Ints(..) => false,
                })
        };
        let without_range = (0..table.columns.len()).filter(unknown).map(|index| table.columns[index].name.to_owned());
        let sums = groups.iter().map(|group| group.sums.clone()).reduce(|one, other| sums::add(&one, &other));
        Self::new(identity, &origins, without_range.collect(), &sums.unwrap_or_default(), table)
    }

    fn new(
        identity: Option<&ProcessIdentity>,
        origins: &[BatchOrigin],
        nan: Vec<String>,
        sums: &ExactSums,
        table: &Table,
    ) -> Self {
        let text = |text: &Arc<str>| text.to_string();
        let range = |origin: &BatchOrigin| (origin.first_seq, origin.last_seq);
        Self {
            instance: origins.first().map(|origin| text(&origin.instance)),
            first_seq: origins.first().map(|origin| origin.first_seq),
            last_seq: origins.last().map(|origin| origin.last_seq),
            ranges: if origins.len() > 1 { origins.iter().map(range).collect() } else { Vec::new() },
            run: identity.map(|identity| text(&identity.run)),
            host: identity.map(|identity| text(&identity.host)),
            pid: identity.map(|identity| identity.pid),
            rank: identity.and_then(|identity| identity.rank),
            local_rank: identity.and_then(|identity| identity.local_rank),
            world_size: identity.and_then(|identity| identity.world_size),
            role: identity.map(|identity| text(&identity.role)),
            nan,
            sums: sums.iter().map(|(index, sum)| (table.columns[*index].name.to_owned(), *sum)).collect(),
        }
    }

    /// The process, where the rows are of one.
    pub(super) fn identity(&self) -> Option<ProcessIdentity> {
        Some(ProcessIdentity {
            run: self.run.as_deref()?.into(),
            host: self.host.as_deref()?.into(),
            pid: self.pid?,
            rank: self.rank,
            local_rank: self.local_rank,
            world_size: self.world_size,
            role: self.role.as_deref()?.into(),
        })
    }

    /// The batches, where the note names them.
    pub(super) fn origins(&self) -> Vec<BatchOrigin> {
        let (Some(instance), Some(first), Some(last)) = (self.instance.as_deref(), self.first_seq, self.last_seq)
        else {
            return Vec::new();
        };
        let instance: Arc<str> = instance.into();
        let one = [(first, last)];
        let ranges = if self.ranges.is_empty() { &one[..] } else { &self.ranges };
        let origin = |(first_seq, last_seq): &(u64, u64)| BatchOrigin {
            instance: Arc::clone(&instance),
            first_seq: *first_seq,
            last_seq: *last_seq,
        };
        ranges.iter().map(origin).collect()
    }

    /// The exact sums, by index of the column.
    pub(super) fn sums(&self, table: &Table) -> ExactSums {
        let columns = table.columns.iter().enumerate();
        columns.filter_map(|(index, column)| Some((index, *self.sums.get(column.name)?))).collect()
    }
}

fn is_negative_zero(value: f64) -> bool {
    value == 0.0 && value.is_sign_negative()
}

/// Float columns whose range in a file would not say what the segment has: NaN, or a negative zero as a bound.
fn without_range(segment: &Segment, table: &Table) -> Vec<String> {
    let columns = table.columns.iter().zip(segment.ranges()).filter(|(column, range)| match range.values {
        ValueBounds::Unknown => column.kind == ColumnType::Float64,
        ValueBounds::Floats(low, high) => is_negative_zero(low) || is_negative_zero(high),
        ValueBounds::None | ValueBounds::Ints(..) => false,
    });
    columns.map(|(column, _)| column.name.to_owned()).collect()
}

/// The metadata entry for the notes of a file.
pub(super) fn write(groups: Vec<RowGroupNote>) -> Result<KeyValue, serde_json::Error> {
    let version = if groups.iter().any(|note| !note.ranges.is_empty()) { VERSION } else { WITHOUT_RANGES };
    let text = serde_json::to_string(&FileNotes { version, groups })?;
    Ok(KeyValue::new(KEY.to_owned(), text))
}

/// The notes of a file; None for a file of another program.
pub(super) fn read(metadata: Option<&Vec<KeyValue>>) -> Result<Option<Vec<RowGroupNote>>, String> {
    let Some(entry) = metadata.into_iter().flatten().find(|entry| entry.key == KEY) else { return Ok(None) };
    let text = entry.value.as_deref().unwrap_or_default();
    let notes: FileNotes = serde_json::from_str(text).map_err(|error| format!("its metadata '{KEY}': {error}"))?;
    if notes.version > VERSION {
        return Err(format!("it was written by another version of probe ({KEY} metadata {})", notes.version));
    }
    Ok(Some(notes.groups))
}
