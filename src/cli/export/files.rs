//! The output of an export: a file, or a directory that appears when all files are in it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use probe_client::Client;
use probe_common::error::{Error, Result};
use probe_export::{ChromeWriter, PerfettoWriter, TraceFormat, WrittenCounts};

use crate::cli::progress_line::ProgressLine;
use crate::export::ExportPlan;
use crate::output::UnfinishedFile;

/// What a file is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum FileFormat {
    /// Perfetto's protobuf
    Perfetto,
    /// Chrome's JSON
    Chrome,
    /// Chrome's JSON, compressed with gzip
    ChromeGzip,
}

impl FileFormat {
    fn of_file(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        match () {
            () if ends(&[".json.gz"]) => Some(Self::ChromeGzip),
            () if ends(&[".json"]) => Some(Self::Chrome),
            () if ends(&[".pftrace", ".perfetto-trace"]) => Some(Self::Perfetto),
            () => None,
        }
    }
}

/// Checks that a file may be written, and returns its format.
pub(super) fn check_file(path: &Path, format: Option<FileFormat>, force: bool) -> Result<FileFormat> {
    let shape = format.or_else(|| FileFormat::of_file(path)).ok_or_else(|| {
        Error::usage(format!("{} has no known extension", path.display()))
            .hint("name it .pftrace, .json or .json.gz, or give --format")
    })?;
    if !force && fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return Err(Error::usage(format!("{} exists", path.display())).hint("--force replaces it"));
    }
    // An error comes now, and not after the rows were read.
    UnfinishedFile::create(path)
        .map_err(|error| error.hint("name a file in a directory that exists and can be written"))?;
    Ok(shape)
}

/// Writes a plan to a file, which appears whole or not at all.
pub(super) async fn write_plan(
    client: &mut Client,
    plan: ExportPlan<'_>,
    path: &Path,
    shape: FileFormat,
    about: &[(&str, String)],
) -> Result<WrittenCounts> {
    let unfinished = UnfinishedFile::create(path)?;
    let failed = |error: io::Error| unfinished.failed(error);
    let file = BufWriter::with_capacity(1 << 16, unfinished.file()?);
    let mut out = match shape {
        FileFormat::ChromeGzip => OutputFile::Gzip(Box::new(GzEncoder::new(file, Compression::fast()))),
        _ => OutputFile::Plain(file),
    };
    let mut line = ProgressLine::new();
    let rows = plan.rows;
    let percent = |drawn: u64| 100 * drawn.min(rows) / rows.max(1);
    let (base, is_unix, as_profiler) = (plan.base, plan.is_unix(), plan.is_per_rank());
    let format: Box<dyn TraceFormat + '_> = match shape {
        FileFormat::Perfetto => Box::new(PerfettoWriter::new(&mut out, is_unix.then_some(base)).map_err(failed)?),
        _ if as_profiler => Box::new(ChromeWriter::as_profiler(&mut out, base, is_unix, about).map_err(failed)?),
        _ => Box::new(ChromeWriter::new(&mut out, base, is_unix, about).map_err(failed)?),
    };
    let written = plan
        .write(client, format, &mut |drawn| line.show(|| format!("{:>3} % of {} rows", percent(drawn), rows)), &failed)
        .await;
    line.clear();
    let written = written?;
    out.finish().map_err(failed)?;
    unfinished.finish()?;
    Ok(written)
}

enum OutputFile {
    Plain(BufWriter<File>),
    Gzip(Box<GzEncoder<BufWriter<File>>>),
}

impl OutputFile {
    fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut file) => file.flush(),
            Self::Gzip(gzip) => gzip.finish()?.flush(),
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Gzip(gzip) => gzip.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Gzip(gzip) => gzip.flush(),
        }
    }
}

/// A directory that is being filled, under another name beside its own.
pub(super) struct UnfinishedDirectory {
    requested: PathBuf,
    unfinished: tempfile::TempDir,
}

impl UnfinishedDirectory {
    /// Begins to fill `path`, which is empty or not there.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let wrong = |error: io::Error| Error::usage(format!("cannot write {}", path.display())).because(error);
        match fs::read_dir(path) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(Error::usage(format!("{} is not empty", path.display()))
                        .hint("readers take all files of a directory for one run: name a new one"));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(wrong(error)),
        }
        let absolute = std::path::absolute(path).map_err(wrong)?;
        let parent = absolute.parent().unwrap_or(Path::new("/"));
        let unfinished = tempfile::Builder::new().prefix(".export.").suffix(".unfinished").tempdir_in(parent);
        let plain = |error: io::Error| {
            io::Error::other(error.to_string().split(" at path ").next().unwrap_or_default().to_owned())
        };
        let unfinished = unfinished.map_err(|error| wrong(plain(error)))?;
        Ok(Self { requested: absolute, unfinished })
    }

    /// The path of a file in the directory, named as the readers expect: worker, milliseconds, kind.
    pub(super) fn file_path(&self, worker: &str, index: usize, milliseconds: i64) -> PathBuf {
        let name = |worker: &str| self.unfinished.path().join(format!("{worker}.{milliseconds}.pt.trace.json.gz"));
        let path = name(worker);
        // A name is taken if two traces of one rank begin together.
        if path.exists() { name(&format!("{worker}-{index}")) } else { path }
    }

    /// Gives the directory its name, once all files are in it.
    pub(super) fn finish(self) -> Result<String> {
        use std::os::unix::fs::PermissionsExt;
        let shown = self.requested.display().to_string();
        let failed = |error: io::Error| Error::failed(shown.as_str()).because(error);
        let path = self.unfinished.keep();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        if let Err(error) = fs::rename(&path, &self.requested) {
            let _ = fs::remove_dir_all(&path);
            return Err(failed(error));
        }
        Ok(shown)
    }
}
