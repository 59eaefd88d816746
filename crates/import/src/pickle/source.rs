//! Reads the bytes of a pickle for the machine.

use std::io::{ErrorKind, Read};

/// Bytes that are read at once.
const BUFFER: usize = 256 << 10;
/// Longest text or bytes value (bytes).
const MAX_LENGTH: u64 = 16 << 20;

/// Reads bytes, and counts them.
pub(super) struct CountedBytes<R> {
    reader: R,
    buffer: Box<[u8]>,
    /// `buffer[position..end]` is not taken yet.
    position: usize,
    end: usize,
    /// Bytes before the buffer.
    before: u64,
    /// Bytes of a text that is longer than the buffer had.
    long: Vec<u8>,
}

impl<R: Read> CountedBytes<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, buffer: vec![0; BUFFER].into(), position: 0, end: 0, before: 0, long: Vec::new() }
    }

    /// The number of bytes that were taken.
    pub(super) fn offset(&self) -> u64 {
        self.before + self.position as u64
    }

    /// Reads more where all of the buffer is taken; false at the end.
    fn fill(&mut self) -> Result<bool, String> {
        if self.position < self.end {
            return Ok(true);
        }
        self.before += self.end as u64;
        (self.position, self.end) = (0, 0);
        loop {
            match self.reader.read(&mut self.buffer) {
                Ok(read) => {
                    self.end = read;
                    return Ok(read > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("it can't be read on: {error}")),
            }
        }
    }

    /// Whether nothing follows.
    pub(super) fn is_at_end(&mut self) -> Result<bool, String> {
        Ok(!self.fill()?)
    }

    pub(super) fn byte(&mut self) -> Result<u8, String> {
        if !self.fill()? {
            return Err("it ends before its STOP".into());
        }
        self.position += 1;
        Ok(self.buffer[self.position - 1])
    }

    /// Takes the next `length` bytes.
    pub(super) fn take(&mut self, length: u64) -> Result<&[u8], String> {
        if length <= (self.end - self.position) as u64 {
            let start = self.position;
            self.position += length as usize;
            return Ok(&self.buffer[start..self.position]);
        }
        // Memory grows with the bytes that are there, not with those that are announced.
        self.long.clear();
        while (self.long.len() as u64) < length {
            if !self.fill()? {
                let left = self.long.len();
                return Err(format!("{length} bytes are announced and {left} are left"));
            }
            let more = (length - self.long.len() as u64).min((self.end - self.position) as u64) as usize;
            if self.long.len() as u64 + more as u64 > MAX_LENGTH {
                return Err(format!("a text has {length} bytes; the limit is {MAX_LENGTH}"));
            }
            self.long.extend_from_slice(&self.buffer[self.position..self.position + more]);
            self.position += more;
        }
        Ok(&self.long)
    }

    /// A little-endian number of up to eight bytes.
    pub(super) fn number(&mut self, bytes: u64) -> Result<u64, String> {
        let bytes = self.take(bytes)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Up to `length` of the next bytes as text, for a message.
    pub(super) fn peek(&mut self, length: usize) -> String {
        let mut text = String::new();
        while text.len() < length {
            match self.byte() {
                Ok(byte) => text.push(char::from(byte)),
                Err(_) => break,
            }
        }
        text
    }
}
