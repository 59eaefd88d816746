//! The names of a run directory's files, and what they mean.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use probe_proto::table::Table;

/// The extension of a file that is being written: `.00000007.parquet.writing`.
pub(super) const UNFINISHED: &str = "writing";

/// The file that is written when a run ends. Files of rows have numbers instead.
pub(super) const END_FILE: &str = "end.parquet";

/// The directory of a table's files.
pub(super) fn table_directory(directory: &Path, table: &Table) -> PathBuf {
    directory.join(table.full_name())
}

/// The first and last number in a file's name: `00000007.parquet` is 7 to 7, `00000003-00000011.parquet` 3 to 11; other names
/// have none.
pub(super) fn numbers_in(path: &Path) -> Option<(u64, u64)> {
    let stem = path.file_stem()?.to_str()?;
    let (first, last) = stem.split_once('-').unwrap_or((stem, stem));
    Some((first.parse().ok()?, last.parse().ok()?))
}

/// Those of `paths` that another one of them has replaced: one whose numbers include theirs.
pub(super) fn superseded(paths: &[&Path]) -> HashSet<PathBuf> {
    let mut merged: Vec<(u64, u64)> = paths.iter().filter_map(|path| numbers_in(path)).filter(|(a, b)| a < b).collect();
    merged.sort_unstable();
    // The largest last number so far, for each file in order: a run may have tens of thousands of files, so that comparing
    // each with each would take too long.
    let further = |furthest: &mut u64, (_, last): &(u64, u64)| {
        *furthest = (*furthest).max(*last);
        Some(*furthest)
    };
    let reach: Vec<u64> = merged.iter().scan(0, further).collect();
    let within = |path: &&&Path| {
        numbers_in(path).is_some_and(|(first, last)| {
            let earlier = merged.partition_point(|(from, _)| *from < first);
            let same = merged[earlier..].partition_point(|(from, _)| *from == first);
            let reached = earlier.checked_sub(1).map(|newest| reach[newest]);
            reached >= Some(last) || merged[earlier..earlier + same].last().is_some_and(|(_, to)| *to > last)
        })
    };
    paths.iter().filter(within).map(|path| path.to_path_buf()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_say_what_was_replaced() {
        let paths =
            ["00000003.parquet", "00000003-00000005.parquet", "00000005.parquet", "00000006.parquet", "end.parquet"];
        let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
        let replaced = ["00000003.parquet", "00000005.parquet"].map(PathBuf::from);
        assert_eq!(superseded(&paths), replaced.into());
    }

    proptest! {
        #[test]
        fn a_file_is_replaced_by_one_that_includes_it(numbers in prop::collection::btree_set((0..12_u64, 0..4_u64), 0..12)) {
            let numbers: Vec<(u64, u64)> = numbers.into_iter().map(|(first, more)| (first, first + more)).collect();
            let name = |(first, last): &(u64, u64)| match last - first {
                0 => PathBuf::from(format!("{first:08}.parquet")),
                _ => PathBuf::from(format!("{first:08}-{last:08}.parquet")),
            };
            let paths: Vec<PathBuf> = numbers.iter().map(name).collect();
            let includes = |(a, b): &(u64, u64), (first, last): &(u64, u64)| a <= first && last <= b && (a, b) != (first, last);
            let replaced = numbers.iter().filter(|one| numbers.iter().any(|other| includes(other, one))).map(name).collect();
            prop_assert_eq!(superseded(&paths.iter().map(PathBuf::as_path).collect::<Vec<_>>()), replaced);
        }
    }
}
