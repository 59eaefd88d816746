//! Counts, sums and bounds of the rows of one part, by the values of a few columns: `(module, stage)`, `(step)`, none at all, and
//! whatever else has far fewer combinations of values than rows. A question that groups and filters by these columns alone is answered from them,
//! without the rows.
//!
//! Sums are of times only, which are whole numbers of a small unit, so that adding them up in any order gives the same.

use std::collections::HashMap;
use std::mem::size_of_val;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, StringViewArray, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Float64Type, Int32Type, Int64Type};
use datafusion::common::{Result, ScalarValue};
use probe_proto::table::ColumnType;
use probe_store::{PackedColumn, PackedRows, times};

use super::codes::codes;
use super::group_keys::GroupKeys;

/// There are at most as many cells as rows divided by this, so that they take little memory beside the rows.
const ROWS_PER_CELL: usize = 32;
/// As many cells may always be.
const MIN_CELLS: usize = 64;
/// The sizes of the values of a column add up to less than this, so that every sum of them is an exact float.
const MAX_SIZE: u64 = 1 << 51;

/// A column of times that is added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct WantedSum {
    /// Index in the table.
    pub(super) column: usize,
    /// Whether the smallest and largest value are wanted, too.
    pub(super) bounds: bool,
}

/// What is wanted of each column, in the order of the columns.
pub(super) fn together(all: impl Iterator<Item = WantedSum>) -> Vec<WantedSum> {
    let mut wanted: Vec<WantedSum> = all.collect();
    wanted.sort_unstable_by_key(|one| (one.column, !one.bounds));
    wanted.dedup_by_key(|one| one.column);
    wanted
}

/// The sums of one part. A cell is a combination of values of the key columns.
#[derive(Debug)]
pub(super) struct GroupedSums {
    /// Number of cells.
    pub(super) cells: usize,
    /// The value of each key column in each cell.
    pub(super) keys: Vec<PackedColumn>,
    /// Number of rows of each cell.
    rows: Vec<u32>,
    columns: Vec<(WantedSum, ColumnSums)>,
}

/// One column of times, by cell. Times are in multiples of 1/[`probe_proto::TIMES_PER_SECOND`].
#[derive(Debug, Default)]
struct ColumnSums {
    /// Number of values that are not NULL.
    values: Vec<u32>,
    sums: Vec<i64>,
    /// The smallest and the largest value; empty where they are not wanted.
    bounds: Vec<(i64, i64)>,
    /// What the sizes of all values add up to.
    size: u64,
}

/// Adds up the rows of one part.
pub(super) struct GroupedSumsBuilder {
    keys: GroupKeys,
    types: Vec<DataType>,
    groups: Vec<usize>,
    rows: Vec<u32>,
    columns: Vec<(WantedSum, ColumnSums)>,
    max_cells: usize,
    max_bytes: usize,
}

impl GroupedSumsBuilder {
    /// The builder for a part of `rows` rows. The rows that are added have the key columns first, which have these `types`, and
    /// then the columns that are `wanted`. The sums may take `max_bytes`.
    pub(super) fn new(types: &[DataType], wanted: &[WantedSum], rows: usize, max_bytes: usize) -> Self {
        Self {
            keys: GroupKeys::new(types.iter().cloned().enumerate().collect()),
            types: types.to_vec(),
            groups: Vec::new(),
            rows: Vec::new(),
            columns: wanted.iter().map(|wanted| (*wanted, ColumnSums::default())).collect(),
            max_cells: (rows / ROWS_PER_CELL).max(MIN_CELLS),
            max_bytes,
        }
    }

    /// Adds rows; false where the part has too many cells or too long texts, or values whose sum is not exact.
    ///
    /// # Errors
    /// A key column has a type by which rows can't be grouped.
    pub(super) fn add(&mut self, rows: &PackedRows) -> Result<bool> {
        self.keys.of_rows(rows, &mut self.groups)?;
        let cells = self.keys.len();
        if cells > self.max_cells || self.keys.bytes() > self.max_bytes {
            return Ok(false);
        }
        self.rows.resize(cells, 0);
        for group in &self.groups {
            self.rows[*group] += 1;
        }
        let columns = self.columns.iter_mut().zip(&rows.columns[self.types.len()..]);
        Ok(columns.fold(true, |exact, ((wanted, sums), column)| {
            exact && sums.add(column, &self.groups, cells, wanted.bounds).is_some() && sums.size < MAX_SIZE
        }))
    }

    /// The sums of all rows that were added. `kinds` are the declared types of the key columns.
    ///
    /// # Errors
    /// Arrow's.
    pub(super) fn finish(mut self, kinds: &[ColumnType]) -> Result<GroupedSums> {
        let keys = self.keys.take_groups()?;
        self.rows.shrink_to_fit();
        for (_, sums) in &mut self.columns {
            sums.values.shrink_to_fit();
            sums.sums.shrink_to_fit();
            sums.bounds.shrink_to_fit();
        }
        let keys = keys.iter().zip(kinds).map(|(values, kind)| packed(values, *kind)).collect();
        Ok(GroupedSums { cells: self.rows.len(), keys, rows: self.rows, columns: self.columns })
    }
}

impl ColumnSums {
    /// Adds the values of rows, each in its group; None where one is no time.
    fn add(&mut self, column: &PackedColumn, groups: &[usize], cells: usize, bounds: bool) -> Option<()> {
        self.values.resize(cells, 0);
        self.sums.resize(cells, 0);
        if bounds {
            self.bounds.resize(cells, (i64::MAX, i64::MIN));
        }
        match column {
            PackedColumn::Constant(value) if value.is_null() => {}
            PackedColumn::Constant(ScalarValue::Float64(Some(value))) => {
                let multiple = times::multiple(*value)?;
                groups.iter().for_each(|group| self.put(*group, multiple));
            }
            PackedColumn::Offsets { base, offsets, kind: ColumnType::Float64 } => {
                let times = codes(offsets).into_iter().map(|offset| base.wrapping_add(offset as i64));
                match offsets.nulls() {
                    None => groups.iter().zip(times).for_each(|(group, time)| self.put(*group, time)),
                    Some(valid) => groups.iter().zip(times).zip(valid).for_each(|((group, time), valid)| {
                        if valid {
                            self.put(*group, time);
                        }
                    }),
                }
            }
            PackedColumn::Array(values) => {
                for (group, value) in groups.iter().zip(values.as_primitive_opt::<Float64Type>()?) {
                    if let Some(value) = value {
                        self.put(*group, times::multiple(value)?);
                    }
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn put(&mut self, group: usize, time: i64) {
        self.values[group] += 1;
        self.sums[group] = self.sums[group].wrapping_add(time);
        self.size = self.size.saturating_add(time.unsigned_abs());
        if let Some((low, high)) = self.bounds.get_mut(group) {
            *low = time.min(*low);
            *high = time.max(*high);
        }
    }
}

impl GroupedSums {
    /// Bytes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        let keys = self.keys.iter().map(|key| match key {
            PackedColumn::Constant(_) => 0,
            PackedColumn::Offsets { offsets: values, .. } | PackedColumn::Array(values) => {
                values.get_array_memory_size()
            }
            PackedColumn::Text { ids, values } => ids.get_array_memory_size() + values.get_array_memory_size(),
        });
        let columns = self.columns.iter().map(|(_, sums)| {
            size_of_val(&sums.values[..]) + size_of_val(&sums.sums[..]) + size_of_val(&sums.bounds[..])
        });
        keys.sum::<usize>() + size_of_val(&self.rows[..]) + columns.sum::<usize>() + size_of::<Self>()
    }

    /// The number of rows of each cell: the state of COUNT(*).
    pub(super) fn rows(&self) -> ArrayRef {
        Arc::new(self.rows.iter().map(|rows| Some(i64::from(*rows))).collect::<Int64Array>())
    }

    /// The number of values of each cell: the state of COUNT.
    pub(super) fn values(&self, column: usize) -> Option<ArrayRef> {
        let sums = self.column(column)?;
        Some(Arc::new(sums.values.iter().map(|values| Some(i64::from(*values))).collect::<Int64Array>()))
    }

    /// The number of values of each cell, NULL in place of 0: a state of AVG.
    pub(super) fn some_values(&self, column: usize) -> Option<ArrayRef> {
        let values = self.column(column)?.values.iter();
        let values = values.map(|values| (*values > 0).then_some(u64::from(*values)));
        Some(Arc::new(values.collect::<UInt64Array>()))
    }

    /// The sum of each cell, NULL where it has no values: the state of SUM.
    pub(super) fn sums(&self, column: usize) -> Option<ArrayRef> {
        let sums = self.column(column)?;
        Some(sums.times(sums.sums.iter().copied()))
    }

    /// The number of values of a cell and their sum in multiples.
    pub(super) fn total(&self, column: usize, cell: usize) -> Option<(u64, i64)> {
        let sums = self.column(column)?;
        Some((u64::from(sums.values[cell]), sums.sums[cell]))
    }

    /// The number of rows of a cell.
    pub(super) fn rows_of(&self, cell: usize) -> u64 {
        u64::from(self.rows[cell])
    }

    /// The smallest value of each cell, NULL where it has no values: the state of MIN.
    pub(super) fn lowest(&self, column: usize) -> Option<ArrayRef> {
        let sums = self.column(column)?;
        Some(sums.times(sums.bounds.iter().map(|(low, _)| *low)))
    }

    /// The largest value of each cell, NULL where it has no values: the state of MAX.
    pub(super) fn highest(&self, column: usize) -> Option<ArrayRef> {
        let sums = self.column(column)?;
        Some(sums.times(sums.bounds.iter().map(|(_, high)| *high)))
    }

    fn column(&self, column: usize) -> Option<&ColumnSums> {
        self.columns.iter().find(|(wanted, _)| wanted.column == column).map(|(_, sums)| sums)
    }
}

impl ColumnSums {
    /// One time of each cell, in seconds, NULL where the cell has no values.
    fn times(&self, times: impl Iterator<Item = i64>) -> ArrayRef {
        let times = times.zip(&self.values).map(|(time, values)| (*values > 0).then(|| times::float(time)));
        Arc::new(times.collect::<Float64Array>())
    }
}

/// A key column of cells in the form in which rows are filtered and grouped fastest.
fn packed(values: &ArrayRef, kind: ColumnType) -> PackedColumn {
    if let Some(texts) = values.as_string_view_opt() {
        let mut known: HashMap<&str, u32> = HashMap::new();
        let mut distinct = Vec::new();
        let ids = texts.iter().map(|text| {
            let text = text?;
            Some(*known.entry(text).or_insert_with(|| {
                distinct.push(text);
                distinct.len() as u32 - 1
            }))
        });
        let ids: ArrayRef = Arc::new(ids.collect::<UInt32Array>());
        return PackedColumn::Text { ids, values: Arc::new(StringViewArray::from_iter_values(distinct)) };
    }
    let integers: Option<Vec<Option<i64>>> = match values.data_type() {
        DataType::Int32 => Some(values.as_primitive::<Int32Type>().iter().map(|value| value.map(i64::from)).collect()),
        DataType::Int64 => Some(values.as_primitive::<Int64Type>().iter().collect()),
        _ => None,
    };
    let offsets = integers.and_then(|integers| {
        let base = integers.iter().flatten().min().copied().unwrap_or_default();
        let offset = |value: &Option<i64>| {
            value
                .map(|value| value.checked_sub(base).and_then(|offset| u32::try_from(offset).ok()))
                .map_or(Some(None), |offset| offset.map(Some))
        };
        let offsets = integers.iter().map(offset).collect::<Option<Vec<Option<u32>>>>()?;
        Some((base, Arc::new(UInt32Array::from(offsets)) as ArrayRef))
    });
    match offsets {
        Some((base, offsets)) => PackedColumn::Offsets { base, offsets, kind },
        None => PackedColumn::Array(Arc::clone(values)),
    }
}
