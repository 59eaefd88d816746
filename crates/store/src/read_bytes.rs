//! The bytes of a file that a query needs, each part read at once and no others, for the reader of Parquet.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use bytes::{Buf, Bytes};
use parquet::arrow::arrow_reader::RowSelection;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};

/// Parts of a file that were read.
pub(super) struct ReadBytes {
    /// Bytes of the file.
    length: u64,
    /// The offset of each part in the file, and its bytes.
    parts: Vec<(u64, Bytes)>,
}

impl ReadBytes {
    /// Nothing yet of a file with this many bytes.
    pub(super) const fn new(length: u64) -> Self {
        Self { length, parts: Vec::new() }
    }

    /// Reads what is needed of a column chunk, the one with index `chunk` in this row group. Returns the number of bytes.
    pub(super) fn read_chunk(
        &mut self,
        file: &File,
        metadata: &ParquetMetaData,
        group: usize,
        chunk: usize,
        needed: Option<&RowSelection>,
    ) -> Result<usize, ParquetError> {
        let (start, length) = metadata.row_group(group).column(chunk).byte_range();
        let whole = start..start.saturating_add(length);
        let pages = needed.and_then(|needed| pages(&whole, metadata, group, chunk, needed));
        let mut read = 0;
        for part in pages.unwrap_or_else(|| vec![whole]) {
            let mut buffer = vec![0; usize::try_from(part.end - part.start)?];
            file.read_exact_at(&mut buffer, part.start)?;
            read += buffer.len();
            self.parts.push((part.start, buffer.into()));
        }
        Ok(read)
    }

    fn from(&self, start: u64) -> Result<Bytes, ParquetError> {
        let within = |(first, bytes): &&(u64, Bytes)| *first <= start && start - first < bytes.len() as u64;
        let part = self.parts.iter().find(within);
        let (first, bytes) = part.ok_or_else(|| ParquetError::General(format!("no page is at {start}")))?;
        Ok(bytes.slice((start - first) as usize..))
    }
}

/// The dictionary of a column chunk, and its pages with rows that are `needed`, as ranges of the file that don't touch. None where the
/// file does not say where they are, or says so of bytes outside of the chunk.
fn pages(
    whole: &Range<u64>,
    metadata: &ParquetMetaData,
    group: usize,
    chunk: usize,
    needed: &RowSelection,
) -> Option<Vec<Range<u64>>> {
    let locations = metadata.offset_index()?.get(group)?.get(chunk)?.page_locations();
    // What comes before the first page is the dictionary.
    let dictionary = whole.start..u64::try_from(locations.first()?.offset).ok()?;
    let mut parts: Vec<Range<u64>> = Vec::new();
    for part in std::iter::once(dictionary).chain(needed.scan_ranges(locations)) {
        let end = parts.last().map_or(whole.start, |last| last.end);
        if part.start < end || part.end < part.start || part.end > whole.end {
            return None;
        }
        match parts.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ if part.is_empty() => {}
            _ => parts.push(part),
        }
    }
    Some(parts)
}

impl Length for ReadBytes {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for ReadBytes {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let bytes = self.from(start)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} are not within a column")));
        }
        Ok(bytes.slice(..length))
    }
}
