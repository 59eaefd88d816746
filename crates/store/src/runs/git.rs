//! The git commit of a directory, so that a run can be told from the next one. `git` is asked for it, where it is installed.
//! It is never a reason for a run to fail or to wait.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The longest time that git may take in all: a repository on a slow file system is no reason to start training late.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The state of a directory's git repository.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GitState {
    /// The commit's full name; None outside of a repository, or in one without commits.
    pub(super) commit: Option<String>,
    /// Whether tracked files differ from the commit. None where git was too slow to say.
    pub(super) dirty: Option<bool>,
}

impl GitState {
    /// Asks git about `directory`.
    pub(super) fn of(directory: &Path) -> Self {
        Self::within(TIMEOUT, directory)
    }

    /// Asks git about `directory`. A field is None if git takes longer than `patience`.
    fn within(patience: Duration, directory: &Path) -> Self {
        let deadline = Instant::now() + patience;
        // Both at once: the second one looks at every file.
        let commit = RunningGit::start(directory, &["rev-parse", "--verify", "--quiet", "HEAD"]);
        let status =
            RunningGit::start(directory, &["status", "--porcelain", "--untracked-files=no", "--ignore-submodules"]);
        let commit = commit.and_then(|git| git.answer(deadline)).map(|text| text.trim().to_owned());
        let commit = commit.filter(|commit| !commit.is_empty() && commit.bytes().all(|b| b.is_ascii_hexdigit()));
        let dirty = status.and_then(|git| git.answer(deadline)).map(|text| !text.is_empty());
        Self { dirty: commit.as_ref().and(dirty), commit }
    }
}

/// A git process that is running.
struct RunningGit {
    child: Child,
    output: mpsc::Receiver<String>,
}

impl RunningGit {
    fn start(directory: &Path, words: &[&str]) -> Option<Self> {
        let mut child = Command::new("git")
            // A program that the repository configures must not run only because a training starts there.
            .args(["-c", "core.fsmonitor=false", "-C"])
            .arg(directory)
            .args(words)
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut stdout = child.stdout.take()?;
        let (send, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if stdout.read_to_end(&mut bytes).is_ok() {
                // The receiver is gone where the output came too late.
                let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
            }
        });
        Some(Self { child, output })
    }

    /// What git printed, where it succeeded in time.
    fn answer(mut self, deadline: Instant) -> Option<String> {
        let text = self.output.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        if text.is_err() {
            // Git may have ended just now; then the kill fails.
            let _ = self.child.kill();
        }
        let status = self.child.wait().ok()?;
        text.ok().filter(|_| status.success())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What git says of a directory, however busy the machine is.
    fn of(directory: &Path) -> GitState {
        GitState::within(Duration::from_secs(60), directory)
    }

    fn git(directory: &Path, words: &[&str]) -> String {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let output = Command::new("git").arg("-C").arg(directory).args(identity).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn a_directory_s_commit_is_known_and_whether_it_was_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        git(path, &["init", "--quiet"]);
        assert_eq!(of(path), GitState::default(), "no commit yet");
        fs::write(path.join("train.py"), "1").unwrap();
        git(path, &["add", "."]);
        git(path, &["commit", "--quiet", "-m", "a"]);
        let commit = git(path, &["rev-parse", "HEAD"]);
        assert_eq!(of(path), GitState { commit: Some(commit.clone()), dirty: Some(false) });
        fs::write(path.join("notes"), "").unwrap();
        assert_eq!(of(path).dirty, Some(false), "what git does not track is none of the commit's");
        fs::write(path.join("train.py"), "2").unwrap();
        fs::create_dir(path.join("below")).unwrap();
        assert_eq!(of(&path.join("below")), GitState { commit: Some(commit), dirty: Some(true) });
    }

    #[test]
    fn what_is_no_repository_has_no_commit() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(of(directory.path()), GitState::default());
        assert_eq!(of(&directory.path().join("none")), GitState::default());
    }
}
