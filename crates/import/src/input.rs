//! The bytes of a file to import: plain or gzip, by what is in it, and never more than the file can honestly hold.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use probe_common::error::{Error, Result};

/// Most bytes of text for a byte of the gzip file. Traces reach 30; gzip can reach 1032.
const MAX_EXPANSION: u64 = 200;

/// Size of text that is allowed for a gzip file of any size (bytes).
const MIN_TEXT_LIMIT: u64 = 64 << 20;

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// What some editors write before a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The text of a file, and how much of the file has been read for it.
pub(crate) struct TextInput {
    /// The text.
    pub text: Box<dyn Read + Send>,
    /// Size of the file (bytes).
    pub file_bytes: u64,
    /// Bytes of the file that have been read so far.
    pub consumed: Arc<AtomicU64>,
    /// Whether the file is packed.
    pub packed: bool,
}

/// A reader that counts the bytes it reads.
struct CountingReader<R> {
    inner: R,
    consumed: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.consumed.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// A reader that fails where there is more text than [`MAX_EXPANSION`] allows.
struct BoundedReader<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => {
                let what = format!("its gzip text is more than {MAX_EXPANSION} times as large as the file");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
        Ok(read)
    }
}

impl TextInput {
    /// Opens a regular file.
    ///
    /// # Errors
    /// The path is no regular file, or can't be read.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let cannot = || Error::failed(format!("cannot read {}", path.display()));
        let found = std::fs::metadata(path).map_err(|error| cannot().because(error))?;
        if !found.is_file() {
            return Err(cannot()
                .because("it is no regular file")
                .hint("write what it gives into a file, and import that"));
        }
        let file = File::open(path).map_err(|error| cannot().because(error))?;
        Self::of(file, found.len()).map_err(|error| cannot().because(error))
    }

    /// The text of `file`, which has `file_bytes` bytes.
    pub(crate) fn of(file: impl Read + Send + 'static, file_bytes: u64) -> io::Result<Self> {
        let consumed = Arc::new(AtomicU64::new(0));
        let mut file =
            BufReader::with_capacity(64 << 10, CountingReader { inner: file, consumed: Arc::clone(&consumed) });
        let packed = file.fill_buf()?.starts_with(&GZIP);
        if file.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
            file.consume(BYTE_ORDER_MARK.len());
        }
        let text: Box<dyn Read + Send> = if packed {
            let left = MIN_TEXT_LIMIT.max(file_bytes.saturating_mul(MAX_EXPANSION));
            Box::new(BoundedReader { inner: MultiGzDecoder::new(file), left })
        } else {
            Box::new(file)
        };
        Ok(Self { text, file_bytes, consumed, packed })
    }
}
