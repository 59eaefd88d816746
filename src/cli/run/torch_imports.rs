//! Reports of processes that import torch and are no agents yet, so that the launcher can say why nothing was recorded: a
//! file beside the run's socket, to which they append a line each.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

/// Number of processes that are named.
const MAX_NAMED: usize = 5;

/// The file, which is removed on drop.
#[derive(Debug)]
pub(super) struct TorchImportReports {
    path: PathBuf,
    began: SystemTime,
}

/// A process that imported torch.
#[derive(Debug, Deserialize)]
struct TorchImport {
    pid: u32,
    /// When; none where the process learned of it later.
    unix_s: Option<f64>,
    command: String,
    /// What the process is or did, in words that follow "imported torch".
    what: String,
}

impl TorchImportReports {
    /// Makes the file of the run whose collector is at `endpoint`. Without the file only the hints are less exact.
    pub(super) fn begin(endpoint: &str) -> Self {
        let path = PathBuf::from(endpoint.strip_prefix("unix:").unwrap_or(endpoint)).with_extension("seen");
        let _ = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        Self { path, began: SystemTime::now() }
    }

    /// Whether no process has said that it imported torch.
    pub(super) fn is_empty(&self) -> bool {
        fs::metadata(&self.path).map_or(true, |file| file.len() == 0)
    }

    /// The reports, a sentence a process.
    pub(super) fn sentences(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let lines: Vec<TorchImport> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let mut sentences: Vec<String> = lines.iter().take(MAX_NAMED).map(|line| self.sentence(line)).collect();
        if lines.len() > MAX_NAMED {
            sentences.push(format!("{} more processes imported torch", lines.len() - MAX_NAMED));
        }
        sentences
    }

    fn sentence(&self, line: &TorchImport) -> String {
        let after = line.unix_s.map_or_else(String::new, |unix_s| {
            let at = UNIX_EPOCH + Duration::try_from_secs_f64(unix_s).unwrap_or_default();
            format!(" after {:.1} s", at.duration_since(self.began).unwrap_or_default().as_secs_f64())
        });
        let TorchImport { pid, command, what, .. } = line;
        let command: String = command.chars().filter(|c| !c.is_control()).collect();
        format!("process {pid} ({command}) imported torch{after}, and {what}")
    }
}

impl Drop for TorchImportReports {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_few_processes_are_named_and_the_others_counted() {
        let directory = tempfile::tempdir().unwrap();
        let seen = TorchImportReports::begin(&format!("unix:{}/gpt@1.sock", directory.path().display()));
        assert!(seen.sentences().is_empty());
        let line = |pid: u32| {
            format!(
                r#"{{"pid":{pid},"unix_s":{},"command":"python a\u001b.py","what":"left"}}"#,
                if pid == 2 { "null" } else { "0" }
            )
        };
        let lines: Vec<String> = (1..=7).map(line).collect();
        fs::write(directory.path().join("gpt@1.seen"), format!("{}\nhalf a li", lines.join("\n"))).unwrap();
        let sentences = seen.sentences();
        assert_eq!(sentences[0], "process 1 (python a.py) imported torch after 0.0 s, and left");
        assert_eq!(sentences[1], "process 2 (python a.py) imported torch, and left");
        assert_eq!((sentences.len(), sentences[5].as_str()), (6, "2 more processes imported torch"));
        drop(seen);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
