//! Finds the files to import: those that are named, and all files of a known format in a named directory.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use probe_common::error::{Error, Result};

use super::formats::TraceFormat;
use super::head::FileHead;

/// Most directories within each other.
const MAX_DEPTH: usize = 8;
/// Most files of all directories.
const MAX_FILES: usize = 1 << 16;

/// A file to import.
#[derive(Debug, Clone)]
pub struct TraceFile {
    /// The file's path.
    pub path: PathBuf,
    /// The file's name in the run: its own, with as much of the path as distinguishes it from the others.
    pub capture: String,
    /// Whether the file was named, and not found in a directory.
    pub named: bool,
    /// The format, by the file's content or as the user says.
    pub format: TraceFormat,
}

/// The files to import.
#[derive(Debug, Default)]
pub struct FilesToImport {
    /// The files, in order of their names.
    pub files: Vec<TraceFile>,
    /// Files of directories that are of no known format.
    pub unknown: Vec<PathBuf>,
    /// Errors of files in directories that can't be read.
    pub unreadable: Vec<Error>,
    /// Errors of paths that were named and have no trace.
    pub refused: Vec<Error>,
    /// Paths to a file that has another path among the files.
    pub repeated: Vec<PathBuf>,
}

/// The files at `paths`, each with the format of its content, or with `forced`. Of several paths, one that has no trace is left out.
///
/// # Errors
/// There is no such path, or none of them is a trace or a directory with traces.
pub fn find(paths: &[PathBuf], forced: Option<TraceFormat>) -> Result<FilesToImport> {
    let mut found = FilesToImport::default();
    for path in paths {
        if path == Path::new("-") {
            return Err(Error::usage("probe import does not read its standard input")
                .hint("write it to a file, and import that"));
        }
        let kind = fs::metadata(path)
            .map_err(|error| Error::usage(format!("cannot read {}", path.display())).because(error))?;
        let added = if kind.is_dir() { found.add_directory(path, forced) } else { found.add_file(path, &kind, forced) };
        match added {
            Err(error) if paths.len() > 1 => found.refused.push(error),
            added => added?,
        }
    }
    if found.files.is_empty() && !found.refused.is_empty() {
        return Err(found.refused.swap_remove(0));
    }
    found.leave_out_repeated();
    name_captures(&mut found.files);
    Ok(found)
}

impl FilesToImport {
    fn add_file(&mut self, path: &Path, kind: &Metadata, forced: Option<TraceFormat>) -> Result<()> {
        if kind.is_file() && kind.len() == 0 {
            return Err(Error::failed(format!("cannot import {}: it is empty", path.display())));
        }
        let format = format(path, forced)?.map_err(|head| {
            let (what, hint) = match head.other_format() {
                Some((what, instead)) => (what, instead.to_owned()),
                None => ("its format is not known", TraceFormat::names_hint()),
            };
            Error::failed(format!("cannot import {}: {what}", path.display())).hint(hint)
        })?;
        self.files.push(TraceFile { path: path.to_owned(), capture: String::new(), named: true, format });
        Ok(())
    }

    fn add_directory(&mut self, directory: &Path, forced: Option<TraceFormat>) -> Result<()> {
        let mut all = Vec::new();
        walk(directory, 0, &mut all, &mut self.unreadable)?;
        all.sort();
        let (before, seen) = (self.files.len(), all.len());
        for path in all {
            match format(&path, forced) {
                Ok(Ok(format)) => self.files.push(TraceFile { path, capture: String::new(), named: false, format }),
                Ok(Err(_)) => self.unknown.push(path),
                Err(error) => self.unreadable.push(error),
            }
        }
        if seen == 0 {
            return Err(Error::failed(format!("{} has no files", directory.display())));
        }
        if self.files.len() == before {
            return Err(Error::failed(format!(
                "{} has no traces: none of its {seen} files is of a format that is known here",
                directory.display()
            ))
            .hint(TraceFormat::names_hint()));
        }
        Ok(())
    }

    /// Keeps one path to each file: a file that is read twice would have all of its rows twice.
    fn leave_out_repeated(&mut self) {
        let mut seen = HashSet::new();
        let files = std::mem::take(&mut self.files);
        for file in files {
            let is_new = fs::metadata(&file.path).map_or(true, |found| seen.insert((found.dev(), found.ino())));
            if is_new { self.files.push(file) } else { self.repeated.push(file.path) }
        }
    }
}

/// The format of a file; where it is not known, its beginning.
fn format(path: &Path, forced: Option<TraceFormat>) -> Result<std::result::Result<TraceFormat, FileHead>> {
    if let Some(format) = forced {
        return Ok(Ok(format));
    }
    let head = FileHead::read(path)?;
    Ok(TraceFormat::detect(&head).ok_or(head))
}

/// Names each file by its own name, or by its path where another has the same name.
fn name_captures(files: &mut [TraceFile]) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for file in &*files {
        *seen.entry(name(&file.path)).or_default() += 1;
    }
    for file in files {
        let name = name(&file.path);
        file.capture = if seen.get(&name) == Some(&1) { name } else { file.path.display().to_string() };
    }
}

/// The last part of a path.
fn name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// All files below a directory. Directories in it that can't be read are in `unreadable`.
fn walk(directory: &Path, depth: usize, found: &mut Vec<PathBuf>, unreadable: &mut Vec<Error>) -> Result<()> {
    let failed = |error: std::io::Error| Error::failed(format!("cannot read {}", directory.display())).because(error);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        let path = entry.path();
        if kind.is_dir() && depth < MAX_DEPTH {
            if let Err(error) = walk(&path, depth + 1, found, unreadable) {
                unreadable.push(error);
            }
        } else if !kind.is_dir() && found.len() < MAX_FILES {
            found.push(path);
        }
    }
    Ok(())
}
