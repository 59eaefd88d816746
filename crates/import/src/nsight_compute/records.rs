//! The CSV records of a page, one at a time and none longer than a bound, without the lines before its header.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use csv::{ByteRecord, Reader, ReaderBuilder};
use probe_common::error::Result;

use crate::input::TextInput;

/// Longest record (bytes). A raw page has some thousand metrics.
const MAX_RECORD: usize = 16 << 20;
/// Bytes that are read at a time.
const BUFFER: usize = 64 << 10;

/// Beginnings of the header's line.
const HEADER: [&[u8]; 2] = [b"\"ID\",", b"ID,"];
/// The byte order mark of a text that was saved by an editor.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

type PageText = io::Chain<Cursor<Vec<u8>>, BufReader<Box<dyn Read + Send>>>;

/// The progress of reading records, as [`BoundedRecords`] sees it.
#[derive(Debug, Default)]
struct ReadProgress {
    /// Bytes that are left for a record.
    left: Cell<usize>,
    /// Whether a quote is open.
    in_quotes: Cell<bool>,
    /// Whether the text has ended.
    is_over: Cell<bool>,
}

/// A reader that reads no more than is left for a record.
struct BoundedRecords {
    inner: PageText,
    progress: Rc<ReadProgress>,
}

impl Read for BoundedRecords {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let progress = &*self.progress;
        let most = progress.left.get().min(buffer.len());
        if most == 0 && !buffer.is_empty() {
            let what = format!("a record is longer than {} MiB", MAX_RECORD >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let read = self.inner.read(&mut buffer[..most])?;
        progress.left.set(progress.left.get() - read);
        let quotes = memchr::memchr_iter(b'"', &buffer[..read]).count();
        progress.in_quotes.set(progress.in_quotes.get() ^ (quotes % 2 == 1));
        progress.is_over.set(progress.is_over.get() || read == 0 && !buffer.is_empty());
        Ok(read)
    }
}

/// The records of a page from its header on.
pub(crate) struct PageRecords {
    reader: Reader<BoundedRecords>,
    progress: Rc<ReadProgress>,
    /// Bytes of text before the header.
    before: u64,
    /// Lines before the header.
    pub lines_before: u64,
    pub file_bytes: u64,
    consumed: Arc<AtomicU64>,
}

impl PageRecords {
    /// Opens a file; None where no line of it is a header.
    ///
    /// # Errors
    /// The text can't be read.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        let input = TextInput::open(path)?;
        Self::of(input).map_err(|error| {
            probe_common::error::Error::failed(format!("cannot read {}", path.display())).because(error)
        })
    }

    /// Reads the records of a file's text.
    ///
    /// # Errors
    /// The text can't be read.
    pub(crate) fn of(input: TextInput) -> io::Result<Option<Self>> {
        let mut text = BufReader::with_capacity(BUFFER, input.text);
        let Some(preamble) = skip_preamble(&mut text)? else { return Ok(None) };
        let progress = Rc::new(ReadProgress::default());
        let inner = Cursor::new(preamble.begun).chain(text);
        let bounded = BoundedRecords { inner, progress: Rc::clone(&progress) };
        let reader =
            ReaderBuilder::new().has_headers(false).flexible(true).buffer_capacity(BUFFER).from_reader(bounded);
        Ok(Some(Self {
            reader,
            progress,
            before: preamble.bytes,
            lines_before: preamble.lines,
            file_bytes: input.file_bytes,
            consumed: input.consumed,
        }))
    }

    /// Reads the next record into `record`; false at the end.
    ///
    /// # Errors
    /// The reason why the text can't be read any further.
    pub(crate) fn next(&mut self, record: &mut ByteRecord) -> Result<bool, String> {
        self.progress.left.set(MAX_RECORD);
        self.reader.read_byte_record(record).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(error) => error.to_string(),
            kind => format!("{kind:?}"),
        })
    }

    /// Whether the text ended within the record that was read last: it has no end of line, and a quote is open or the last of
    /// the fields that all records have is missing.
    pub(crate) fn is_cut(&self, record: &ByteRecord, least_fields: usize) -> bool {
        let is_short = || record.len() <= least_fields && record.get(least_fields - 1).is_none_or(<[u8]>::is_empty);
        self.progress.is_over.get() && (self.progress.in_quotes.get() || is_short())
    }

    /// The offset that the text was read to (bytes).
    pub(crate) fn offset(&self) -> u64 {
        self.before + self.reader.position().byte()
    }

    /// Bytes of the file that were read.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed.load(Ordering::Relaxed)
    }
}

/// The text before the header.
struct PagePreamble {
    bytes: u64,
    lines: u64,
    /// The beginning of the header, which was read to recognise it.
    begun: Vec<u8>,
}

/// Skips lines until one that begins as a header does; None if no line does.
fn skip_preamble(text: &mut impl BufRead) -> io::Result<Option<PagePreamble>> {
    let (mut bytes, mut lines) = (0, 0);
    if text.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
        text.consume(BYTE_ORDER_MARK.len());
        bytes += BYTE_ORDER_MARK.len() as u64;
    }
    loop {
        let mut begun = Vec::new();
        while HEADER.iter().any(|header| header.len() > begun.len() && header.starts_with(&begun)) {
            let mut byte = [0];
            if text.read(&mut byte)? == 0 {
                return Ok(None);
            }
            begun.push(byte[0]);
        }
        if HEADER.contains(&&*begun) {
            return Ok(Some(PagePreamble { bytes, lines, begun }));
        }
        bytes += begun.len() as u64;
        if begun.last() != Some(&b'\n') {
            let Some(rest) = skip_line(text)? else { return Ok(None) };
            bytes += rest;
        }
        lines += 1;
    }
}

/// Skips to the next line, and returns the number of bytes; None at the end.
fn skip_line(text: &mut impl BufRead) -> io::Result<Option<u64>> {
    let mut skipped = 0;
    loop {
        let buffer = text.fill_buf()?;
        if buffer.is_empty() {
            return Ok(None);
        }
        if let Some(end) = memchr::memchr(b'\n', buffer) {
            text.consume(end + 1);
            return Ok(Some(skipped + end as u64 + 1));
        }
        let length = buffer.len();
        text.consume(length);
        skipped += length as u64;
    }
}
