//! Lists the runs that have a directory, and finds the one that a name means.

use std::fs;
use std::path::PathBuf;

use probe_common::error::{Error, Result};
use probe_common::paths::{ProbeDirectories, io_error_at};
use probe_common::run_name::RunName;

use super::info::{RunInfo, RunState};
use super::{name_lock, writer_lock};

/// A run that has a directory.
#[derive(Debug, Clone)]
pub struct RecordedRun {
    /// The run's name with its number: "gpt@2".
    pub name: RunName,
    /// The run's directory.
    pub directory: PathBuf,
    /// The contents of its run.json; the state is [`RunState::Lost`] where that says live and no collector is known to record it.
    pub info: RunInfo,
}

/// All recorded runs, live ones included, oldest first.
pub fn list_runs() -> Result<Vec<RecordedRun>> {
    list_runs_in(&ProbeDirectories::from_environment()?)
}

/// All recorded runs below `directories`, live ones included, oldest first.
pub fn list_runs_in(directories: &ProbeDirectories) -> Result<Vec<RecordedRun>> {
    let directory = directories.runs();
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error_at(&directory, error)),
    };
    // Without a runtime directory that can be trusted no collector can be asked.
    let live = directories.sockets().unwrap_or_default();
    let mut runs: Vec<RecordedRun> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = RunName::numbered(entry.file_name().to_str()?)?;
            // A directory without run.json is being created right now, or is not ours.
            let mut info = RunInfo::read(&entry.path()).ok()?;
            if info.state == RunState::Live {
                let is_here = live.iter().any(|(run, _)| *run == name.to_string());
                // A collector with another runtime directory has its socket elsewhere, and writes all the same.
                if !is_here && !writer_lock::is_written(&entry.path()) {
                    info.state = RunState::Lost;
                }
            }
            Some(RecordedRun { name, directory: entry.path(), info })
        })
        .collect();
    runs.sort_by(|a, b| (a.info.started, &a.name).cmp(&(b.info.started, &b.name)));
    Ok(runs)
}

/// Whether a collector on this machine holds the name of this run: for "gpt@2" also where it is recording gpt@3.
pub fn is_live(name: &str) -> bool {
    let base = name.split('@').next().unwrap_or(name);
    ProbeDirectories::from_environment().is_ok_and(|directories| name_lock::is_held(&directories, base))
}

/// The directory of the run that `name` means: `gpt@1` is that one, `gpt` the newest, a live one first.
pub fn resolve(name: &str) -> Result<PathBuf> {
    resolve_in(&ProbeDirectories::from_environment()?, name)
}

/// The directory of the run that `name` means below `directories`.
pub fn resolve_in(directories: &ProbeDirectories, name: &str) -> Result<PathBuf> {
    let requested = RunName::parse(name)?;
    let runs = list_runs_in(directories)?;
    let matching = runs.iter().filter(|run| match requested.number {
        Some(_) => run.name == requested,
        None => run.name.base == requested.base,
    });
    let newest = matching.max_by_key(|run| (run.info.state == RunState::Live, run.name.number));
    newest.map(|run| run.directory.clone()).ok_or_else(|| {
        let known = runs.iter().map(|run| run.name.to_string());
        let nearest = known.min_by_key(|known| strsim::damerau_levenshtein(known, name));
        let error = Error::unreachable(format!("there is no run '{name}' in {}", directories.runs().display()));
        match nearest {
            Some(nearest) => error.hint(format!("the nearest is {nearest}; probe runs lists all")),
            None => error.hint("no run has been recorded yet: probe run -- COMMAND records one"),
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::runs::RunReservation;

    fn directories() -> (tempfile::TempDir, ProbeDirectories) {
        let dir = tempfile::tempdir().unwrap();
        let directories = ProbeDirectories { home: dir.path().join("home"), runtime: dir.path().join("run") };
        (dir, directories)
    }

    #[test]
    fn a_name_means_its_newest_run_and_a_number_that_one() {
        let (_dir, directories) = directories();
        assert!(list_runs_in(&directories).unwrap().is_empty());
        let error = resolve_in(&directories, "gpt").unwrap_err();
        assert!(error.hint_text().unwrap().contains("probe run"), "{error:?}");

        for expected in ["gpt@1", "gpt@2"] {
            let run = RunReservation::reserve(&directories, "gpt").unwrap();
            assert_eq!(run.name().to_string(), expected);
            RunInfo::begin(run.name(), "python train.py").write(run.directory()).unwrap();
        }
        assert_eq!(resolve_in(&directories, "gpt").unwrap(), directories.runs().join("gpt@2"));
        assert_eq!(resolve_in(&directories, "gpt@1").unwrap(), directories.runs().join("gpt@1"));
        let error = resolve_in(&directories, "gtp@1").unwrap_err();
        assert!(error.hint_text().unwrap().contains("gpt@1"), "{error:?}");

        let runs = list_runs_in(&directories).unwrap();
        assert_eq!(runs.iter().map(|r| r.name.to_string()).collect::<Vec<_>>(), ["gpt@1", "gpt@2"]);
        assert_eq!(runs[0].info.state, RunState::Lost, "live according to its file, but no collector has it open");
    }

    #[test]
    fn a_live_run_comes_before_a_newer_one_that_has_ended() {
        let (_dir, directories) = directories();
        let first = RunReservation::reserve(&directories, "gpt").unwrap();
        RunInfo::begin(first.name(), "").write(first.directory()).unwrap();
        let _listening = std::os::unix::net::UnixListener::bind(directories.socket_for("gpt@1")).unwrap();
        drop(first);
        let second = directories.runs().join("gpt@2");
        fs::create_dir(&second).unwrap();
        RunInfo::begin(&RunName::numbered("gpt@2").unwrap(), "").write(&second).unwrap();
        assert_eq!(resolve_in(&directories, "gpt").unwrap(), directories.runs().join("gpt@1"));
    }
}
