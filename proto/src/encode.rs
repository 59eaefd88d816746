//! Packs rows as columns: for batches that an agent sends, and for the collector's own tables.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::column_builder::ColumnBuilder;
use crate::table::{Column, Row, Table, Text};
use crate::{MAX_STRING, v1};

/// Collects rows of one table until they are taken as a [`v1::Batch`].
#[derive(Debug)]
pub struct BatchBuilder {
    table: &'static Table,
    columns: Vec<ColumnBuilder>,
    rows: usize,
}

impl BatchBuilder {
    /// An empty builder for `table`.
    pub fn new(table: &'static Table) -> Self {
        Self { table, columns: table.columns.iter().map(|c| ColumnBuilder::new(c.kind)).collect(), rows: 0 }
    }

    /// Appends a row.
    pub fn push<R: Row>(&mut self, row: R) {
        row.put(&mut self.columns);
        self.rows += 1;
    }

    /// Appends a row of a table without a row type: `put` appends one value to each of the columns.
    pub fn push_with(&mut self, put: impl FnOnce(&mut [ColumnBuilder])) {
        put(&mut self.columns);
        self.rows += 1;
    }

    /// The number of rows that wait.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Moves all rows of `other`, of the same table, to the end of this builder.
    pub fn append(&mut self, other: &mut Self) {
        self.rows += std::mem::take(&mut other.rows);
        for (column, more) in self.columns.iter_mut().zip(&mut other.columns) {
            let before = column.values.len() as u32;
            column.nulls.extend(more.nulls.drain(..).map(|row| before + row));
            column.values.append(&mut more.values);
        }
    }

    /// The waiting rows, as each column's values and the numbers of its NULL rows; [`BatchBuilder::of_columns`] takes them.
    pub fn columns(&self) -> impl Iterator<Item = (&[i64], &[u32])> {
        self.columns.iter().map(|column| (column.values.as_slice(), column.nulls.as_slice()))
    }

    /// A builder of `table` with these columns; None where they do not fit the table.
    pub fn of_columns(table: &'static Table, columns: Vec<(Vec<i64>, Vec<u32>)>) -> Option<Self> {
        let rows = columns.first().map_or(0, |(values, _)| values.len());
        let fits = |(values, nulls): &(Vec<i64>, Vec<u32>)| {
            values.len() == rows && nulls.len() <= rows && nulls.iter().all(|row| (*row as usize) < rows)
        };
        if columns.len() != table.columns.len() || !columns.iter().all(fits) {
            return None;
        }
        let builder = |(column, (values, nulls)): (&Column, _)| ColumnBuilder { kind: column.kind, values, nulls };
        Some(Self { table, columns: table.columns.iter().zip(columns).map(builder).collect(), rows })
    }

    /// Replaces the integer (or text's id) `change.0` in `column` by `change.1`, from row `first` on; with `only`, in rows that
    /// have the integer `only.1` in the column `only.0`. Changes nothing where the table has no such columns.
    pub fn replace(&mut self, first: usize, column: &str, change: (i64, i64), only: Option<(&str, i64)>) {
        let index = |name: &str| self.table.columns.iter().position(|column| column.name == name);
        let (Some(column), only) = (index(column), only.map(|(name, key)| (index(name), key))) else { return };
        for row in first..self.rows {
            let is_chosen = match only {
                None => true,
                Some((Some(key), value)) => self.columns[key].values.get(row) == Some(&value),
                Some((None, _)) => false,
            };
            if let Some(value) =
                self.columns[column].values.get_mut(row).filter(|value| is_chosen && **value == change.0)
            {
                *value = change.1;
            }
        }
    }

    /// Takes the waiting rows as packed columns, and leaves the builder empty. The caller sets `seq`, `table` and `recorded`.
    pub fn take(&mut self) -> v1::Batch {
        let rows = std::mem::take(&mut self.rows);
        let columns = self.columns.iter_mut().map(|c| c.take(rows)).collect();
        v1::Batch { seq: 0, table: 0, rows: rows as u32, columns, recorded: 0 }
    }
}

/// Strings and their ids. Ids are given in order and never change.
#[derive(Debug, Default)]
pub struct StringTable {
    ids: HashMap<Box<str>, u32>,
    values: Vec<Box<str>>,
    bytes: usize,
}

/// `text` as a string table holds it: cut at [`MAX_STRING`], with the number of bytes that are missing.
fn fitting(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_STRING {
        return text.into();
    }
    let start = &text[..text.floor_char_boundary(MAX_STRING)];
    format!("{start}... ({} more bytes)", text.len() - start.len()).into()
}

impl StringTable {
    /// The id of `text`, a new one where the table does not have it. Text that is too long for a message is cut, with a note.
    pub fn id(&mut self, text: &str) -> Text {
        let text = &*fitting(text);
        if let Some(id) = self.ids.get(text) {
            return Text(*id);
        }
        let id = self.values.len() as u32;
        self.ids.insert(text.into(), id);
        self.bytes += text.len();
        self.values.push(text.into());
        Text(id)
    }

    /// Whether the table has `text`.
    pub fn has(&self, text: &str) -> bool {
        self.ids.contains_key(&*fitting(text))
    }

    /// The number of strings.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Bytes of all strings.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The text with an id.
    pub fn get(&self, id: Text) -> Option<&str> {
        self.values.get(id.0 as usize).map(|value| &**value)
    }

    /// Entries from `first` on as a message; None if there are no entries from there on.
    pub fn since(&self, first: usize) -> Option<v1::Strings> {
        let values: Vec<String> = self.values.get(first..)?.iter().map(|v| v.to_string()).collect();
        (!values.is_empty()).then_some(v1::Strings { first: first as u32, values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_that_fits_in_no_message_is_cut_and_says_so() {
        let mut strings = StringTable::default();
        let long = "é".repeat(MAX_STRING);
        let id = strings.id(&long);
        let kept = strings.get(id).unwrap_or_default();
        assert!(kept.len() < MAX_STRING + 100 && kept.ends_with("é... (1048576 more bytes)"), "{}", kept.len());
        assert!(strings.has(&long));
        assert_eq!((strings.id(&long), strings.len()), (id, 1));
    }
}
