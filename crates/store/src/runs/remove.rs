//! Taking recorded runs away. A run that may be live stays, whatever is said.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;
use probe_common::error::{Error, Result};
use probe_common::paths::{Places, host_name, named};
use probe_common::run_name::RunName;

use super::info::State;
use super::list::{Run, list_runs_in, resolve_in};
use super::{name_lock, writer_lock};
use crate::journal;

/// Directories of this name hold runs on their way out; one that is left over holds what could not be removed.
const LEAVING: &str = ".removing-";

/// The recorded runs that `names` mean, each once. A name without a number has to mean a single run: what is removed is
/// not guessed.
///
/// # Errors
/// There is none of that name, or several.
pub fn named_runs(places: &Places, names: &[String]) -> Result<Vec<Run>> {
    let all = list_runs_in(places)?;
    let mut found: Vec<Run> = Vec::new();
    for name in names {
        let wanted = RunName::parse(name)?;
        let meant: Vec<&Run> = match wanted.number {
            Some(_) => all.iter().filter(|run| run.name == wanted).collect(),
            None => all.iter().filter(|run| run.name.base == wanted.base).collect(),
        };
        match meant.as_slice() {
            [] => resolve_in(places, name).map(|_| ())?,
            [run] if found.iter().any(|seen| seen.name == run.name) => {}
            [run] => found.push((*run).clone()),
            several => {
                let names: Vec<String> = several.iter().map(|run| run.name.to_string()).collect();
                return Err(Error::usage(format!(
                    "there are {} runs called {name}, and the name says not which",
                    names.len()
                ))
                .hint(format!("name them with their numbers: {}", names.join(" "))));
            }
        }
    }
    Ok(found)
}

/// Why a run has to stay; None where it may go.
pub fn why_it_stays(places: &Places, run: &Run) -> Option<String> {
    let name = &run.name;
    let here = host_name();
    match run.info.state {
        State::Ended => None,
        State::Live => Some(format!("{name} is live")),
        // Nobody answers here; that says nothing about another machine with the same home.
        State::Lost if run.info.host != here => {
            Some(format!("{name} was begun on {}, and may be live there", run.info.host))
        }
        // One with another runtime directory.
        State::Lost if writer_lock::is_written(&run.directory) => Some(format!("a collector is writing {name}")),
        // A collector holds the name whose socket is not there yet, or not any more: it may be this run's.
        State::Lost if name_lock::is_held(places, &name.base) && !is_answered(places, &name.base) => {
            Some(format!("{name} is just beginning or ending"))
        }
        State::Lost => None,
    }
}

/// Whether a collector answers for a run called so: then it is the one that holds the name.
fn is_answered(places: &Places, base: &str) -> bool {
    let sockets = places.sockets().unwrap_or_default();
    sockets.iter().filter_map(|(run, _)| RunName::numbered(run)).any(|run| run.base == base)
}

/// When a run ended, as far as anybody knows: of a lost one, when anything in it was written last.
pub fn ended(run: &Run) -> Option<Timestamp> {
    match run.info.state {
        State::Live => None,
        State::Ended => run.info.ended,
        State::Lost => newest_change(&run.directory).and_then(|time| Timestamp::try_from(time).ok()),
    }
}

/// Removes a run, and says how many bytes that freed. Its name is gone first, so that a run is never there by halves.
///
/// # Errors
/// The file system's. Nothing has changed then, or only what the message says is left.
pub fn remove(run: &Run) -> Result<u64> {
    let bytes = size(&run.directory);
    let leaving = run.directory.with_file_name(format!("{LEAVING}{}-{}", run.name, std::process::id()));
    fs::rename(&run.directory, &leaving).map_err(|error| named(&run.directory, error))?;
    fs::remove_dir_all(&leaving).map_err(|error| {
        Error::failed(format!("some of its files are left in {}", leaving.display()))
            .because(error)
            .hint("the next probe runs rm tries them again")
    })?;
    Ok(bytes)
}

/// Removes what earlier removals had to leave, and says how many bytes that freed. What can't be removed is left again.
pub fn sweep(places: &Places) -> u64 {
    let Ok(entries) = fs::read_dir(places.runs()) else { return 0 };
    let left = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let left = left.filter(|path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(LEAVING.as_bytes()))
    });
    left.map(|path| {
        let bytes = size(&path);
        if fs::remove_dir_all(&path).is_ok() { bytes } else { 0 }
    })
    .sum()
}

/// Bytes of all files in a directory; what can't be read counts nothing.
pub fn size(directory: &Path) -> u64 {
    let mut bytes = 0;
    each_file(directory, &mut |file| bytes += file.len());
    bytes
}

/// The size of a run's directory without the journal.
pub fn size_of_files(directory: &Path) -> u64 {
    size(directory).saturating_sub(size(&journal::directory(directory)))
}

fn newest_change(directory: &Path) -> Option<SystemTime> {
    let mut newest = None;
    each_file(directory, &mut |file| newest = newest.max(file.modified().ok()));
    newest
}

/// Links are not followed: what they point to is not the run's.
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
        let places = Places { home: directory.path().join("home"), runtime: directory.path().join("run") };
        let path = places.runs().join("gpt@1");
        fs::create_dir_all(&path).unwrap();
        RunInfo::begin(&RunName::parse("gpt@1").unwrap(), "").write(&path).unwrap();
        let run = named_runs(&places, &["gpt".into()]).unwrap().remove(0);
        // Its name on the way out is taken.
        let taken = path.with_file_name(format!("{LEAVING}gpt@1-{}", std::process::id()));
        fs::create_dir_all(taken.join("x")).unwrap();
        remove(&run).unwrap_err();
        assert!(RunInfo::read(&path).is_ok());
        sweep(&places);
        assert!(remove(&run).unwrap() > 100);
        assert_eq!(fs::read_dir(places.runs()).unwrap().count(), 0);
    }
}
