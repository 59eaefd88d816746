//! Rows that an import wrote, as text.

use std::fs::File;
use std::path::Path;

use arrow::util::display::{ArrayFormatter, FormatOptions};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// The columns of a table's rows, in the order of files and rows. NULL is empty.
pub(crate) fn table_rows(directory: &Path, table: &str, columns: &[&str]) -> Vec<Vec<String>> {
    let mut files: Vec<_> = std::fs::read_dir(directory.join(table))
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    files.sort();
    let (mut rows, options) = (Vec::new(), FormatOptions::new());
    for file in files {
        for batch in ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap().build().unwrap() {
            let batch = batch.unwrap();
            let cells = columns.iter().map(|column| {
                let column = batch.column_by_name(column).unwrap_or_else(|| panic!("{table} has no {column}"));
                ArrayFormatter::try_new(column, &options).unwrap()
            });
            let cells: Vec<_> = cells.collect();
            rows.extend(
                (0..batch.num_rows()).map(|row| cells.iter().map(|cell| cell.value(row).to_string()).collect()),
            );
        }
    }
    rows
}
