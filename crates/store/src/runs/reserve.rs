//! Reserves the next number of a name, so that no two collectors ever write one run directory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use probe_common::durable;
use probe_common::error::{Error, Result};
use probe_common::paths::{ProbeDirectories, host_name, io_error_at};
use probe_common::run_name::{RunName, check_name};

use super::info::{RunInfo, RunState};
use super::list::resolve_in;
use super::name_lock;
use super::writer_lock::{LockFailure, WriterLock};

/// A run directory that this process may fill. While this lives, no other process with the same runtime directory can take
/// the name, and none with the same home can write to the directory: the kernel has the locks, and releases them however this
/// process ends.
#[derive(Debug)]
pub struct RunReservation {
    name: RunName,
    directory: PathBuf,
    _lock: File,
    /// None where the file system has no locks.
    writer: Option<WriterLock>,
}

impl RunReservation {
    /// Reserves the next run called `name`; refused where one is live.
    pub fn reserve(directories: &ProbeDirectories, name: &str) -> Result<Self> {
        check_name(name)?;
        let lock = name_lock::acquire(directories, name)?;
        let runs = directories.runs();
        durable::create_private_directory(&runs).map_err(|error| not_writable(&runs, error))?;
        let mut number = 1 + newest(&runs, name)?;
        loop {
            let run = RunName { base: name.to_owned(), number: Some(number) };
            let directory = runs.join(run.to_string());
            // Creating the directory decides between machines that share the home.
            match durable::create_new_private_directory(&directory) {
                Ok(()) => {
                    // Without locks the directory is ours too: no collector resumes a run without run.json, and that names
                    // the run's host.
                    let writer = WriterLock::acquire(&directory).ok();
                    return Ok(Self { name: run, directory, _lock: lock, writer });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(not_writable(&directory, error)),
            }
        }
    }

    /// Reserves the next run called `name`, or one called "name-2", "name-3" … where runs with the names before are live.
    pub fn reserve_free(directories: &ProbeDirectories, name: &str) -> Result<Self> {
        let mut free = name.to_owned();
        for number in 2.. {
            match Self::reserve(directories, &free) {
                Err(_) if name_lock::is_held(directories, &free) => free = format!("{name}-{number}"),
                taken => return taken,
            }
        }
        Self::reserve(directories, name)
    }

    /// Reserves a run, "gpt@2", whose collector died, to resume it; refused where one of that name is live, where it has ended,
    /// and where it was begun on another host.
    pub fn resume(directories: &ProbeDirectories, name: &str) -> Result<Self> {
        let run = RunName::parse(name)?;
        let directory = resolve_in(directories, name)?;
        let lock = name_lock::acquire(directories, &run.base)?;
        may_go_on(&RunInfo::read(&directory)?)?;
        let writer = match WriterLock::acquire(&directory) {
            Ok(writer) => Some(writer),
            Err(LockFailure::ByAnother) => {
                let info = RunInfo::read(&directory)?;
                return Err(Error::failed(format!("a collector is writing run {} already", info.run)).hint(format!(
                    "it is process {} on {} as far as run.json says, and listens in another {}",
                    info.pid,
                    info.host,
                    probe_proto::env::PROBE_RUNTIME_DIR
                )));
            }
            Err(LockFailure::NotKnown(error)) => {
                let directory = directory.display();
                tracing::warn!("whether another collector writes {directory} can't be known: no locks there ({error})");
                None
            }
        };
        // Read again, now that no other process writes it.
        let info = RunInfo::read(&directory)?;
        may_go_on(&info)?;
        let name = RunName::parse(&info.run)?;
        Ok(Self { name, directory, _lock: lock, writer })
    }

    /// The run's name with its number.
    pub fn name(&self) -> &RunName {
        &self.name
    }

    /// Gives the name back if the run did not begin.
    pub fn abandon(self) {
        if let Some(writer) = self.writer {
            writer.remove();
        }
        // Only an empty directory is removed: files in it are worth looking at.
        let _ = fs::remove_dir(&self.directory);
    }

    /// The directory for the run's files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

fn not_writable(directory: &Path, error: io::Error) -> Error {
    io_error_at(directory, error).hint(format!("name another directory in {}", probe_proto::env::PROBE_HOME))
}

/// Refuses a run that has ended, or that only another host can resume.
fn may_go_on(info: &RunInfo) -> Result<()> {
    let another =
        || format!("begin another one: probe serve --name {}", info.run.split('@').next().unwrap_or_default());
    if info.state == RunState::Ended {
        return Err(Error::failed(format!("run {} has ended, and can't go on", info.run)).hint(another()));
    }
    // No collector answers here, but another machine with the same home may have one.
    let here = host_name();
    if info.host != here {
        let what = format!("run {} was begun on {}, and may be live there; this is {here}", info.run, info.host);
        return Err(Error::failed(what).hint(format!("resume it on {}, or {}", info.host, another())));
    }
    Ok(())
}

/// The largest number of a directory with this name; 0 if no directory has the name.
fn newest(runs: &Path, name: &str) -> Result<u32> {
    let entries = fs::read_dir(runs).map_err(|error| io_error_at(runs, error))?;
    let names = entries.filter_map(|entry| RunName::numbered(entry.ok()?.file_name().to_str()?));
    Ok(names.filter(|run| run.base == name).filter_map(|run| run.number).max().unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use probe_common::error::ErrorKind;
    use probe_common::fault::{self, DiskFault};

    #[test]
    fn a_live_name_is_refused_and_an_ended_one_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let directories = ProbeDirectories { home: dir.path().join("home"), runtime: dir.path().join("run") };
        let first = RunReservation::reserve(&directories, "gpt").unwrap();
        assert_eq!(fs::metadata(first.directory()).unwrap().mode() & 0o777, 0o700);
        let error = RunReservation::reserve(&directories, "gpt").unwrap_err();
        assert_eq!(error.to_string(), "a run called 'gpt' is live");
        assert!(error.hint_text().unwrap().contains("another name"));
        assert_eq!(RunReservation::reserve(&directories, "other").unwrap().name().to_string(), "other@1");
        let second = RunReservation::reserve_free(&directories, "gpt").unwrap();
        assert_eq!(second.name().to_string(), "gpt-2@1");
        assert_eq!(RunReservation::reserve_free(&directories, "gpt").unwrap().name().to_string(), "gpt-3@1");
        drop(first);
        assert_eq!(RunReservation::reserve_free(&directories, "gpt").unwrap().name().to_string(), "gpt@2");
        drop(second);
        assert_eq!(RunReservation::reserve(&directories, "gpt").unwrap().name().to_string(), "gpt@3");
        assert_eq!(RunReservation::reserve(&directories, "query").unwrap_err().kind(), ErrorKind::Usage);
    }

    #[test]
    fn a_run_of_another_host_is_not_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let directories = ProbeDirectories { home: dir.path().join("home"), runtime: dir.path().join("run") };
        let first = RunReservation::reserve(&directories, "gpt").unwrap();
        let info = RunInfo::begin(first.name(), "");
        RunInfo { host: "node-7".into(), ..info.clone() }.write(first.directory()).unwrap();
        drop(first);
        let error = RunReservation::resume(&directories, "gpt@1").unwrap_err();
        assert!(error.to_string().starts_with("run gpt@1 was begun on node-7, and may be live there"), "{error}");
        assert!(error.hint_text().unwrap().contains("resume it on node-7"), "{error:?}");
        info.write(&directories.runs().join("gpt@1")).unwrap();
        assert_eq!(RunReservation::resume(&directories, "gpt@1").unwrap().name().to_string(), "gpt@1");
    }

    /// Two containers, or two hosts of one name, that share a home, or two sessions with runtime directories of their own.
    #[test]
    fn whoever_shares_only_the_home_is_kept_from_a_run_that_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let [here, there] =
            ["here", "there"].map(|name| ProbeDirectories { home: home.clone(), runtime: dir.path().join(name) });
        let first = RunReservation::reserve(&here, "gpt").unwrap();
        RunInfo::begin(first.name(), "").write(first.directory()).unwrap();
        let error = RunReservation::resume(&there, "gpt@1").unwrap_err();
        assert_eq!(error.to_string(), "a collector is writing run gpt@1 already");
        let run = super::super::named_runs(&there, &["gpt@1".into()]).unwrap().remove(0);
        assert_eq!(run.info.state, RunState::Live, "its collector has its socket elsewhere");
        assert_eq!(super::super::why_it_stays(&there, &run).unwrap(), "gpt@1 is live");
        assert_eq!(RunReservation::reserve(&there, "gpt").unwrap().name().to_string(), "gpt@2");
        drop(first);
        let run = super::super::named_runs(&there, &["gpt@1".into()]).unwrap().remove(0);
        assert_eq!((run.info.state, super::super::why_it_stays(&there, &run)), (RunState::Lost, None));
        let second = RunReservation::resume(&there, "gpt@1").unwrap();
        assert!(RunReservation::resume(&here, "gpt@1").is_err(), "{second:?} writes it");
    }

    #[test]
    fn what_nothing_came_of_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let directories = ProbeDirectories { home: dir.path().join("home"), runtime: dir.path().join("run") };
        RunReservation::reserve(&directories, "gpt").unwrap().abandon();
        assert_eq!(fs::read_dir(directories.runs()).unwrap().count(), 0);
        // A run directory whose name could not be synced is removed as well.
        fault::set(&directories.runs(), DiskFault::Names, true);
        assert!(RunReservation::reserve(&directories, "gpt").is_err());
        fault::set(&directories.runs(), DiskFault::Names, false);
        assert_eq!(fs::read_dir(directories.runs()).unwrap().count(), 0);
        assert_eq!(RunReservation::reserve(&directories, "gpt").unwrap().name().to_string(), "gpt@1");
    }

    #[test]
    fn numbers_go_on_after_the_largest() {
        let dir = tempfile::tempdir().unwrap();
        let directories = ProbeDirectories { home: dir.path().join("home"), runtime: dir.path().join("run") };
        fs::create_dir_all(directories.runs().join("gpt@9")).unwrap();
        fs::create_dir_all(directories.runs().join("gpt@x")).unwrap();
        assert_eq!(RunReservation::reserve(&directories, "gpt").unwrap().name().to_string(), "gpt@10");
    }
}
