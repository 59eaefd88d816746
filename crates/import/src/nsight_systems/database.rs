//! A foreign database, opened so that it can only be read, and with no more work than its size explains: views, triggers
//! and extensions do nothing, pages that point at each other end, and long values are refused.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, Statement};
use tempfile::NamedTempFile;

use crate::input::TextInput;

/// The beginning of a database file.
pub(crate) const MAGIC: &[u8] = b"SQLite format 3\0";

/// Longest value and row (bytes).
const MAX_VALUE: i32 = 16 << 20;
/// Longest statement, those of the schema included (bytes). Nsight Systems' reach 10 kB.
const MAX_STATEMENT: i32 = 256 << 10;
/// Most names of tables that are read.
const MAX_TABLES: usize = 1 << 14;
/// Memory for pages (KiB).
const CACHE_KIB: i32 = 16 << 10;
/// Longest text that is kept of a value (bytes).
const MAX_TEXT: usize = 64 << 10;

/// Most steps of SQLite's machine over all statements, for each byte of the file and for a file of any size. A row of an
/// honest file has more bytes than it takes steps; one page that many others point at has rows without end.
const STEPS_PER_BYTE: u64 = 64;
const MIN_STEPS: u64 = 20_000_000;
/// Steps between two checks of how many are left.
const STEPS_AT_ONCE: i32 = 4096;

/// Most bytes of text that are read, for each byte of the file and for a file of any size.
const TEXT_PER_BYTE: u64 = 64;
const MIN_TEXT_BYTES: u64 = 64 << 20;

/// A database to be read.
pub(crate) struct Database {
    connection: Connection,
    /// Columns by table.
    tables: HashMap<String, Vec<String>>,
    text_left: Cell<u64>,
    /// Size of the file that was given (bytes).
    pub file_bytes: u64,
    /// Size of the database in it (bytes).
    pub bytes: u64,
    /// The unpacked file, where the file was packed.
    _unpacked: Option<NamedTempFile>,
}

/// Why reading stopped before the end; None if it reached the end.
pub(crate) type ReadProblem = Option<String>;

impl Database {
    /// Opens a file. A packed file is unpacked into `scratch`.
    ///
    /// # Errors
    /// The file can't be read, or is no database.
    pub(crate) fn open(path: &Path, scratch: &Path) -> Result<Self> {
        let failed = |what: &dyn std::fmt::Display| Error::failed(format!("cannot read {}: {what}", path.display()));
        let mut input = TextInput::open(path)?;
        let mut begun = Vec::new();
        let read = (&mut input.text).take(MAGIC.len() as u64).read_to_end(&mut begun);
        read.map_err(|error| io_error_at(path, error))?;
        if begun != MAGIC {
            return Err(failed(&"it is no SQLite database")
                .hint("export a report with nsys export --type sqlite, and import what that writes"));
        }
        let unpacked = if is_database(path)? { None } else { Some(unpack(&begun, input.text, scratch)) };
        let unpacked = unpacked.transpose().map_err(|error| io_error_at(path, error))?;
        let file = unpacked.as_ref().map_or(path, |unpacked| unpacked.path());
        let bytes = std::fs::metadata(file).map_err(|error| io_error_at(file, error))?.len();
        let connection = connect(file, bytes).map_err(|error| failed(&why(&error)))?;
        let mut database = Self {
            connection,
            tables: HashMap::new(),
            text_left: Cell::new(MIN_TEXT_BYTES.max(bytes.saturating_mul(TEXT_PER_BYTE))),
            file_bytes: input.file_bytes,
            bytes,
            _unpacked: unpacked,
        };
        database.tables = database.list_tables().map_err(|error| failed(&why(&error)))?;
        Ok(database)
    }

    /// Tables that have pages of their own, with their columns. Virtual tables have no pages, and views are no tables.
    fn list_tables(&self) -> rusqlite::Result<HashMap<String, Vec<String>>> {
        let names = self.strings("SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0", None)?;
        let mut tables = HashMap::new();
        for name in names {
            // Computed columns are not among these.
            let columns = self.strings("SELECT name FROM pragma_table_info(?1)", Some(&name))?;
            tables.insert(name, columns);
        }
        Ok(tables)
    }

    fn strings(&self, sql: &str, parameter: Option<&str>) -> rusqlite::Result<Vec<String>> {
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query(rusqlite::params_from_iter(parameter))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            if found.len() < MAX_TABLES
                && let Some(text) = self.text(row, 0)
            {
                found.push(text.into_owned());
            }
        }
        Ok(found)
    }

    /// The name of a table in the file: its own, or with the newest version as a suffix (`_V2`).
    pub(crate) fn table(&self, name: &str) -> Option<&str> {
        let version = |found: &str| match found.strip_prefix(name)? {
            "" => Some(0),
            rest => rest.strip_prefix("_V")?.parse::<u32>().ok(),
        };
        self.tables.keys().filter_map(|found| Some((version(found)?, &**found))).max().map(|(_, found)| found)
    }

    /// Whether a table has a column.
    pub(crate) fn has(&self, table: &str, column: &str) -> bool {
        let columns = self.table(table).and_then(|table| self.tables.get(table));
        columns.is_some_and(|columns| columns.iter().any(|found| found == column))
    }

    /// Reads all rows of a table, as far as it exists and can be read. `columns` that it does not have are NULL.
    /// With `process`, only rows whose column of this name has this process.
    ///
    /// # Errors
    /// Those of `each`.
    pub(crate) fn scan(
        &self,
        table: &str,
        columns: &[&str],
        process: Option<(&str, Option<i64>)>,
        each: &mut dyn FnMut(&Row<'_>) -> Result<()>,
    ) -> Result<ReadProblem> {
        let Some(found) = self.table(table) else { return Ok(None) };
        let listed: Vec<Cow<'_, str>> = columns
            .iter()
            .map(|column| if self.has(table, column) { format!("\"{column}\"").into() } else { "NULL".into() })
            .collect();
        let process = process.filter(|(column, _)| self.has(table, column));
        let condition = process.map_or(String::new(), |(column, _)| format!(" WHERE (\"{column}\" >> 24) IS ?1"));
        let listed = if listed.is_empty() { "NULL".to_owned() } else { listed.join(", ") };
        let sql = format!("SELECT {listed} FROM \"{found}\"{condition}");
        let stopped = |error: &rusqlite::Error| Ok(Some(format!("in its table {found}: {}", why(error))));
        let mut statement = match self.connection.prepare(&sql) {
            Ok(statement) => statement,
            Err(error) => return stopped(&error),
        };
        let mut rows = match statement.query(rusqlite::params_from_iter(process.map(|(_, key)| key))) {
            Ok(rows) => rows,
            Err(error) => return stopped(&error),
        };
        loop {
            match rows.next() {
                Ok(Some(row)) => each(row)?,
                Ok(None) => return Ok(None),
                Err(error) => return stopped(&error),
            }
            if self.text_left.get() == 0 {
                return Ok(Some(format!("in its table {found}: it says more text than its size explains")));
            }
        }
    }

    /// A statement for one row by its number.
    pub(crate) fn by_id(&self, table: &str, id: &str, column: &str) -> Option<Statement<'_>> {
        let found = self.table(table).filter(|_| self.has(table, id) && self.has(table, column))?;
        let sql = format!("SELECT \"{column}\" FROM \"{found}\" WHERE \"{id}\" = ?1");
        self.connection.prepare(&sql).ok()
    }

    /// The text in a column of a row; None for another value.
    pub(crate) fn text<'r>(&self, row: &'r Row<'_>, column: usize) -> Option<Cow<'r, str>> {
        let Ok(ValueRef::Text(text)) = row.get_ref(column) else { return None };
        self.text_left.set(self.text_left.get().saturating_sub(text.len() as u64));
        Some(String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]))
    }
}

/// The whole number in a column of a row; None for another value.
pub(crate) fn integer(row: &Row<'_>, column: usize) -> Option<i64> {
    match row.get_ref(column) {
        Ok(ValueRef::Integer(value)) => Some(value),
        _ => None,
    }
}

fn is_database(path: &Path) -> Result<bool> {
    let mut begun = [0; MAGIC.len()];
    let mut file = std::fs::File::open(path).map_err(|error| io_error_at(path, error))?;
    Ok(file.read_exact(&mut begun).is_ok() && begun == MAGIC)
}

/// Unpacks a database to a file of its own. Its size is bounded like all text of packed files.
fn unpack(begun: &[u8], mut rest: Box<dyn Read + Send>, scratch: &Path) -> std::io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(scratch)?;
    file.write_all(begun)?;
    std::io::copy(&mut rest, &mut file)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// Opens a database read-only and as a file that does not change, so that no journal or lock beside it is read.
fn connect(path: &Path, bytes: u64) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(uri(path), flags)?;
    let mut left = MIN_STEPS.saturating_add(bytes.saturating_mul(STEPS_PER_BYTE)) / STEPS_AT_ONCE as u64;
    connection.progress_handler(
        STEPS_AT_ONCE,
        Some(move || {
            left = left.saturating_sub(1);
            left == 0
        }),
    )?;
    for (setting, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_DQS_DML, false),
    ] {
        connection.set_db_config(setting, on)?;
    }
    for (limit, most) in [
        (Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE),
        (Limit::SQLITE_LIMIT_SQL_LENGTH, MAX_STATEMENT),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 0),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ] {
        connection.set_limit(limit, most)?;
    }
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    Ok(connection)
}

/// A path as a URI for SQLite, with settings.
fn uri(path: &Path) -> String {
    let path: PathBuf = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri + "?mode=ro&immutable=1"
}

/// A message for an error.
fn why(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) => "reading it takes more work than its size explains".into(),
        Some(ErrorCode::TooBig) => format!("a value of it is longer than {} MiB", MAX_VALUE >> 20),
        _ => error.to_string(),
    }
}
