//! Which runs have a directory, and which of them a name means.

use std::fs;
use std::path::PathBuf;

use probe_common::error::{Error, Result};
use probe_common::paths::{Places, named};
use probe_common::run_name::RunName;

use super::info::{RunInfo, State};
use super::name_lock;

/// A run that has a directory.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its name with its number: "gpt@2".
    pub name: RunName,
    /// Where it is.
    pub directory: PathBuf,
    /// What its run.json says; its state is [`State::Lost`] where that says live and nobody keeps it.
    pub info: RunInfo,
}

/// All recorded runs, live ones included, oldest first.
pub fn list_runs() -> Result<Vec<Run>> {
    list_runs_in(&Places::from_environment()?)
}

/// All recorded runs of the given places, live ones included, oldest first.
pub fn list_runs_in(places: &Places) -> Result<Vec<Run>> {
    let directory = places.runs();
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(named(&directory, error)),
    };
    // No runtime directory that can be trusted means no collector that can be asked, and none that is live for us.
    let live = places.sockets().unwrap_or_default();
    let mut runs: Vec<Run> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = RunName::numbered(entry.file_name().to_str()?)?;
            // A directory without run.json is one that is being made right now, or is none of ours.
            let mut info = RunInfo::read(&entry.path()).ok()?;
            if info.state == State::Live && !live.iter().any(|(run, _)| *run == name.to_string()) {
                info.state = State::Lost;
            }
            Some(Run { name, directory: entry.path(), info })
        })
        .collect();
    runs.sort_by(|a, b| (a.info.started, &a.name).cmp(&(b.info.started, &b.name)));
    Ok(runs)
}

/// Whether a collector on this machine holds the name of this run: for "gpt@2" also where the run that it keeps is gpt@3.
pub fn is_live(name: &str) -> bool {
    let base = name.split('@').next().unwrap_or(name);
    Places::from_environment().is_ok_and(|places| name_lock::is_held(&places, base))
}

/// The directory of the run that `name` means: `gpt@1` is that one, `gpt` the newest, a live one first.
pub fn resolve(name: &str) -> Result<PathBuf> {
    resolve_in(&Places::from_environment()?, name)
}

/// The directory of the run that `name` means in the given places.
pub fn resolve_in(places: &Places, name: &str) -> Result<PathBuf> {
    let wanted = RunName::parse(name)?;
    let runs = list_runs_in(places)?;
    let matching = runs.iter().filter(|run| match wanted.number {
        Some(_) => run.name == wanted,
        None => run.name.base == wanted.base,
    });
    let newest = matching.max_by_key(|run| (run.info.state == State::Live, run.name.number));
    newest.map(|run| run.directory.clone()).ok_or_else(|| {
        let known = runs.iter().map(|run| run.name.to_string());
        let nearest = known.min_by_key(|known| strsim::damerau_levenshtein(known, name));
        let error = Error::unreachable(format!("there is no run '{name}' in {}", places.runs().display()));
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
    use crate::runs::Reservation;

    fn places() -> (tempfile::TempDir, Places) {
        let dir = tempfile::tempdir().unwrap();
        let places = Places { home: dir.path().join("home"), runtime: dir.path().join("run") };
        (dir, places)
    }

    #[test]
    fn a_name_means_its_newest_run_and_a_number_that_one() {
        let (_dir, places) = places();
        assert!(list_runs_in(&places).unwrap().is_empty());
        let error = resolve_in(&places, "gpt").unwrap_err();
        assert!(error.hint_text().unwrap().contains("probe run"), "{error:?}");

        for expected in ["gpt@1", "gpt@2"] {
            let run = Reservation::take(&places, "gpt").unwrap();
            assert_eq!(run.name().to_string(), expected);
            RunInfo::begin(run.name(), "python train.py").write(run.directory()).unwrap();
        }
        assert_eq!(resolve_in(&places, "gpt").unwrap(), places.runs().join("gpt@2"));
        assert_eq!(resolve_in(&places, "gpt@1").unwrap(), places.runs().join("gpt@1"));
        let error = resolve_in(&places, "gtp@1").unwrap_err();
        assert!(error.hint_text().unwrap().contains("gpt@1"), "{error:?}");

        let runs = list_runs_in(&places).unwrap();
        assert_eq!(runs.iter().map(|r| r.name.to_string()).collect::<Vec<_>>(), ["gpt@1", "gpt@2"]);
        assert_eq!(runs[0].info.state, State::Lost, "live according to its file, but no collector has it open");
    }

    #[test]
    fn a_live_run_comes_before_a_newer_one_that_has_ended() {
        let (_dir, places) = places();
        let first = Reservation::take(&places, "gpt").unwrap();
        RunInfo::begin(first.name(), "").write(first.directory()).unwrap();
        let _listening = std::os::unix::net::UnixListener::bind(places.socket_for("gpt@1")).unwrap();
        drop(first);
        let second = places.runs().join("gpt@2");
        fs::create_dir(&second).unwrap();
        RunInfo::begin(&RunName::numbered("gpt@2").unwrap(), "").write(&second).unwrap();
        assert_eq!(resolve_in(&places, "gpt").unwrap(), places.runs().join("gpt@1"));
    }
}
