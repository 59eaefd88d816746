//! The source text of lines. A file that was changed since its process began is not used.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::processes;

/// Largest file that is read (bytes), and longest line that is shown (characters).
const MAX_FILE_BYTES: u64 = 4 << 20;
const MAX_LINE_LENGTH: usize = 100;

/// The files of one process.
#[derive(Debug)]
pub(super) struct SourceFiles {
    pid: i32,
    began: Option<SystemTime>,
    files: HashMap<String, Option<String>>,
}

impl SourceFiles {
    pub(super) fn of(pid: i32) -> Self {
        Self { pid, began: processes::started_at(pid), files: HashMap::new() }
    }

    /// A line of a file, without the space around it; None where the text is not known.
    pub(super) fn line(&mut self, file: &str, line: u32) -> Option<String> {
        if !file.starts_with('/') {
            return None;
        }
        if !self.files.contains_key(file) {
            self.files.insert(file.to_owned(), self.read(file));
        }
        let text = self.files.get(file)?.as_deref()?;
        let line = text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?)?.trim();
        let cut: String = line.chars().filter(|c| !c.is_control()).take(MAX_LINE_LENGTH).collect();
        (!cut.is_empty()).then_some(cut)
    }

    /// Reads a file by its path in the process, which may be in a container.
    fn read(&self, file: &str) -> Option<String> {
        let path = PathBuf::from(format!("/proc/{}/root{file}", self.pid));
        let about = fs::metadata(&path).ok()?;
        // The kernel gives the time of boot in whole seconds.
        let unchanged = about.modified().ok()? <= self.began? + Duration::from_secs(1);
        if !unchanged || !about.is_file() || about.len() > MAX_FILE_BYTES {
            return None;
        }
        fs::read_to_string(path).ok()
    }
}
