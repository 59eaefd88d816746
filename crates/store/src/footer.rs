//! A Parquet footer's statistics of a row group's columns, as the store's own ranges.

use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::statistics::Statistics;
use probe_proto::table::{ColumnType, Table};

use super::column_range::{ColumnRange, ValueBounds};
use super::identity::ProcessIdentity;
use super::schema::identity_columns;

/// The column chunk with this name.
pub(super) fn chunk<'a>(group: &'a RowGroupMetaData, name: &str) -> Option<&'a ColumnChunkMetaData> {
    chunk_index(group, name).map(|index| group.column(index))
}

/// The index of the column chunk with this name.
pub(super) fn chunk_index(group: &RowGroupMetaData, name: &str) -> Option<usize> {
    group.columns().iter().position(|column| matches!(column.column_path().parts(), [only] if only == name))
}

/// The bytes of each column of the table in the file, identity first; 0 where the file lacks it.
pub(super) fn column_bytes(group: &RowGroupMetaData, table: &Table) -> Box<[u64]> {
    let bytes = |name| chunk(group, name).map_or(0, |chunk| chunk.compressed_size().max(0) as u64);
    table.all_columns().map(|column| bytes(column.name)).collect()
}

/// The range of each column of the table, identity first. `exact` says whether the footer's bounds of a float column are
/// those of all its values.
pub(super) fn ranges(
    group: &RowGroupMetaData,
    table: &Table,
    exact: impl Fn(&str) -> bool,
) -> Result<Box<[ColumnRange]>, String> {
    let rows = group.num_rows() as usize;
    let range = |column: &probe_proto::table::Column| {
        let Some(chunk) = chunk(group, column.name) else {
            return Ok(ColumnRange { values: ValueBounds::None, nulls: rows });
        };
        let statistics = chunk.statistics();
        let nulls = match statistics.and_then(Statistics::null_count_opt) {
            Some(nulls) => nulls as usize,
            None if chunk.column_descr().max_def_level() == 0 => 0,
            None => return Err(format!("its footer does not say how many values of {} are NULL", column.name)),
        };
        let values = match statistics {
            _ if nulls == rows => ValueBounds::None,
            Some(statistics) => values(statistics, column.kind, || exact(column.name)),
            None => ValueBounds::Unknown,
        };
        Ok(ColumnRange { values, nulls })
    };
    table.all_columns().map(range).collect()
}

fn values(statistics: &Statistics, kind: ColumnType, exact: impl FnOnce() -> bool) -> ValueBounds {
    let bounds = match (statistics, kind) {
        (Statistics::Int32(bounds), ColumnType::Int32) => {
            bounds.min_opt().zip(bounds.max_opt()).map(|(low, high)| ValueBounds::Ints((*low).into(), (*high).into()))
        }
        (Statistics::Int64(bounds), ColumnType::Int64 | ColumnType::Timestamp) => {
            bounds.min_opt().zip(bounds.max_opt()).map(|(low, high)| ValueBounds::Ints(*low, *high))
        }
        (Statistics::Double(bounds), ColumnType::Float64) if exact() => {
            // The footer's zeros are signed outwards, whatever the signs of the values. Columns with a negative zero are
            // never exact, so that every zero here is positive.
            bounds.min_opt().zip(bounds.max_opt()).map(|(low, high)| ValueBounds::Floats(low + 0.0, high + 0.0))
        }
        _ => None,
    };
    bounds.unwrap_or(ValueBounds::Unknown)
}

/// The process of all rows, where the footer shows that there is only one.
pub(super) fn identity(group: &RowGroupMetaData, table: &Table) -> Option<ProcessIdentity> {
    if identity_columns(table) == 0 {
        return None;
    }
    let rows = group.num_rows() as u64;
    let text = |name| match chunk(group, name)?.statistics()? {
        Statistics::ByteArray(bounds)
            if bounds.null_count_opt() == Some(0) && bounds.min_is_exact() && bounds.max_is_exact() =>
        {
            let (low, high) = (bounds.min_opt()?, bounds.max_opt()?);
            if low == high { Some(low.as_utf8().ok()?.into()) } else { None }
        }
        _ => None,
    };
    let int = |name| match chunk(group, name)?.statistics()? {
        Statistics::Int32(bounds) if bounds.null_count_opt() == Some(rows) => Some(None),
        Statistics::Int32(bounds) if bounds.null_count_opt() == Some(0) && bounds.min_opt() == bounds.max_opt() => {
            Some(Some(*bounds.min_opt()?))
        }
        _ => None,
    };
    Some(ProcessIdentity {
        run: text("run")?,
        host: text("host")?,
        pid: int("pid")??,
        rank: int("rank")?,
        local_rank: int("local_rank")?,
        world_size: int("world_size")?,
        role: text("role")?,
    })
}
