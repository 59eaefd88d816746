//! `-o DIR`: traces as torch wrote them. A file has its name when all of it is there.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use probe_common::error::{Error, Result};
use probe_proto::v1::TracePiece;
use tempfile::NamedTempFile;

use crate::cli::report;

/// Traces that are being received, by rank and process.
pub(super) struct ReceivedTraces {
    directory: PathBuf,
    /// Files that are not whole yet, with the endings of their final names.
    unfinished: BTreeMap<(Option<i32>, u32), (NamedTempFile, &'static str)>,
}

/// Ending of a trace's name, as torch's own handler for TensorBoard writes it.
const TRACE: &str = ".pt.trace.json";
/// Ending of a memory snapshot's name, as in torch's examples.
const SNAPSHOT: &str = ".memory.pickle";

impl ReceivedTraces {
    /// Makes the directory where it is not there.
    pub(super) fn new(directory: &Path) -> Result<Self> {
        std::fs::create_dir_all(directory)
            .map_err(|error| Error::usage(format!("cannot write to {}", directory.display())).because(error))?;
        Ok(Self { directory: directory.to_owned(), unfinished: BTreeMap::new() })
    }

    fn wrong(&self, error: std::io::Error) -> Error {
        Error::failed(format!("cannot write to {}", self.directory.display())).because(error)
    }

    pub(super) fn write_piece(&mut self, piece: &TracePiece) -> Result<()> {
        let key = (piece.rank, piece.pid);
        if !self.unfinished.contains_key(&key) {
            let file = tempfile::Builder::new()
                .prefix(".capture")
                .suffix(".unfinished")
                // The mode of any new file, less the umask.
                .permissions(Permissions::from_mode(0o666))
                .tempfile_in(&self.directory);
            let file = file.map_err(|error| self.wrong(error))?;
            self.unfinished.insert(key, (file, if piece.snapshot { SNAPSHOT } else { TRACE }));
        }
        let written = self.unfinished.get_mut(&key).map_or(Ok(()), |(file, _)| file.write_all(&piece.data));
        written.map_err(|error| self.wrong(error))
    }

    pub(super) fn finish(mut self, capture: &str) -> Result<()> {
        let unfinished = std::mem::take(&mut self.unfinished);
        for ((rank, pid), (file, ending)) in unfinished {
            let whose = rank.map_or_else(|| format!("pid-{pid}"), |rank| format!("rank-{rank}"));
            let path = self.directory.join(format!("{capture}-{whose}{ending}"));
            file.persist(&path).map_err(|error| self.wrong(error.error))?;
            report::note(format_args!("wrote {}", path.display()));
        }
        Ok(())
    }
}
