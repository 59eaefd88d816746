//! Finds the group of each row by the ids that rows have for their texts and by small integers: a combination of ids is looked
//! up among the groups once a batch, and every other row with that combination by an index.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::builder::StringViewBuilder;
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanBuilder, Int32Builder, Int64Builder, StringViewArray, TimestampNanosecondBuilder,
};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use datafusion::common::hash_utils::RandomState;
use datafusion::common::{DataFusionError, Result, ScalarValue};
use probe_store::{PackedColumn, PackedRows};

use super::codes::{add_codes, codes, largest};

/// The most combinations of a batch for which an index is kept.
const MAX_COMBINATIONS: usize = 64 << 10;
/// The entry of a combination whose group is not known yet.
const UNKNOWN: u32 = u32::MAX;

/// Whether rows can be grouped by values of this type.
pub(super) fn is_supported(kind: &DataType) -> bool {
    matches!(
        kind,
        DataType::Utf8View
            | DataType::Int32
            | DataType::Int64
            | DataType::Boolean
            | DataType::Timestamp(TimeUnit::Nanosecond, _)
    )
}

/// The groups of the rows so far.
pub(super) struct GroupKeys {
    /// The columns of the rows by which they are grouped, and their types.
    columns: Vec<(usize, DataType)>,
    /// Groups by their keys: a word for each column, and one whose bits say which columns are NULL.
    groups: HashMap<Box<[u64]>, u32, RandomState>,
    /// The keys of all groups in the order in which they were found.
    keys: Vec<u64>,
    texts: NumberedTexts,
    index: GroupIndex,
}

/// Distinct texts of all columns, numbered.
#[derive(Default)]
struct NumberedTexts {
    numbers: HashMap<Arc<str>, u64, RandomState>,
    texts: Vec<Arc<str>>,
    bytes: usize,
}

/// The group of each combination of codes, as far as it is known, for as long as the codes have the same meaning.
#[derive(Default)]
struct GroupIndex {
    meaning: Vec<GroupColumn>,
    groups: Vec<u32>,
}

/// A group column of some rows: the meaning of its codes, and their number. The last code is NULL's.
#[derive(Clone)]
struct GroupColumn {
    codes: usize,
    of: GroupValues,
}

#[derive(Clone)]
enum GroupValues {
    Value(ScalarValue),
    Integers(i64),
    Texts(Arc<StringViewArray>),
}

impl PartialEq for GroupColumn {
    fn eq(&self, other: &Self) -> bool {
        self.codes == other.codes
            && match (&self.of, &other.of) {
                (GroupValues::Value(one), GroupValues::Value(other)) => one == other,
                (GroupValues::Integers(one), GroupValues::Integers(other)) => one == other,
                (GroupValues::Texts(one), GroupValues::Texts(other)) => Arc::ptr_eq(one, other),
                _ => false,
            }
    }
}

impl GroupKeys {
    /// Groups by `columns`, which have types that are supported.
    pub(super) fn new(columns: Vec<(usize, DataType)>) -> Self {
        Self {
            columns,
            groups: HashMap::default(),
            keys: Vec::new(),
            texts: NumberedTexts::default(),
            index: GroupIndex::default(),
        }
    }

    /// Number of groups.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Bytes that the groups take in memory, about.
    pub(super) fn bytes(&self) -> usize {
        let key = (self.columns.len() + 1) * size_of::<u64>();
        self.groups.capacity() * (size_of::<(Box<[u64]>, u32)>() + key)
            + self.keys.capacity() * size_of::<u64>()
            + self.texts.bytes
            + self.index.groups.capacity() * size_of::<u32>()
    }

    /// Writes the group of every row into `groups`, as an index into the groups in the order in which they were found.
    pub(super) fn of_rows(&mut self, rows: &PackedRows, groups: &mut Vec<usize>) -> Result<()> {
        groups.clear();
        let columns: Vec<&PackedColumn> = self.columns.iter().map(|(column, _)| &rows.columns[*column]).collect();
        let meaning = columns.iter().map(|column| GroupColumn::of(column)).collect::<Option<Vec<_>>>();
        let combinations = |meaning: &Vec<GroupColumn>| {
            meaning
                .iter()
                .try_fold(1_usize, |all, column| all.checked_mul(column.codes).filter(|all| *all <= MAX_COMBINATIONS))
        };
        match meaning.and_then(|meaning| combinations(&meaning).map(|combinations| (meaning, combinations))) {
            Some((meaning, combinations)) => self.by_index(rows.rows, &columns, meaning, combinations, groups),
            None => self.by_key(rows.rows, &columns, groups),
        }
    }

    fn by_index(
        &mut self,
        rows: usize,
        columns: &[&PackedColumn],
        meaning: Vec<GroupColumn>,
        combinations: usize,
        groups: &mut Vec<usize>,
    ) -> Result<()> {
        if self.index.meaning != meaning || self.index.groups.len() != combinations {
            self.index.groups.clear();
            self.index.groups.resize(combinations, UNKNOWN);
            self.index.meaning = meaning;
        }
        groups.resize(rows, 0);
        let mut stride = 1;
        for (column, meaning) in columns.iter().zip(&self.index.meaning) {
            match column {
                PackedColumn::Constant(_) | PackedColumn::Array(_) => {}
                PackedColumn::Offsets { offsets: codes, .. } | PackedColumn::Text { ids: codes, .. } => {
                    add_codes(codes, stride, meaning.codes - 1, groups);
                }
            }
            stride *= meaning.codes;
        }
        let mut key = Vec::new();
        for group in groups.iter_mut() {
            let combination = *group;
            let mut known = self.index.groups[combination];
            if known == UNKNOWN {
                key.clear();
                let (mut left, mut nulls) = (combination, 0);
                for (column, meaning) in self.index.meaning.iter().enumerate() {
                    let word = meaning.word(left % meaning.codes, &mut self.texts)?;
                    nulls |= u64::from(word.is_none()) << column;
                    key.push(word.unwrap_or_default());
                    left /= meaning.codes;
                }
                key.push(nulls);
                known = group_of(&mut self.groups, &mut self.keys, &key)?;
                self.index.groups[combination] = known;
            }
            *group = known as usize;
        }
        Ok(())
    }

    /// Finds the group of each row by its key, where there are too many combinations.
    fn by_key(&mut self, rows: usize, columns: &[&PackedColumn], groups: &mut Vec<usize>) -> Result<()> {
        let words = columns.iter().map(|column| words(column, rows, &mut self.texts)).collect::<Result<Vec<_>>>()?;
        let mut key = vec![0; columns.len() + 1];
        groups.reserve(rows);
        for row in 0..rows {
            let mut nulls = 0;
            for (column, (words, valid)) in words.iter().enumerate() {
                let is_null = valid.as_ref().is_some_and(|valid| valid.is_null(row));
                nulls |= u64::from(is_null) << column;
                key[column] = if is_null { 0 } else { words[row] };
            }
            key[columns.len()] = nulls;
            groups.push(group_of(&mut self.groups, &mut self.keys, &key)? as usize);
        }
        Ok(())
    }

    /// Takes the groups out, as columns in the order in which the groups were found; texts stay numbered.
    pub(super) fn take_groups(&mut self) -> Result<Vec<ArrayRef>> {
        let width = self.columns.len() + 1;
        self.groups.clear();
        self.index = GroupIndex::default();
        let keys = std::mem::take(&mut self.keys);
        let values = |column: usize| {
            let null = move |key: &[u64]| key[width - 1] >> column & 1 == 1;
            keys.chunks_exact(width).map(move |key| (!null(key)).then_some(key[column]))
        };
        let columns = self.columns.iter().enumerate().map(|(column, (_, kind))| -> Result<ArrayRef> {
            Ok(match kind {
                DataType::Utf8View => {
                    let mut builder = StringViewBuilder::new();
                    values(column).for_each(|value| builder.append_option(value.map(|value| self.texts.text(value))));
                    Arc::new(builder.finish())
                }
                DataType::Boolean => {
                    let mut builder = BooleanBuilder::new();
                    values(column).for_each(|value| builder.append_option(value.map(|value| value != 0)));
                    Arc::new(builder.finish())
                }
                DataType::Int32 => {
                    let mut builder = Int32Builder::new();
                    values(column).for_each(|value| builder.append_option(value.map(|value| value as i32)));
                    Arc::new(builder.finish())
                }
                DataType::Int64 => {
                    let mut builder = Int64Builder::new();
                    values(column).for_each(|value| builder.append_option(value.map(|value| value as i64)));
                    Arc::new(builder.finish())
                }
                DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                    let mut builder = TimestampNanosecondBuilder::new().with_data_type(kind.clone());
                    values(column).for_each(|value| builder.append_option(value.map(|value| value as i64)));
                    Arc::new(builder.finish())
                }
                other => return Err(unexpected(other)),
            })
        });
        columns.collect()
    }
}

impl NumberedTexts {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let (number, text) = (self.texts.len() as u64, Arc::<str>::from(text));
        self.bytes += text.len() + 2 * size_of::<(Arc<str>, u64)>();
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    fn text(&self, number: u64) -> &str {
        self.texts.get(number as usize).map_or("", AsRef::as_ref)
    }
}

impl GroupColumn {
    /// The meaning of a column's codes; None where the column has no codes.
    fn of(column: &PackedColumn) -> Option<Self> {
        Some(match column {
            PackedColumn::Constant(value) => Self { codes: 1, of: GroupValues::Value(value.clone()) },
            PackedColumn::Offsets { base, offsets, .. } => {
                Self { codes: largest(offsets)? + 2, of: GroupValues::Integers(*base) }
            }
            PackedColumn::Text { values, .. } => {
                Self { codes: values.len() + 1, of: GroupValues::Texts(Arc::clone(values)) }
            }
            PackedColumn::Array(_) => return None,
        })
    }

    /// The word in a group's key for the value of a code; None for NULL.
    fn word(&self, code: usize, texts: &mut NumberedTexts) -> Result<Option<u64>> {
        Ok(match &self.of {
            GroupValues::Value(value) => word(value, texts)?,
            _ if code + 1 == self.codes => None,
            GroupValues::Integers(base) => Some(base.wrapping_add(code as i64) as u64),
            GroupValues::Texts(values) => Some(texts.number(values.value(code))),
        })
    }
}

fn word(value: &ScalarValue, texts: &mut NumberedTexts) -> Result<Option<u64>> {
    Ok(match value {
        value if value.is_null() => None,
        ScalarValue::Utf8View(Some(text)) => Some(texts.number(text)),
        ScalarValue::Boolean(Some(value)) => Some(u64::from(*value)),
        ScalarValue::Int32(Some(value)) => Some(i64::from(*value) as u64),
        ScalarValue::Int64(Some(value)) | ScalarValue::TimestampNanosecond(Some(value), _) => Some(*value as u64),
        other => return Err(unexpected(&other.data_type())),
    })
}

/// The word of each value of a column, and which values are not NULL.
fn words(column: &PackedColumn, rows: usize, texts: &mut NumberedTexts) -> Result<(Vec<u64>, Option<NullBuffer>)> {
    let texts_of = |ids: Vec<usize>, values: &StringViewArray, texts: &mut NumberedTexts| {
        let mut numbers: Vec<Option<u64>> = vec![None; values.len()];
        let number = |id: usize| match numbers.get_mut(id) {
            Some(known) => *known.get_or_insert_with(|| texts.number(values.value(id))),
            None => 0,
        };
        ids.into_iter().map(number).collect()
    };
    Ok(match column {
        PackedColumn::Constant(value) => match word(value, texts)? {
            Some(word) => (vec![word; rows], None),
            None => (vec![0; rows], Some(NullBuffer::new_null(rows))),
        },
        PackedColumn::Text { ids, values } => (texts_of(codes(ids), values, texts), ids.nulls().cloned()),
        PackedColumn::Offsets { base, offsets, .. } => {
            let words = codes(offsets).into_iter().map(|offset| base.wrapping_add(offset as i64) as u64);
            (words.collect(), offsets.nulls().cloned())
        }
        PackedColumn::Array(array) if array.data_type() == &DataType::Utf8View => {
            let values = array.as_string_view();
            let number = |row| if values.is_valid(row) { texts.number(values.value(row)) } else { 0 };
            ((0..rows).map(number).collect(), array.nulls().cloned())
        }
        PackedColumn::Array(array) => {
            let integers = cast(array, &DataType::Int64)?;
            let integers = integers.as_primitive::<Int64Type>();
            (integers.values().iter().map(|value| *value as u64).collect(), array.nulls().cloned())
        }
    })
}

fn group_of(groups: &mut HashMap<Box<[u64]>, u32, RandomState>, keys: &mut Vec<u64>, key: &[u64]) -> Result<u32> {
    if let Some(group) = groups.get(key) {
        return Ok(*group);
    }
    let group = u32::try_from(groups.len()).ok().filter(|group| *group != UNKNOWN);
    let group = group.ok_or_else(|| DataFusionError::ResourcesExhausted("too many groups".into()))?;
    groups.insert(key.into(), group);
    keys.extend_from_slice(key);
    Ok(group)
}

fn unexpected(kind: &DataType) -> DataFusionError {
    DataFusionError::Internal(format!("groups are told by a column of {kind}"))
}
