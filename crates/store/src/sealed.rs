//! Rows that do not grow any more, in memory or in a file. A query that began while they were in memory finds them in their
//! file if they have left memory meanwhile, so that it holds no more memory than for what it is reading.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::files::ParquetFile;
use super::identity::ProcessIdentity;
use super::segment::Segment;

/// The rows that one row group of a file has, or will have.
#[derive(Debug)]
pub struct SealedRows {
    pub identity: Option<Arc<ProcessIdentity>>,
    pub rows: usize,
    location: ArcSwap<RowLocation>,
}

/// Where rows are: in memory or in a file.
#[derive(Debug, Clone)]
pub enum RowLocation {
    /// In memory: one segment, or those from which the row group was merged.
    Memory(Vec<Arc<Segment>>),
    /// Only in the row group of the file with this number.
    File(Arc<ParquetFile>, usize),
}

impl SealedRows {
    /// The rows of segments of one process.
    pub fn new(segments: Vec<Arc<Segment>>) -> Self {
        Self {
            identity: segments.first().and_then(|segment| segment.identity.clone()),
            rows: segments.iter().map(|segment| segment.rows).sum(),
            location: ArcSwap::from_pointee(RowLocation::Memory(segments)),
        }
    }

    /// Where the rows are now. They stay readable there for as long as the result is held.
    pub fn location(&self) -> Arc<RowLocation> {
        self.location.load_full()
    }

    /// The segments in memory; none where the rows have left it.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        match &**self.location.load() {
            RowLocation::Memory(segments) => segments.clone(),
            RowLocation::File(..) => Vec::new(),
        }
    }

    /// Gives up the memory of the rows: from now on they are read from `file`.
    pub(super) fn evict_from_memory(&self, file: &Arc<ParquetFile>, group: usize) {
        self.location.store(Arc::new(RowLocation::File(Arc::clone(file), group)));
    }
}
