//! What the files of a run directory are called, and what their names say.

use std::path::{Path, PathBuf};

use probe_proto::table::Table;

/// A file that is being written ends so: `.00000007.parquet.writing`.
pub(super) const UNFINISHED: &str = "writing";

/// The name that no file of rows has: those are numbered.
pub(super) const END_FILE: &str = "end.parquet";

/// Where the files of a table are.
pub(super) fn table_directory(directory: &Path, table: &Table) -> PathBuf {
    directory.join(table.full_name())
}

/// `00000007.parquet` is 7 to 7, `00000003-00000011.parquet` 3 to 11; other names have none.
pub(super) fn numbers_in(path: &Path) -> Option<(u64, u64)> {
    let stem = path.file_stem()?.to_str()?;
    let (first, last) = stem.split_once('-').unwrap_or((stem, stem));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// Which of `paths` another one of them has replaced.
pub(super) fn superseded(paths: &[&Path]) -> Vec<PathBuf> {
    let all: Vec<(u64, u64)> = paths.iter().filter_map(|path| numbers_in(path)).filter(|(a, b)| a < b).collect();
    let within = |path: &&&Path| {
        numbers_in(path).is_some_and(|(first, last)| {
            all.iter().any(|(from, to)| *from <= first && last <= *to && (*from, *to) != (first, last))
        })
    };
    paths.iter().filter(within).map(|path| path.to_path_buf()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_was_replaced() {
        let paths =
            ["00000003.parquet", "00000003-00000005.parquet", "00000005.parquet", "00000006.parquet", "end.parquet"];
        let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
        assert_eq!(superseded(&paths), [Path::new("00000003.parquet"), Path::new("00000005.parquet")]);
    }
}
