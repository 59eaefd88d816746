//! Rows that grow no more, wherever they are. A query that was begun while they were in memory finds them in their file
//! when memory had to be given up meanwhile, so that it holds on to no more of it than what it is reading.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::files::ParquetFile;
use super::identity::Identity;
use super::segment::Segment;

/// What one row group of a file has, or will have.
#[derive(Debug)]
pub struct Sealed {
    pub identity: Option<Arc<Identity>>,
    pub rows: usize,
    place: ArcSwap<Place>,
}

/// Where they are.
#[derive(Debug, Clone)]
pub enum Place {
    /// In memory: one segment, or those of which the row group was merged.
    Memory(Vec<Arc<Segment>>),
    /// In the row group of this number alone.
    File(Arc<ParquetFile>, usize),
}

impl Sealed {
    /// Segments of one process.
    pub fn new(segments: Vec<Arc<Segment>>) -> Self {
        Self {
            identity: segments.first().and_then(|segment| segment.identity.clone()),
            rows: segments.iter().map(|segment| segment.rows).sum(),
            place: ArcSwap::from_pointee(Place::Memory(segments)),
        }
    }

    /// Where they are now. What comes out stays readable, as long as it is held.
    pub fn place(&self) -> Arc<Place> {
        self.place.load_full()
    }

    /// Those that are in memory.
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        match &**self.place.load() {
            Place::Memory(segments) => segments.clone(),
            Place::File(..) => Vec::new(),
        }
    }

    /// Gives up the memory: from now on they are read from there.
    pub(super) fn leave(&self, file: &Arc<ParquetFile>, group: usize) {
        self.place.store(Arc::new(Place::File(Arc::clone(file), group)));
    }
}
