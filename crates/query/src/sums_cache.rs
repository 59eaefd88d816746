//! The grouped sums of parts that were asked for, within a bound of memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use probe_store::{ParquetFile, SealedRows};
use quick_cache::Weighter;
use quick_cache::unsync::Cache;

use super::grouped_sums::{GroupedSums, WantedSum};
use super::scan_unit::ScanUnit;

/// Bytes that an entry takes beside its sums.
const ENTRY_BYTES: usize = 256;
/// The sums of one part may take as many bytes as the cache divided by this.
const PARTS: usize = 8;
/// Entries that are expected: their number is a guess that only the size of the first tables depends on.
const EXPECTED_ENTRIES: usize = 1024;

/// A part whose rows do not change, as long as an entry refers to it.
#[derive(Debug, Clone)]
pub(super) enum FixedPart {
    Sealed(Weak<SealedRows>),
    Group(Weak<ParquetFile>, usize),
}

impl FixedPart {
    /// The part of a scan, where its rows do not change.
    pub(super) fn of(unit: &ScanUnit) -> Option<Self> {
        match unit {
            ScanUnit::Segment(_) => None,
            ScanUnit::Sealed(sealed) => Some(Self::Sealed(Arc::downgrade(sealed))),
            ScanUnit::Group(file, number) => Some(Self::Group(Arc::downgrade(file), *number)),
        }
    }
}

/// What is known of the sums of a part by some columns.
#[derive(Debug, Clone)]
pub(super) enum KnownSums {
    /// They were asked for once, where the rows themselves were the faster way.
    Asked,
    /// They have too many cells, take too many bytes, or are not exact.
    Impossible,
    Sums(Arc<GroupedSums>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SumsKey {
    /// The address of the part. No other part has it while the entry keeps a reference, and its row group.
    part: (usize, usize),
    of: SumsSelection,
}

/// Which sums of a part.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SumsSelection {
    /// The indices in the table of the key columns, ascending, none of them of the identity.
    pub(super) keys: Box<[usize]>,
    /// What is added up, in the order of the columns.
    pub(super) sums: Box<[WantedSum]>,
}

#[derive(Debug, Clone)]
struct SumsEntry {
    known: KnownSums,
    _part: FixedPart,
}

#[derive(Debug, Clone)]
struct SumsWeighter;

impl Weighter<SumsKey, SumsEntry> for SumsWeighter {
    fn weight(&self, _: &SumsKey, entry: &SumsEntry) -> u64 {
        let sums = if let KnownSums::Sums(sums) = &entry.known { sums.bytes() } else { 0 };
        (ENTRY_BYTES + sums) as u64
    }
}

/// The sums of the parts of one engine. Those that were asked for longest ago are dropped first.
#[derive(Debug)]
pub(super) struct SumsCache {
    /// In one piece, which a large entry fits.
    cache: Mutex<Cache<SumsKey, SumsEntry, SumsWeighter>>,
    /// The most bytes that the sums of one part may take.
    pub(super) max_bytes: usize,
}

impl SumsCache {
    /// A cache of at most `bytes` bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let cache = Mutex::new(Cache::with_weighter(EXPECTED_ENTRIES, bytes as u64, SumsWeighter));
        Self { cache, max_bytes: bytes / PARTS }
    }

    /// What is known of these sums of a part. Sums with bounds do where none are wanted.
    pub(super) fn find(&self, part: &FixedPart, of: &SumsSelection) -> Option<KnownSums> {
        let cache = self.lock();
        let find = |of: &SumsSelection| cache.get(&SumsKey::new(part, of)).map(|entry| entry.known.clone());
        match find(of) {
            known @ (None | Some(KnownSums::Asked)) => find(&of.with_bounds()).or(known),
            known => known,
        }
    }

    /// Keeps what is known of these sums of a part, in place of what was known.
    pub(super) fn insert(&self, part: &FixedPart, of: &SumsSelection, known: KnownSums) {
        self.lock().insert(SumsKey::new(part, of), SumsEntry { known, _part: part.clone() });
    }

    fn lock(&self) -> MutexGuard<'_, Cache<SumsKey, SumsEntry, SumsWeighter>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SumsSelection {
    fn with_bounds(&self) -> Self {
        let sums = self.sums.iter().map(|wanted| WantedSum { bounds: true, ..*wanted });
        Self { keys: self.keys.clone(), sums: sums.collect() }
    }
}

impl SumsKey {
    fn new(part: &FixedPart, of: &SumsSelection) -> Self {
        let part = match part {
            FixedPart::Sealed(sealed) => (sealed.as_ptr() as usize, usize::MAX),
            FixedPart::Group(file, number) => (file.as_ptr() as usize, *number),
        };
        Self { part, of: of.clone() }
    }
}
