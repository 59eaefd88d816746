//! Paths of run directories and of the sockets of live collectors.
//!
//! A user who can open a socket controls the training process (`probe eval`), so the directory of sockets is ours alone,
//! mode 0700, and is checked each time before it is trusted.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::{User, geteuid};
use probe_proto::env;

use crate::error::{Error, Result};

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// The two directories in which `probe` keeps its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeDirectories {
    /// The directory whose `runs/` holds the run directories.
    pub home: PathBuf,
    /// The directory of the sockets of live collectors.
    pub runtime: PathBuf,
}

impl ProbeDirectories {
    /// The directories that the environment names; neither is created or looked at.
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let path = |name: &str| variable(name).map(PathBuf::from);
        let home = match (path(env::PROBE_HOME), path("XDG_STATE_HOME")) {
            (Some(home), _) => home,
            (None, Some(state)) => state.join("probe"),
            (None, None) => user_home(path("HOME"))?.join(".local/state/probe"),
        };
        let uid = geteuid();
        let runtime = match (path(env::PROBE_RUNTIME_DIR), path("XDG_RUNTIME_DIR")) {
            (Some(runtime), _) => runtime,
            // A session's variable can outlive the session's directory (su, a container), and is then ignored.
            (None, Some(session)) if session.is_dir() => session.join("probe"),
            _ => std::env::temp_dir().join(format!("probe-{uid}")),
        };
        let absolute = |path: PathBuf| std::path::absolute(&path).map_err(|error| io_error_at(&path, error));
        Ok(Self { home: absolute(home)?, runtime: absolute(runtime)? })
    }

    /// The directory of run directories.
    pub fn runs(&self) -> PathBuf {
        self.home.join("runs")
    }

    /// The runtime directory, created where it is missing; an error where other users could get into it.
    pub fn checked_runtime(&self) -> Result<&Path> {
        private_directory(&self.runtime)?;
        Ok(&self.runtime)
    }

    /// The socket of the collector that records `run` ("gpt@2").
    pub fn socket_for(&self, run: &str) -> PathBuf {
        self.runtime.join(format!("{run}.sock"))
    }

    /// Sockets that a collector listens on, with the names of their runs, in the order of the names.
    pub fn sockets(&self) -> Result<Vec<(String, PathBuf)>> {
        if !self.runtime.exists() {
            return Ok(Vec::new());
        }
        let mut live = Vec::new();
        let directory = self.checked_runtime()?;
        for entry in fs::read_dir(directory).map_err(|error| io_error_at(directory, error))? {
            let Ok(entry) = entry else { continue };
            let name = entry.file_name();
            let Some(run) = name.to_str().and_then(|name| name.strip_suffix(".sock")) else { continue };
            // Collectors may listen on other names here too; each run is listed once, by the socket of its own.
            if crate::run_name::RunName::numbered(run).is_none() {
                continue;
            }
            if socket_state(&entry.path()) == SocketState::Live {
                live.push((run.to_owned(), entry.path()));
            }
        }
        live.sort();
        Ok(live)
    }
}

/// The directory of runs: `$PROBE_HOME`, else `$XDG_STATE_HOME/probe`, else `~/.local/state/probe`.
pub fn home() -> Result<PathBuf> {
    Ok(ProbeDirectories::from_environment()?.home)
}

/// The directory of sockets, created with mode 0700 and checked: it is ours alone, and no symlink.
pub fn runtime_dir() -> Result<PathBuf> {
    Ok(ProbeDirectories::from_environment()?.checked_runtime()?.to_owned())
}

/// The socket of the collector that records `run` ("gpt@2").
pub fn socket_for(run: &str) -> Result<PathBuf> {
    Ok(ProbeDirectories::from_environment()?.socket_for(run))
}

/// Live collectors of this user on this machine: the run that each records, and its socket.
pub fn list_sockets() -> Result<Vec<(String, PathBuf)>> {
    ProbeDirectories::from_environment()?.sockets()
}

/// What is at a socket's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketState {
    /// Nothing.
    Absent,
    /// A socket that no process listens on any more.
    Stale,
    /// A socket that a process listens on.
    Live,
    /// Something that is no socket, or that we may not open.
    Other,
}

/// Finds the state of a socket by connecting to it, without waiting for an answer.
pub fn socket_state(path: &Path) -> SocketState {
    let kind = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return SocketState::Absent,
        Err(_) => return SocketState::Other,
    };
    if !std::os::unix::fs::FileTypeExt::is_socket(&kind) {
        return SocketState::Other;
    }
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let (Ok(address), Ok(file)) = (UnixAddr::new(path), socket(AddressFamily::Unix, SockType::Stream, flags, None))
    else {
        return SocketState::Other;
    };
    match connect(std::os::fd::AsRawFd::as_raw_fd(&file), &address) {
        // EAGAIN: its queue of connections is full, so a process is listening.
        Ok(()) | Err(nix::errno::Errno::EAGAIN) => SocketState::Live,
        Err(nix::errno::Errno::ECONNREFUSED) => SocketState::Stale,
        Err(nix::errno::Errno::ENOENT) => SocketState::Absent,
        Err(_) => SocketState::Other,
    }
}

/// Creates the directory `path` with mode 0700 where it is missing, and refuses one that is not ours alone.
pub fn private_directory(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|error| io_error_at(parent, error))?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io_error_at(path, error).hint(format!("name another directory in {}", env::PROBE_RUNTIME_DIR)));
        }
        _ => {}
    }
    // Links are not followed: one in a directory that others can write to could point anywhere.
    let metadata = fs::symlink_metadata(path).map_err(|error| io_error_at(path, error))?;
    let denied = |what: String| {
        Error::denied(format!("{} {what}; sockets there would not be safe", path.display()))
            .hint(format!("remove it, or name another directory in {}", env::PROBE_RUNTIME_DIR))
    };
    if metadata.file_type().is_symlink() {
        return Err(denied("is a symbolic link".into()));
    }
    if !metadata.is_dir() {
        return Err(denied("is no directory".into()));
    }
    if metadata.uid() != geteuid().as_raw() {
        return Err(denied(format!("belongs to uid {}, not to you (uid {})", metadata.uid(), geteuid())));
    }
    if metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o777;
        return Err(Error::denied(format!(
            "{} is open to other users (mode {mode:04o}); sockets there would not be safe",
            path.display()
        ))
        .hint(format!("chmod 0700 {}", path.display())));
    }
    Ok(())
}

/// Refuses a directory in which another user could replace our files.
pub fn only_ours_to_change(path: &Path) -> Result<()> {
    let metadata = fs::metadata(path).map_err(|error| io_error_at(path, error))?;
    let denied =
        |what: String| Err(Error::denied(format!("{} {what}; what is in it would not be safe", path.display())));
    let (uid, mode) = (metadata.uid(), metadata.mode());
    if uid != geteuid().as_raw() && uid != 0 {
        return denied(format!("belongs to uid {uid}, not to you"));
    }
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return denied(format!("can be written by others (mode {:04o})", mode & 0o7777));
    }
    Ok(())
}

/// This machine's host name; empty where it has none.
pub fn host_name() -> String {
    nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned()
}

/// An input or output error with the path of its file.
pub fn io_error_at(path: &Path, error: io::Error) -> Error {
    Error::failed(path.display().to_string()).because(error)
}

fn user_home(variable: Option<PathBuf>) -> Result<PathBuf> {
    if let Some(home) = variable {
        return Ok(home);
    }
    let user = User::from_uid(geteuid()).ok().flatten();
    user.map(|user| user.dir).ok_or_else(|| {
        Error::failed("this user has no home directory to keep runs in")
            .hint(format!("name a directory in {}", env::PROBE_HOME))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::error::ErrorKind;

    fn directories_from(variables: &[(&str, &str)]) -> ProbeDirectories {
        ProbeDirectories::from_variables(|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))
        })
        .unwrap()
    }

    #[test]
    fn directories_follow_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let session = dir.path().to_str().unwrap();
        let all = [("PROBE_HOME", "/a"), ("XDG_STATE_HOME", "/b"), ("HOME", "/c"), ("PROBE_RUNTIME_DIR", "/d")];
        assert_eq!(directories_from(&all), ProbeDirectories { home: "/a".into(), runtime: "/d".into() });
        assert_eq!(directories_from(&all[1..]).home, Path::new("/b/probe"));
        assert_eq!(directories_from(&all[2..]).home, Path::new("/c/.local/state/probe"));
        assert_eq!(directories_from(&[("HOME", "/c"), ("XDG_RUNTIME_DIR", session)]).runtime, dir.path().join("probe"));
        let gone = directories_from(&[("HOME", "/c"), ("XDG_RUNTIME_DIR", "/no/such/directory")]);
        assert!(gone.runtime.starts_with(std::env::temp_dir()));
        assert_eq!(gone.socket_for("gpt@2").file_name().unwrap(), "gpt@2.sock");
    }

    #[test]
    fn the_runtime_directory_is_ours_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/probe");
        private_directory(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        private_directory(&path).unwrap();

        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let error = private_directory(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("mode 0750"), "{error}");
        assert!(error.hint_text().unwrap().starts_with("chmod 0700"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();

        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(private_directory(&link).unwrap_err().to_string().contains("symbolic link"));
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(private_directory(&file).unwrap_err().to_string().contains("no directory"));
    }

    #[test]
    fn live_stale_and_absent_sockets_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = dir.path().join("run");
        let directories = ProbeDirectories { home: dir.path().into(), runtime: runtime.clone() };
        assert_eq!(directories.sockets().unwrap(), []);
        assert!(!runtime.exists(), "looking makes nothing");
        private_directory(&runtime).unwrap();
        let path = directories.socket_for("gpt@1");
        assert_eq!(socket_state(&path), SocketState::Absent);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(socket_state(&path), SocketState::Live);
        assert_eq!(directories.sockets().unwrap(), [("gpt@1".to_owned(), path.clone())]);
        drop(listener);
        assert_eq!(socket_state(&path), SocketState::Stale);
        assert_eq!(directories.sockets().unwrap(), []);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(socket_state(&path), SocketState::Other);
    }
}
