//! Taking the next number of a name, so that no two collectors ever write one run directory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{RunInfo, RunName, State, check_name};
use crate::error::{Error, Result};
use crate::paths::{Places, named};

/// A run directory that is ours to fill. While it lives, nobody else on this machine can take the same name: the
/// kernel holds the lock, and lets go of it however this process ends.
#[derive(Debug)]
pub struct Reservation {
    name: RunName,
    directory: PathBuf,
    _lock: File,
}

impl Reservation {
    /// Takes the next run called `name`; refused where one is live.
    pub fn take(places: &Places, name: &str) -> Result<Self> {
        check_name(name)?;
        let lock = lock(places, name)?;
        let runs = places.runs();
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&runs).map_err(|error| named(&runs, &error))?;
        let mut number = 1 + newest(&runs, name)?;
        loop {
            let run = RunName { base: name.to_owned(), number: Some(number) };
            let directory = runs.join(run.to_string());
            // The directory is the arbiter where the home is shared by several machines.
            match fs::DirBuilder::new().mode(0o700).create(&directory) {
                Ok(()) => return Ok(Self { name: run, directory, _lock: lock }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(named(&directory, &error)),
            }
        }
    }

    /// Takes a run again, "gpt@2", whose collector died; refused where one of that name is live, or where it has ended.
    pub fn resume(places: &Places, name: &str) -> Result<Self> {
        let run = RunName::parse(name)?;
        let directory = super::resolve_in(places, name)?;
        let lock = lock(places, &run.base)?;
        let info = RunInfo::read(&directory)?;
        if info.state == State::Ended {
            return Err(Error::failed(format!("run {} has ended, and can't go on", info.run))
                .hint(format!("begin another one: probe serve --name {}", run.base)));
        }
        let name = RunName::parse(&info.run)?;
        Ok(Self { name, directory, _lock: lock })
    }

    /// With its number.
    pub fn name(&self) -> &RunName {
        &self.name
    }

    /// Gives the name back where nothing came of the run.
    pub fn abandon(self) {
        // Only an empty directory goes: one that something was written to is worth looking at.
        let _ = fs::remove_dir(&self.directory);
    }

    /// Where the run's files go.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

fn lock(places: &Places, name: &str) -> Result<File> {
    let path = places.checked_runtime()?.join(format!("{name}.lock"));
    let flags = nix::fcntl::OFlag::O_NOFOLLOW.bits();
    let opened =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(&path);
    let file = opened.map_err(|error| named(&path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::failed(format!("a run called '{name}' is live"))
            .hint(format!("choose another name, or ask that one: probe {name} query …"))),
        Err(TryLockError::Error(error)) => Err(named(&path, &error)),
    }
}

/// Whether a collector holds this name now.
pub(super) fn is_held(places: &Places, name: &str) -> bool {
    let path = places.runtime.join(format!("{name}.lock"));
    let flags = nix::fcntl::OFlag::O_NOFOLLOW.bits();
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// The largest number a directory of this name has; 0 where there is none.
fn newest(runs: &Path, name: &str) -> Result<u32> {
    let entries = fs::read_dir(runs).map_err(|error| named(runs, &error))?;
    let names = entries.filter_map(|entry| RunName::numbered(entry.ok()?.file_name().to_str()?));
    Ok(names.filter(|run| run.base == name).filter_map(|run| run.number).max().unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::error::Kind;

    #[test]
    fn a_live_name_is_refused_and_an_ended_one_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places { home: dir.path().join("home"), runtime: dir.path().join("run") };
        let first = Reservation::take(&places, "gpt").unwrap();
        assert_eq!(fs::metadata(first.directory()).unwrap().mode() & 0o777, 0o700);
        let error = Reservation::take(&places, "gpt").unwrap_err();
        assert_eq!(error.to_string(), "a run called 'gpt' is live");
        assert!(error.hint_text().unwrap().contains("another name"));
        assert_eq!(Reservation::take(&places, "other").unwrap().name().to_string(), "other@1");
        drop(first);
        assert_eq!(Reservation::take(&places, "gpt").unwrap().name().to_string(), "gpt@2");
        assert_eq!(Reservation::take(&places, "query").unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn numbers_go_on_after_the_largest() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places { home: dir.path().join("home"), runtime: dir.path().join("run") };
        fs::create_dir_all(places.runs().join("gpt@9")).unwrap();
        fs::create_dir_all(places.runs().join("gpt@x")).unwrap();
        assert_eq!(Reservation::take(&places, "gpt").unwrap().name().to_string(), "gpt@10");
    }
}
