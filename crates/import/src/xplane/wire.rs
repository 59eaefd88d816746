//! Reads protobuf from a file, field by field, with no more of it in memory than the caller asks for. A length that is past
//! the end of the enclosing message is cut there, and reported.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};

/// Bytes that are read ahead.
const BUFFER: usize = 256 << 10;

/// The content of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FieldContent {
    Number(u64),
    /// A number of bytes that follow, which the caller reads or skips.
    Bytes(u64),
}

/// Why reading stopped.
#[derive(Debug)]
pub(crate) struct WireError {
    pub what: String,
    /// The offset of the problem (bytes).
    pub offset: u64,
}

/// A file of protobuf fields.
pub(crate) struct WireReader<R> {
    input: BufReader<R>,
    offset: u64,
    /// A sentence about the first length that was cut.
    pub cut: Option<String>,
}

impl<R: Read + Seek> WireReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input: BufReader::with_capacity(BUFFER, input), offset: 0, cut: None }
    }

    /// The offset of the next byte.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next field of a message that ends at `end`; None at its end.
    pub(crate) fn field(&mut self, end: u64) -> Result<Option<(u32, FieldContent)>, WireError> {
        if self.offset >= end {
            return Ok(None);
        }
        let tag = self.varint(end)?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| self.stopped("this is no field of a message"))?;
        let content = match tag & 7 {
            0 => FieldContent::Number(self.varint(end)?),
            1 => FieldContent::Number(u64::from_le_bytes(self.fixed(end)?)),
            5 => FieldContent::Number(u64::from(u32::from_le_bytes(self.fixed(end)?))),
            2 => {
                let length = self.varint(end)?;
                let left = end.saturating_sub(self.offset);
                if length > left {
                    let offset = self.offset;
                    self.cut.get_or_insert_with(|| {
                        format!("at byte {offset}: {length} bytes are said to follow, {left} do")
                    });
                }
                FieldContent::Bytes(length.min(left))
            }
            other => return Err(self.stopped(&format!("a field is of type {other}, which this format has not"))),
        };
        Ok(Some((number, content)))
    }

    /// Moves to the offset `to` (bytes).
    pub(crate) fn seek(&mut self, to: u64) -> Result<(), WireError> {
        let distance = i64::try_from(i128::from(to) - i128::from(self.offset)).unwrap_or(i64::MAX);
        let went = self.input.seek_relative(distance);
        went.map_err(|error| self.stopped(&error.to_string()))?;
        self.offset = to;
        Ok(())
    }

    /// Skips the content of a field.
    pub(crate) fn skip(&mut self, content: FieldContent) -> Result<(), WireError> {
        match content {
            FieldContent::Number(_) => Ok(()),
            FieldContent::Bytes(length) => self.seek(self.offset + length),
        }
    }

    /// Reads the next `length` bytes into `bytes`; where they are more than `most`, skips them and returns false.
    pub(crate) fn bytes(&mut self, length: u64, most: usize, bytes: &mut Vec<u8>) -> Result<bool, WireError> {
        bytes.clear();
        if length > most as u64 {
            self.seek(self.offset + length)?;
            return Ok(false);
        }
        let read = (&mut self.input).take(length).read_to_end(bytes);
        let read = read.map_err(|error| self.stopped(&error.to_string()))?;
        self.offset += read as u64;
        if (read as u64) < length { Err(self.stopped("the file ends here")) } else { Ok(true) }
    }

    fn varint(&mut self, end: u64) -> Result<u64, WireError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.fixed(end)?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.stopped("a number has more than ten bytes"))
    }

    fn fixed<const N: usize>(&mut self, end: u64) -> Result<[u8; N], WireError> {
        let mut bytes = [0; N];
        if end.saturating_sub(self.offset) < N as u64 {
            return Err(self.stopped("a message ends within a field"));
        }
        let read = match self.input.fill_buf() {
            Ok(ahead) if ahead.len() >= N => {
                bytes.copy_from_slice(&ahead[..N]);
                self.input.consume(N);
                Ok(())
            }
            _ => self.input.read_exact(&mut bytes),
        };
        read.map_err(|_| self.stopped("the file ends here"))?;
        self.offset += N as u64;
        Ok(bytes)
    }

    fn stopped(&self, what: &str) -> WireError {
        WireError { what: what.to_owned(), offset: self.offset }
    }
}

impl<R: Read + Seek> WireReader<R> {
    /// Size of the whole file (bytes).
    pub(crate) fn size(&mut self) -> std::io::Result<u64> {
        let size = self.input.seek(SeekFrom::End(0))?;
        self.input.seek(SeekFrom::Start(self.offset))?;
        Ok(size)
    }
}
