//! Rows of a row group that follow each other, with what their pages say of them: a query skips them within the row group.

use std::collections::BTreeSet;

use datafusion::common::ScalarValue;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::page_index::column_index::{ColumnIndexMetaData, PrimitiveColumnIndex};
use probe_proto::table::{ColumnType, Table};

use super::column_range::{ColumnRange, ValueBounds};
use super::footer::chunk_index;
use super::row_group::RowGroup;

/// Rows that follow each other.
#[derive(Debug, Clone, PartialEq)]
pub struct RowBlock {
    /// Number of rows.
    pub rows: usize,
    /// What is known of columns, by their indices in the table, identity first.
    columns: Vec<(usize, BlockColumn)>,
}

/// What is known of a column in a block.
#[derive(Debug, Clone, PartialEq)]
struct BlockColumn {
    bounds: Option<(ScalarValue, ScalarValue)>,
    /// Number of NULLs; None where only that of a larger page is known.
    nulls: Option<usize>,
}

impl RowBlock {
    /// What is known of the column with this index (identity first): smallest and largest value, and number of NULLs, each None
    /// where it is not known.
    pub fn range(
        &self,
        group: &RowGroup,
        table: &Table,
        index: usize,
    ) -> (Option<(ScalarValue, ScalarValue)>, Option<usize>) {
        if let Some((_, column)) = self.columns.iter().find(|(known, _)| *known == index) {
            return (column.bounds.clone(), column.nulls);
        }
        // Bounds of the whole row group are bounds of its rows.
        let (bounds, nulls) = group.range(table, index);
        let nulls = match nulls {
            0 => Some(0),
            nulls if nulls == group.rows => Some(self.rows),
            _ => None,
        };
        (bounds, nulls)
    }
}

/// The blocks of a row group between any two ends of pages of the columns with these `indices`; none where the file does not say
/// where its pages end.
pub(super) fn blocks(
    metadata: &ParquetMetaData,
    number: usize,
    group: &RowGroup,
    table: &Table,
    indices: &[usize],
) -> Vec<RowBlock> {
    let pages: Vec<(usize, Vec<ColumnPage>)> =
        indices.iter().filter_map(|index| Some((*index, pages(metadata, number, group, table, *index)?))).collect();
    let mut ends: BTreeSet<usize> = pages.iter().flat_map(|(_, pages)| pages.iter().map(|page| page.end)).collect();
    // Where pages have other rows than their row group, nothing is known of them.
    if ends.pop_last() != Some(group.rows) {
        return Vec::new();
    }
    ends.insert(group.rows);
    let mut begin = 0;
    let block = |end: usize| {
        let rows = end - begin;
        let column = |(index, pages): &(usize, Vec<ColumnPage>)| {
            let page = pages.get(pages.partition_point(|page| page.end < end))?;
            Some((*index, page.column(rows)))
        };
        begin = end;
        RowBlock { rows, columns: pages.iter().filter_map(column).collect() }
    };
    ends.into_iter().map(block).collect()
}

/// A page of a column.
struct ColumnPage {
    rows: usize,
    /// The number of the row after its last one, in the row group.
    end: usize,
    bounds: Option<(ScalarValue, ScalarValue)>,
    nulls: usize,
}

impl ColumnPage {
    /// What it says of some of its rows.
    fn column(&self, rows: usize) -> BlockColumn {
        let nulls = match self.nulls {
            0 => Some(0),
            nulls if nulls == self.rows => Some(rows),
            nulls if rows == self.rows => Some(nulls),
            _ => None,
        };
        BlockColumn { bounds: self.bounds.clone(), nulls }
    }
}

/// The pages of a column; None where the file has no bounds of them, or those of the row group are not known either, as where a
/// value is NaN.
fn pages(
    metadata: &ParquetMetaData,
    number: usize,
    group: &RowGroup,
    table: &Table,
    index: usize,
) -> Option<Vec<ColumnPage>> {
    let column = table.all_columns().nth(index)?;
    let at = chunk_index(metadata.row_group(number), column.name)?;
    if !matches!(group.ranges[index].values, ValueBounds::Ints(..) | ValueBounds::Floats(..)) {
        return None;
    }
    let known = metadata.column_index()?.get(number)?.get(at)?;
    // The methods of NONE panic.
    let nulls_of = if matches!(known, ColumnIndexMetaData::NONE) { None } else { known.null_counts() }?;
    let locations = metadata.offset_index()?.get(number)?.get(at)?.page_locations();
    let mut pages = Vec::with_capacity(locations.len());
    for (page, location) in locations.iter().enumerate() {
        let begin = usize::try_from(location.first_row_index).ok()?;
        let end = match locations.get(page + 1) {
            Some(next) => usize::try_from(next.first_row_index).ok()?,
            None => group.rows,
        };
        let rows = end.checked_sub(begin).filter(|rows| *rows > 0)?;
        let nulls = usize::try_from(*nulls_of.get(page)?).ok()?;
        let values = if nulls == rows { ValueBounds::None } else { values(known, column.kind, page)? };
        pages.push(ColumnPage { rows, end, bounds: ColumnRange { values, nulls }.bounds(column.kind), nulls });
    }
    (!pages.is_empty()).then_some(pages)
}

fn values(known: &ColumnIndexMetaData, kind: ColumnType, page: usize) -> Option<ValueBounds> {
    fn bounds<T: Copy>(index: &PrimitiveColumnIndex<T>, page: usize) -> Option<(T, T)> {
        Some((*index.min_values().get(page)?, *index.max_values().get(page)?))
    }
    match (known, kind) {
        (ColumnIndexMetaData::INT32(index), ColumnType::Int32) => {
            bounds(index, page).map(|(low, high)| ValueBounds::Ints(low.into(), high.into()))
        }
        (ColumnIndexMetaData::INT64(index), ColumnType::Int64 | ColumnType::Timestamp) => {
            bounds(index, page).map(|(low, high)| ValueBounds::Ints(low, high))
        }
        // Zeros are signed outwards, as in the footer.
        (ColumnIndexMetaData::DOUBLE(index), ColumnType::Float64) => {
            bounds(index, page).map(|(low, high)| ValueBounds::Floats(low + 0.0, high + 0.0))
        }
        _ => None,
    }
}
