//! How far a run came, from the footers of its files: no row is read.

use std::fs::{self, File};
use std::path::Path;

use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::statistics::Statistics;

/// The last step that has a row in the files of a run directory. What can't be read counts as nothing: this is for a
/// list of runs, which a damaged one must not spoil.
pub fn last_step(directory: &Path) -> Option<i64> {
    let entries = fs::read_dir(directory.join("python.steps")).ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let files = paths.filter(|path| path.extension().is_some_and(|extension| extension == "parquet"));
    let footers = files.filter_map(|path| {
        let reader = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Skip);
        reader.parse_and_finish(&File::open(path).ok()?).ok()
    });
    footers.filter_map(|footer| in_footer(&footer)).max()
}

fn in_footer(footer: &ParquetMetaData) -> Option<i64> {
    let columns = footer.file_metadata().schema_descr().columns();
    let place = columns.iter().position(|column| column.path().string() == "step")?;
    let last = footer.row_groups().iter().filter_map(|group| match group.column(place).statistics()? {
        Statistics::Int64(values) => values.max_opt().copied(),
        _ => None,
    });
    last.max()
}
