//! Removes recorded runs. A run that may be live stays in any case.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use probe_common::error::{Error, Result};
use probe_common::paths::{ProbeDirectories, host_name, io_error_at};
use probe_common::run_name::RunName;

use super::info::RunState;
use super::list::{RecordedRun, list_runs_in, resolve_in};
use super::name_lock;
use crate::journal;

/// Directories with this prefix hold runs that are being removed. One that is left over holds files that could not be removed.
const LEAVING: &str = ".removing-";

/// The recorded runs that `names` mean, each once. A name without a number has to mean a single run, because a removal must
/// not depend on a guess.
///
/// # Errors
/// There is no run of a name, or several.
pub fn named_runs(directories: &ProbeDirectories, names: &[String]) -> Result<Vec<RecordedRun>> {
    let all = list_runs_in(directories)?;
    let mut found: Vec<RecordedRun> = Vec::new();
    for name in names {
        let requested = RunName::parse(name)?;
        let matching: Vec<&RecordedRun> = match requested.number {
            Some(_) => all.iter().filter(|run| run.name == requested).collect(),
            None => all.iter().filter(|run| run.name.base == requested.base).collect(),
        };
        match matching.as_slice() {
            [] => resolve_in(directories, name).map(|_| ())?,
            [run] if found.iter().any(|known| known.name == run.name) => {}
            [run] => found.push((*run).clone()),
            several => {
                let names: Vec<String> = several.iter().map(|run| run.name.to_string()).collect();
                return Err(Error::usage(format!("{} runs are called {name}", names.len()))
                    .hint(format!("name them with their numbers: {}", names.join(" "))));
            }
        }
    }
    Ok(found)
}

/// Why a run has to stay; None where it may go.
pub fn why_it_stays(directories: &ProbeDirectories, run: &RecordedRun) -> Option<String> {
    let name = &run.name;
    let here = host_name();
    match run.info.state {
        RunState::Ended => None,
        RunState::Live => Some(format!("{name} is live")),
        // No collector answers here, but another machine with the same home may have one.
        RunState::Lost if run.info.host != here => {
            Some(format!("{name} was begun on {}, and may be live there", run.info.host))
        }
        // A collector holds the name, and has no socket yet or any more: it may be recording this run.
        RunState::Lost if name_lock::is_held(directories, &name.base) && !is_answered(directories, &name.base) => {
            Some(format!("{name} is just beginning or ending"))
        }
        RunState::Lost => None,
    }
}

/// Whether a collector has a socket for a run with this name; then it is the one that holds the name.
fn is_answered(directories: &ProbeDirectories, base: &str) -> bool {
    let sockets = directories.sockets().unwrap_or_default();
    sockets.iter().filter_map(|(run, _)| RunName::numbered(run)).any(|run| run.base == base)
}

/// When a run ended, as far as that is known. For a lost run it is when a file in it was written last.
pub fn ended(run: &RecordedRun) -> Option<Timestamp> {
    match run.info.state {
        RunState::Live => None,
        RunState::Ended => run.info.ended,
        RunState::Lost => newest_change(&run.directory).and_then(|time| Timestamp::try_from(time).ok()),
    }
}

/// Removes a run, and returns the number of bytes that freed. The directory is renamed first, so that no run is partly there.
///
/// # Errors
/// The file system's. Then nothing has changed, or the files that the message names are left.
pub fn remove(run: &RecordedRun) -> Result<u64> {
    let bytes = directory_bytes(&run.directory);
    let leaving = run.directory.with_file_name(format!("{LEAVING}{}-{}", run.name, std::process::id()));
    fs::rename(&run.directory, &leaving).map_err(|error| io_error_at(&run.directory, error))?;
    fs::remove_dir_all(&leaving).map_err(|error| {
        Error::failed(format!("some of its files are left in {}", leaving.display()))
            .because(error)
            .hint("the next probe runs rm tries them again")
    })?;
    Ok(bytes)
}

/// Removes what earlier removals had to leave, and returns the number of bytes that freed. Files that can't be removed are left
/// again.
pub fn sweep(directories: &ProbeDirectories) -> u64 {
    let Ok(entries) = fs::read_dir(directories.runs()) else { return 0 };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let leftovers = paths.filter(|path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(LEAVING.as_bytes()))
    });
    leftovers
        .map(|path| {
            let bytes = directory_bytes(&path);
            if fs::remove_dir_all(&path).is_ok() { bytes } else { 0 }
        })
        .sum()
}

/// Bytes of all files in a directory; files that can't be read are not counted.
pub fn directory_bytes(directory: &Path) -> u64 {
    let mut bytes = 0;
    each_file(directory, &mut |file| bytes += file.len());
    bytes
}

/// Bytes of all files in a run's directory, without the journal.
pub fn file_bytes(directory: &Path) -> u64 {
    directory_bytes(directory).saturating_sub(directory_bytes(&journal::directory(directory)))
}

fn newest_change(directory: &Path) -> Option<SystemTime> {
    let mut newest = None;
    each_file(directory, &mut |file| newest = newest.max(file.modified().ok()));
    newest
}

/// Calls `visit` for each file. Links are not followed, because what they point to is not part of the run.
fn each_file(directory: &Path, visit: &mut dyn FnMut(&fs::Metadata)) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.filter_map(std::result::Result::ok) {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => each_file(&entry.path(), visit),
            Ok(metadata) => visit(&metadata),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::RunInfo;

    #[test]
    fn what_can_t_be_removed_is_there_as_before() {
        let directory = tempfile::tempdir().unwrap();
        let directories =
            ProbeDirectories { home: directory.path().join("home"), runtime: directory.path().join("run") };
        let path = directories.runs().join("gpt@1");
        fs::create_dir_all(&path).unwrap();
        RunInfo::begin(&RunName::parse("gpt@1").unwrap(), "").write(&path).unwrap();
        let run = named_runs(&directories, &["gpt".into()]).unwrap().remove(0);
        // The name that the directory gets for its removal is taken.
        let taken = path.with_file_name(format!("{LEAVING}gpt@1-{}", std::process::id()));
        fs::create_dir_all(taken.join("x")).unwrap();
        remove(&run).unwrap_err();
        assert!(RunInfo::read(&path).is_ok());
        sweep(&directories);
        assert!(remove(&run).unwrap() > 100);
        assert_eq!(fs::read_dir(directories.runs()).unwrap().count(), 0);
    }
}
