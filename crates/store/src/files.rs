//! A file of a run directory: checked by its footer, without reading its rows.
//!
//! For every row group memory has what a query needs to skip it or to answer without it: bounds, NULLs, the process of the
//! rows and the size of each column. That is about three kilobytes a row group: 120 MB of a run of 1e10 rows.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};

use arrow::datatypes::Schema;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::arrow::parquet_to_arrow_schema;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use probe_common::error::{Error, Result};
use probe_proto::table::Table;

use super::column_range::ColumnRange;
use super::file_notes::{self, RowGroupNote};
use super::footer;
use super::identity::ProcessIdentity;
use super::row_group::RowGroup;
use super::schema::{arrow_schema, identity_columns, same};
use super::segment::Segment;
use super::sums::ExactSums;

/// A Parquet file with rows of one table.
#[derive(Debug)]
pub struct ParquetFile {
    /// The table that the rows are of.
    pub table: &'static Table,
    /// The path, absolute where the directory's is.
    pub path: PathBuf,
    /// Size of the file.
    pub bytes: u64,
    /// The row groups, in the order of the file.
    pub groups: Vec<RowGroup>,
    /// The sum of all row groups; None where there is exactly one.
    whole: Option<RowGroup>,
    /// Whether this program wrote the file as it is: it has exactly the columns of our declarations, and our notes.
    pub(super) ours: bool,
    /// Whether the file was removed while a query may be reading it.
    pub(super) had_to_go: AtomicBool,
    /// The footer, while a reader has it.
    pub(super) footer: Mutex<Weak<ArrowReaderMetadata>>,
}

impl ParquetFile {
    /// Opens a file with rows of `table` by its footer alone: ours, or any with the table's columns.
    ///
    /// # Errors
    /// It is no Parquet file, lacks a column that can't be NULL, has one of another type, or has notes that contradict its
    /// footer.
    pub fn open(path: &Path, table: &'static Table) -> Result<Self> {
        let wrong = |what: String| Error::failed(format!("cannot read {}: {what}", path.display()));
        let cannot = Error::failed(format!("cannot read {}", path.display()));
        let file = File::open(path).map_err(|error| cannot.clone().because(error))?;
        let bytes = file.metadata().map_err(|error| cannot.clone().because(error))?.len();
        let metadata = ParquetMetaDataReader::new()
            .with_page_index_policy(PageIndexPolicy::Skip)
            .parse_and_finish(&file)
            .map_err(|error| cannot.because(error))?;
        let (groups, ours) = groups(&metadata, table).map_err(wrong)?;
        Ok(Self::of(path.to_owned(), bytes, table, groups, ours))
    }

    /// The file that was just written from `segments`, a row group each.
    pub(super) fn written(
        path: PathBuf,
        bytes: u64,
        table: &'static Table,
        segments: &[Arc<Segment>],
        notes: &[RowGroupNote],
        metadata: &ParquetMetaData,
    ) -> Self {
        let group = |((segment, note), group): ((&Arc<Segment>, &RowGroupNote), _)| RowGroup {
            rows: segment.rows,
            column_bytes: footer::column_bytes(group, table),
            origins: segment.origin.iter().cloned().collect(),
            identity: segment.identity.clone(),
            ranges: all_ranges(segment, table),
            sums: note.sums(table),
        };
        let groups = segments.iter().zip(notes).zip(metadata.row_groups()).map(group).collect();
        Self::of(path, bytes, table, groups, true)
    }

    fn of(path: PathBuf, bytes: u64, table: &'static Table, groups: Vec<RowGroup>, ours: bool) -> Self {
        let whole = (groups.len() != 1).then(|| together(&groups, table));
        let had_to_go = AtomicBool::new(false);
        Self { table, path, bytes, groups, whole, ours, had_to_go, footer: Mutex::default() }
    }

    /// Number of identity columns, which come before the table's own.
    pub fn identity_columns(&self) -> usize {
        identity_columns(self.table)
    }

    /// What is known of all row groups together.
    pub fn whole(&self) -> &RowGroup {
        self.whole.as_ref().unwrap_or_else(|| &self.groups[0])
    }
}

/// What is known of all `groups` together.
fn together(groups: &[RowGroup], table: &Table) -> RowGroup {
    let columns = identity_columns(table) + table.columns.len();
    let mut whole = RowGroup {
        rows: 0,
        column_bytes: vec![0; columns].into(),
        origins: Vec::new(),
        identity: groups.first().and_then(|group| group.identity.clone()),
        ranges: vec![ColumnRange::EMPTY; columns].into(),
        sums: ExactSums::default(),
    };
    for group in groups {
        whole.rows += group.rows;
        whole.identity = whole.identity.filter(|identity| group.identity.as_ref() == Some(identity));
        whole.column_bytes.iter_mut().zip(&group.column_bytes).for_each(|(sum, bytes)| *sum += bytes);
        whole.ranges.iter_mut().zip(&group.ranges).for_each(|(range, more)| *range = range.union(*more));
    }
    whole
}

/// Ranges of all columns. Those of identity columns are as a footer would give them: without bounds of text.
fn all_ranges(segment: &Segment, table: &Table) -> Box<[ColumnRange]> {
    let identity = segment.identity.iter();
    let identity = identity.flat_map(|identity| {
        (0..identity_columns(table)).map(|column| ColumnRange::of_constant(&identity.value(column), segment.rows))
    });
    identity.chain(segment.ranges().iter().copied()).collect()
}

/// The row groups, and whether the file has exactly the table's columns and our notes.
fn groups(metadata: &ParquetMetaData, table: &'static Table) -> Result<(Vec<RowGroup>, bool), String> {
    let file = metadata.file_metadata();
    let schema = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata());
    let schema = schema.map_err(|error| error.to_string())?;
    check(&schema, table, &arrow_schema(table))?;
    let notes = file_notes::read(file.key_value_metadata())?;
    if let Some(notes) = &notes
        && notes.len() != metadata.num_row_groups()
    {
        return Err(format!("it has {} row groups and says {}", metadata.num_row_groups(), notes.len()));
    }
    let has_notes = notes.is_some();
    let mut notes = notes.map(Vec::into_iter);
    let mut known: Vec<Arc<ProcessIdentity>> = Vec::new();
    let mut groups = Vec::with_capacity(metadata.num_row_groups());
    for group in metadata.row_groups() {
        let note = notes.as_mut().and_then(Iterator::next);
        let exact = |column: &str| note.as_ref().is_some_and(|note| !note.nan.iter().any(|nan| nan == column));
        let ranges = footer::ranges(group, table, exact)?;
        let noted = note.as_ref().and_then(RowGroupNote::identity);
        let identity = noted.or_else(|| footer::identity(group, table)).map(|identity| {
            known.iter().find(|known| ***known == identity).cloned().unwrap_or_else(|| {
                known.push(Arc::new(identity));
                Arc::clone(&known[known.len() - 1])
            })
        });
        groups.push(RowGroup {
            rows: group.num_rows() as usize,
            column_bytes: footer::column_bytes(group, table),
            origins: note.as_ref().map(RowGroupNote::origins).unwrap_or_default(),
            identity,
            ranges,
            sums: note.as_ref().map(|note| note.sums(table)).unwrap_or_default(),
        });
    }
    let same_columns = schema.fields().len() == table.all_columns().count()
        && table.all_columns().all(|column| schema.field_with_name(column.name).is_ok());
    Ok((groups, has_notes && same_columns))
}

/// Checks a file's schema: it may lack columns that can be NULL, and may have others; columns in both must have one type.
fn check(found: &Schema, table: &Table, expected: &Schema) -> Result<(), String> {
    for field in expected.fields() {
        match found.field_with_name(field.name()) {
            Ok(column) if same(column.data_type(), field.data_type()) => {}
            Ok(column) => {
                return Err(format!(
                    "column {} of {} is {} there, and {} here",
                    field.name(),
                    table.full_name(),
                    column.data_type(),
                    field.data_type()
                ));
            }
            Err(_) if field.is_nullable() => {}
            Err(_) => return Err(format!("it has no column {}", field.name())),
        }
    }
    Ok(())
}
