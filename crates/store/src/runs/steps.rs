//! How far a run came, from the footers of its files, without reading rows.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;

use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::statistics::Statistics;

/// How far a run came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReachedSteps {
    /// The last step that has a row.
    pub last_step: Option<i64>,
    /// Ranks that have a row of a step.
    pub ranks: BTreeSet<i32>,
}

/// The last step that has a row in the files of a run directory. Files that can't be read count as empty, so that a damaged
/// run does not spoil a list of runs.
pub fn last_step(directory: &Path) -> Option<i64> {
    in_files(directory).last_step
}

/// How far a run came, from the files of its directory. Files that can't be read count as empty.
pub(super) fn in_files(directory: &Path) -> ReachedSteps {
    let mut reached = ReachedSteps::default();
    let Ok(entries) = fs::read_dir(directory.join("python.steps")) else { return reached };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "parquet")) {
        let reader = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Skip);
        let Some(footer) = File::open(path).ok().and_then(|file| reader.parse_and_finish(&file).ok()) else { continue };
        let steps = statistics(&footer, "step").filter_map(|statistics| match statistics {
            Statistics::Int64(values) => values.max_opt().copied(),
            _ => None,
        });
        reached.last_step = reached.last_step.max(steps.max());
        // A row group has the rows of one process.
        reached.ranks.extend(statistics(&footer, "rank").filter_map(|statistics| match statistics {
            Statistics::Int32(values) => values.max_opt().copied(),
            _ => None,
        }));
    }
    reached
}

/// The statistics of one column in all row groups that have them.
fn statistics<'a>(footer: &'a ParquetMetaData, column: &str) -> impl Iterator<Item = &'a Statistics> {
    let columns = footer.file_metadata().schema_descr().columns();
    let index = columns.iter().position(|described| described.path().string() == column);
    footer.row_groups().iter().filter_map(move |group| group.column(index?).statistics())
}
