//! Which files are meant: those that are named, and all of a directory that may be traces.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use probe_common::error::{Error, Result};

/// Directories within each other.
const MAX_DEPTH: usize = 8;
/// Files of all directories.
const MAX_FILES: usize = 1 << 16;

/// A file to import.
#[derive(Debug, Clone)]
pub struct TraceFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it is called in the run: its name, with as much of the path as tells it from the others.
    pub capture: String,
    /// It was named, and not found in a directory.
    pub named: bool,
}

/// The files behind `paths`, in order of their names.
///
/// # Errors
/// There is no such path, a directory can't be read, or has no such file.
pub fn find(paths: &[PathBuf]) -> Result<Vec<TraceFile>> {
    let mut found: Vec<(PathBuf, bool)> = Vec::new();
    for path in paths {
        let kind =
            fs::metadata(path).map_err(|error| Error::usage(format!("cannot read {}: {error}", path.display())))?;
        if !kind.is_dir() {
            found.push((path.clone(), true));
            continue;
        }
        let before = found.len();
        walk(path, 0, &mut found)?;
        if found.len() == before {
            return Err(Error::failed(format!(
                "{} has no traces: no file whose name ends with .json or .json.gz",
                path.display()
            ))
            .hint("name the files themselves where theirs do not"));
        }
        found[before..].sort();
    }
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (path, _) in &found {
        *seen.entry(name(path, 1)).or_default() += 1;
    }
    let capture = |path: &Path| match seen.get(&name(path, 1)) {
        Some(1) => name(path, 1),
        _ => path.display().to_string(),
    };
    let mut files: Vec<TraceFile> =
        found.into_iter().map(|(path, named)| TraceFile { capture: capture(&path), path, named }).collect();
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}

/// The last parts of a path.
fn name(path: &Path, parts: usize) -> String {
    let all: Vec<_> = path.components().collect();
    let last: PathBuf = all[all.len().saturating_sub(parts)..].iter().collect();
    last.display().to_string()
}

fn walk(directory: &Path, depth: usize, found: &mut Vec<(PathBuf, bool)>) -> Result<()> {
    let failed = |error: std::io::Error| Error::failed(format!("cannot read {}: {error}", directory.display()));
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        let path = entry.path();
        if kind.is_dir() && depth < MAX_DEPTH {
            walk(&path, depth + 1, found)?;
        } else if !kind.is_dir() && is_candidate(&path) && found.len() < MAX_FILES {
            found.push((path, false));
        }
    }
    Ok(())
}

/// Whether a file of a directory may be a trace, by its name. What it is, is seen when it is read.
fn is_candidate(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    name.ends_with(".json") || name.ends_with(".json.gz")
}
