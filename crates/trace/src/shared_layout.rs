//! The layout of the file of memory that a process shares with the collector, which reads it after the process's end.
//!
//! The file has the rings, each after a page with its head. Beside them the background thread writes, after each drain, what a
//! successor needs to go on from there: the state, and the names where they have changed. Each of the two has two copies,
//! which are written in turn: the newer one that is whole is read. All that is read is checked, because a process that dies
//! of a stray pointer may have written anywhere before.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::record::RingRecord;

/// Number of records in a ring.
pub const CAPACITY: usize = 1 << 16;
/// Number of rings in the file. Rings of further threads are not shared.
pub const MAX_RINGS: usize = 64;
/// Bytes before a ring's records.
pub const PAGE: u64 = 4096;
/// Bytes of a ring.
pub const RING_BYTES: u64 = PAGE + (CAPACITY * size_of::<RingRecord>()) as u64;
/// Offset, in a ring's page, of the number of records that were ever written.
pub const HEAD_AT: usize = 0;
/// Offset, in a ring's page, of the operating-system id of its thread.
pub const THREAD_AT: usize = 8;
/// Offset, in a ring's page, of [`RING_MARK`].
pub const MARK_AT: usize = PAGE as usize - 8;
/// The mark of a page that has a ring.
pub const RING_MARK: u64 = u64::from_le_bytes(*b"RINGrec1");

const MEGABYTE: u64 = 1 << 20;
const RINGS_AT: u64 = MEGABYTE;
/// The first bytes of the file. The version of the agent follows.
const MAGIC: u64 = u64::from_le_bytes(*b"probeRNG");
const VERSION: usize = 40;
const SLOTS_AT: u64 = 64;
const SLOT: usize = 32;

/// Offset of the log, where names are written as they are learned, until they are written with all others: [`LOG_BYTES`] of
/// entries, each a word of [`log_mark`] and as many bytes as that says, up to the next multiple of eight. A word of zero ends
/// them.
pub const LOG_AT: u64 = 352 * MEGABYTE;
/// Bytes of the log at [`LOG_AT`].
pub const LOG_BYTES: u64 = MEGABYTE;

/// The word before an entry of the log: its length, and above that its checksum.
pub fn log_mark(entry: &[u8]) -> u64 {
    entry.len() as u64 | u64::from(crc32fast::hash(entry)) << 32
}

/// The largest pages of a kernel (aarch64). Offsets of all that is mapped separately are multiples of this.
const MAX_PAGE_BYTES: u64 = 64 << 10;

/// The offset of a ring. The bytes between two rings are never touched, and take no memory.
pub const fn ring_at(number: usize) -> u64 {
    RINGS_AT + number as u64 * RING_BYTES.next_multiple_of(MAX_PAGE_BYTES)
}

const _: () = assert!(ring_at(MAX_RINGS) <= 192 * MEGABYTE);
const _: () = assert!(ring_at(1).is_multiple_of(MAX_PAGE_BYTES) && LOG_AT.is_multiple_of(MAX_PAGE_BYTES));

/// A part of the file that the background thread writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointSlot {
    /// The state that a successor needs to go on.
    State,
    /// The names of addresses and numbers.
    Names,
}

impl CheckpointSlot {
    /// The offsets of the part's two copies, and the most bytes of each.
    const fn offsets(self) -> ([u64; 2], u64) {
        match self {
            Self::State => ([192 * MEGABYTE, 256 * MEGABYTE], 64 * MEGABYTE),
            Self::Names => ([320 * MEGABYTE, 336 * MEGABYTE], 16 * MEGABYTE),
        }
    }

    const fn slot_at(self, which: usize) -> u64 {
        SLOTS_AT + ((self as usize * 2 + which) * SLOT) as u64
    }
}

/// The description of a copy: its generation (0: nothing), bytes, and their checksum, with a checksum of its own.
#[derive(Debug, Clone, Copy, Default)]
struct CopyHeader {
    generation: u64,
    bytes: u64,
    checksum: u32,
}

impl CopyHeader {
    fn to_bytes(self) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        bytes[..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.checksum.to_le_bytes());
        let own = crc32fast::hash(&bytes[..20]);
        bytes[20..24].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// The slot in `bytes`; None where it is empty or damaged.
    fn of(bytes: &[u8; SLOT]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let slot = Self { generation: word(0), bytes: word(8), checksum: half(16) };
        (slot.generation > 0 && half(20) == crc32fast::hash(&bytes[..20])).then_some(slot)
    }
}

fn header() -> [u8; SLOTS_AT as usize] {
    let mut bytes = [0; SLOTS_AT as usize];
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    let version = probe_proto::VERSION.as_bytes();
    let length = version.len().min(VERSION);
    bytes[8..8 + length].copy_from_slice(&version[..length]);
    bytes
}

/// Writes parts. A file has one writer.
#[derive(Debug)]
pub struct CheckpointWriter {
    file: File,
    generation: u64,
    buffer: Vec<u8>,
    is_clear: bool,
}

impl CheckpointWriter {
    /// A writer for a new, empty file.
    ///
    /// # Errors
    /// There is no memory for its first page.
    pub fn begin(file: File) -> io::Result<Self> {
        file.write_all_at(&header(), 0)?;
        Ok(Self { file, generation: 0, buffer: Vec::new(), is_clear: true })
    }

    /// Writes the bytes that `fill` appends. The copy before stays until this one is whole.
    ///
    /// # Errors
    /// There are too many bytes, or there is no memory for them. The part is then empty.
    pub fn write_slot(&mut self, part: CheckpointSlot, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.buffer.clear();
        fill(&mut self.buffer);
        let (offsets, most) = part.offsets();
        self.generation += 1;
        let which = (self.generation % 2) as usize;
        let written = match self.buffer.len() as u64 > most {
            true => Err(io::Error::from(io::ErrorKind::FileTooLarge)),
            false => self.file.write_all_at(&self.buffer, offsets[which]),
        };
        let slot = CopyHeader {
            generation: self.generation,
            bytes: self.buffer.len() as u64,
            checksum: crc32fast::hash(&self.buffer),
        };
        let written = written.and_then(|()| self.file.write_all_at(&slot.to_bytes(), part.slot_at(which)));
        if written.is_err() {
            self.forget(part)?;
        }
        if part == CheckpointSlot::State {
            self.is_clear = written.is_err();
        }
        written
    }

    /// Empties the state, because what it refers to is about to be overwritten.
    ///
    /// # Errors
    /// The file system's.
    pub fn clear(&mut self) -> io::Result<()> {
        if !self.is_clear {
            self.forget(CheckpointSlot::State)?;
            self.is_clear = true;
        }
        Ok(())
    }

    fn forget(&self, part: CheckpointSlot) -> io::Result<()> {
        (0..2).try_for_each(|which| self.file.write_all_at(&[0; SLOT], part.slot_at(which)))
    }
}

/// Reads a file.
#[derive(Debug)]
pub(crate) struct CheckpointReader<'a>(&'a File);

impl<'a> CheckpointReader<'a> {
    /// Opens a file. An error says why it can't be read, in words that follow "they" (the rings).
    pub(crate) fn open(file: &'a File) -> Result<Self, String> {
        let mut bytes = [0; SLOTS_AT as usize];
        file.read_exact_at(&mut bytes, 0).map_err(|error| format!("they can't be read: {error}"))?;
        let expected = header();
        match (bytes[..8] == expected[..8], bytes == expected) {
            (_, true) => Ok(Self(file)),
            (true, _) => Err("they are of another version of the agent".to_owned()),
            (false, _) => Err("their first page was overwritten".to_owned()),
        }
    }

    /// The newest copy of a part that is whole.
    pub(crate) fn part(&self, part: CheckpointSlot) -> Option<Vec<u8>> {
        let (offsets, most) = part.offsets();
        let mut slots: Vec<(CopyHeader, u64)> = (0..2)
            .filter_map(|which| {
                let mut bytes = [0; SLOT];
                self.0.read_exact_at(&mut bytes, part.slot_at(which)).ok()?;
                Some((CopyHeader::of(&bytes).filter(|slot| slot.bytes <= most)?, offsets[which]))
            })
            .collect();
        slots.sort_by_key(|(slot, _)| std::cmp::Reverse(slot.generation));
        slots.into_iter().find_map(|(slot, at)| {
            let mut bytes = vec![0; usize::try_from(slot.bytes).ok()?];
            self.0.read_exact_at(&mut bytes, at).ok()?;
            (crc32fast::hash(&bytes) == slot.checksum).then_some(bytes)
        })
    }

    /// Entries of the log, as far as they can be read.
    pub(crate) fn log(&self) -> Vec<Vec<u8>> {
        let mut bytes = vec![0; LOG_BYTES as usize];
        let mut entries = Vec::new();
        if self.0.read_exact_at(&mut bytes, LOG_AT).is_err() {
            return entries;
        }
        let mut rest = bytes.as_slice();
        while let Some((mark, behind)) = rest.split_first_chunk::<8>() {
            let mark = u64::from_le_bytes(*mark);
            let length = (mark & 0xffff_ffff) as usize;
            let Some(entry) = behind.get(..length).filter(|entry| length > 0 && log_mark(entry) == mark) else { break };
            entries.push(entry.to_vec());
            rest = behind.get(length.next_multiple_of(8)..).unwrap_or_default();
        }
        entries
    }

    /// Head and thread of a ring; None if no ring has this number.
    pub(crate) fn ring(&self, number: usize) -> Option<(u64, i64)> {
        let mut page = [0; PAGE as usize];
        self.0.read_exact_at(&mut page, ring_at(number)).ok()?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| page[at + index]));
        (word(MARK_AT) == RING_MARK).then(|| (word(HEAD_AT), word(THREAD_AT) as i64))
    }

    /// The records at `positions` of a ring; empty where it does not have them, or not any more.
    pub(crate) fn records(&self, number: usize, positions: std::ops::Range<u64>) -> Vec<RingRecord> {
        let count = positions.end.wrapping_sub(positions.start);
        if positions.start > positions.end || count > CAPACITY as u64 {
            return Vec::new();
        }
        let mut bytes = vec![0; CAPACITY * size_of::<RingRecord>()];
        if self.0.read_exact_at(&mut bytes, ring_at(number) + PAGE).is_err() {
            return Vec::new();
        }
        let (records, _) = bytes.as_chunks::<{ size_of::<RingRecord>() }>();
        positions.map(|position| RingRecord::of_bytes(&records[position as usize % CAPACITY])).collect()
    }
}
