//! The files of a run directory: those of built-in tables, of tables that the run declared, and damaged ones.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::arrow::parquet_to_arrow_schema;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};
use probe_common::error::{Error, Result};
use probe_proto::table::Table;
use probe_proto::tables::{TABLES, custom};

use super::file_names::{UNFINISHED, superseded, table_directory};
use super::files::ParquetFile;
use super::schema::table_of;

/// Number of files for which another thread is worth its start.
const FILES_A_THREAD: usize = 64;

/// The files of a run directory.
#[derive(Debug, Default)]
pub(super) struct RunFiles {
    /// The files of every table, in the order of [`TABLES`], with an empty list for tables without any. Declared tables follow.
    pub(super) tables: Vec<Vec<Arc<ParquetFile>>>,
    /// Tables that the run's program declared; their files follow those of [`TABLES`].
    pub(super) declared: Vec<&'static Table>,
    /// Files that can't be read, and why.
    pub(super) damaged: Vec<(PathBuf, Error)>,
    /// Files that were never finished, and those that others have replaced.
    pub(super) unfinished: Vec<PathBuf>,
}

/// Looks at all files of a run directory.
pub(super) fn find(directory: &Path) -> Result<RunFiles> {
    let directory = fs::canonicalize(directory).map_err(|error| {
        Error::failed(format!("cannot open the run directory {}", directory.display())).because(error)
    })?;
    let mut found = RunFiles::default();
    for table in TABLES {
        let files = find_table(&directory, table, &mut found)?;
        found.tables.push(files);
    }
    for table in program_tables(&directory, &mut found)? {
        let files = find_table(&directory, table, &mut found)?;
        found.tables.push(files);
        found.declared.push(table);
    }
    Ok(found)
}

/// The tables that the run's program declared, by the columns of the first file of each that can be read.
fn program_tables(directory: &Path, found: &mut RunFiles) -> Result<Vec<&'static Table>> {
    let cannot = |error: std::io::Error| Error::failed(format!("cannot read {}", directory.display())).because(error);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(cannot)? {
        let name = entry.map_err(cannot)?.file_name();
        names.extend(name.to_str().filter(|name| !custom::is_reserved(name)).map(str::to_owned));
    }
    names.sort();
    let mut tables = Vec::new();
    for name in names {
        let Ok(entries) = fs::read_dir(directory.join(&name)) else { continue };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "parquet"));
        paths.sort();
        if tables.len() >= custom::MAX_TABLES {
            break;
        }
        let mut damaged = Vec::new();
        let table = paths.into_iter().find_map(|path| match program_table(&name, &path) {
            Ok(table) => Some(table),
            Err(error) => {
                damaged.push((path, error));
                None
            }
        });
        match table {
            Some(table) => tables.push(table),
            None => found.damaged.extend(damaged),
        }
    }
    Ok(tables)
}

fn program_table(name: &str, path: &Path) -> Result<&'static Table> {
    let cannot = || Error::failed(format!("cannot read {}", path.display()));
    let file = File::open(path).map_err(|error| cannot().because(error))?;
    let metadata = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Skip).parse_and_finish(&file);
    let metadata = metadata.map_err(|error| cannot().because(error))?;
    let file = metadata.file_metadata();
    let schema = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata());
    table_of(name, &schema.map_err(|error| cannot().because(error))?).map_err(|why| cannot().because(why))
}

fn find_table(directory: &Path, table: &'static Table, found: &mut RunFiles) -> Result<Vec<Arc<ParquetFile>>> {
    let directory = table_directory(directory, table);
    let cannot = |error: std::io::Error| Error::failed(format!("cannot read {}", directory.display())).because(error);
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(cannot(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(cannot)?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("parquet") => paths.push(path),
            Some(UNFINISHED) => found.unfinished.push(path),
            _ => {}
        }
    }
    paths.sort();
    let mut files = Vec::with_capacity(paths.len());
    for (path, opened) in open_all(paths, table) {
        match opened {
            Ok(file) => files.push(Arc::new(file)),
            Err(error) => found.damaged.push((path, error)),
        }
    }
    // A collector that died after a merge may have left the merged files. Only a file that can be read replaces others.
    let replaced = superseded(&files.iter().map(|file| file.path.as_path()).collect::<Vec<_>>());
    files.retain(|file| !replaced.contains(&file.path));
    found.unfinished.extend(replaced);
    Ok(files)
}

/// Opens each file, with a thread for each processor where there are many files.
fn open_all(paths: Vec<PathBuf>, table: &'static Table) -> Vec<(PathBuf, Result<ParquetFile>)> {
    let open = |path: &PathBuf| (path.clone(), ParquetFile::open(path, table));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(paths.len() / FILES_A_THREAD).max(1);
    std::thread::scope(|scope| {
        let mut shares = paths.chunks(paths.len().div_ceil(threads).max(1));
        let own = shares.next().unwrap_or_default();
        let share = |share: &'_ [PathBuf]| share.iter().map(open).collect::<Vec<_>>();
        let others: Vec<_> = shares
            .map(|paths| (paths, std::thread::Builder::new().spawn_scoped(scope, move || share(paths))))
            .collect();
        let mut opened = share(own);
        for (paths, other) in others {
            // Where no thread can be had, or one panicked, its files are opened here.
            let files = other.ok().and_then(|other| other.join().ok());
            opened.extend(files.unwrap_or_else(|| share(paths)));
        }
        opened
    })
}
