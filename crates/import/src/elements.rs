//! Cuts JSON text into the elements of its array of events and its other top-level values, one at a time, so that no more
//! than one of them is in memory.
//!
//! A quote ends a string only where a comma, a colon or a closing bracket follows. In valid JSON that is always so; and where
//! a name has unescaped quotes, the element is still cut where it ends, to be mended alone ([`super::mend`]).

use std::io::{self, Read};

use memchr::memchr2;

/// Largest element (bytes).
const MAX_ELEMENT: usize = 16 << 20;
/// Most brackets within each other in an element.
const MAX_DEPTH: usize = 128;
/// Most white space between a quote and what follows it.
const MAX_GAP: usize = 4096;
/// Bytes that are read at a time.
const CHUNK: usize = 256 << 10;

/// The key of the array of events of a Chrome trace.
const EVENTS: &str = "traceEvents";

/// A part of the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum JsonElement<'a> {
    /// An element of the array of events, with its offset (bytes of text).
    Event(&'a [u8], u64),
    /// A value of another key at the top.
    Value(&'a str, &'a [u8]),
}

/// Why reading stopped. Everything before the offset is in order.
#[derive(Debug)]
pub(crate) struct ElementError {
    /// What is wrong.
    pub what: String,
    /// The offset of the problem (bytes of text).
    pub offset: u64,
}

/// The state of the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReaderPosition {
    Start,
    /// Before a key of the object at the top.
    Key,
    /// Before an element of the array of events, which is within an object.
    Event,
    /// Before an element of the array of events, which is the whole text.
    BareEvent,
    End,
}

/// Reads elements.
pub(crate) struct ElementReader<R> {
    input: R,
    /// Text that was read, from the current element on.
    buffer: Vec<u8>,
    /// The offset in `buffer` at which reading goes on.
    position: usize,
    /// The offset of `buffer` in the text.
    base: u64,
    ended: bool,
    at: ReaderPosition,
    key: String,
    /// The key of the array.
    array: &'static str,
}

impl<R: Read> ElementReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self::of_array(input, EVENTS)
    }

    /// Reads text whose events are the array of the key `array`.
    pub(crate) fn of_array(input: R, array: &'static str) -> Self {
        let key = String::new();
        Self { input, buffer: Vec::new(), position: 0, base: 0, ended: false, at: ReaderPosition::Start, key, array }
    }

    /// Bytes of text that have been read.
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.position as u64
    }

    /// The next element; None at the end of the text.
    pub(crate) fn next(&mut self) -> Result<Option<JsonElement<'_>>, ElementError> {
        loop {
            match self.at {
                ReaderPosition::Start => match self.peek()? {
                    Some(b'{') => self.enter(ReaderPosition::Key),
                    Some(b'[') => self.enter(ReaderPosition::BareEvent),
                    Some(_) => return Err(self.stopped("it is no JSON object or array")),
                    None => return Err(self.stopped("it is empty")),
                },
                ReaderPosition::Key => match self.peek()? {
                    Some(b',') => self.position += 1,
                    Some(b'}') => self.enter(ReaderPosition::End),
                    Some(b'"') => {
                        if let Some((start, end)) = self.value_of_key()? {
                            return Ok(Some(JsonElement::Value(&self.key, &self.buffer[start..end])));
                        }
                    }
                    Some(_) => return Err(self.stopped("a key was expected")),
                    None => return Err(self.stopped("the text ends within its object")),
                },
                ReaderPosition::Event | ReaderPosition::BareEvent => match self.peek()? {
                    Some(b',') => self.position += 1,
                    Some(b']') => self.enter(if self.at == ReaderPosition::Event {
                        ReaderPosition::Key
                    } else {
                        ReaderPosition::End
                    }),
                    Some(_) => {
                        let length = self.measure()?;
                        let (start, offset) = (self.position, self.offset());
                        self.position += length;
                        return Ok(Some(JsonElement::Event(&self.buffer[start..start + length], offset)));
                    }
                    None => return Err(self.stopped("the text ends within its events")),
                },
                ReaderPosition::End => {
                    return match self.peek()? {
                        None => Ok(None),
                        Some(_) => Err(self.stopped("something follows the end of the trace")),
                    };
                }
            }
        }
    }

    fn enter(&mut self, at: ReaderPosition) {
        self.position += 1;
        self.at = at;
    }

    /// Reads a key, and its value unless that is the array of events.
    fn value_of_key(&mut self) -> Result<Option<(usize, usize)>, ElementError> {
        let length = self.measure()?;
        let text = &self.buffer[self.position..self.position + length];
        self.key = serde_json::from_slice(text).unwrap_or_else(|_| String::from_utf8_lossy(text).into_owned());
        self.position += length;
        if self.peek()? != Some(b':') {
            return Err(self.stopped("a colon was expected"));
        }
        self.position += 1;
        let first = self.peek()?;
        if self.key == self.array && first == Some(b'[') {
            self.enter(ReaderPosition::Event);
            return Ok(None);
        }
        if first.is_none() {
            return Err(self.stopped("the text ends after a key"));
        }
        let length = self.measure()?;
        let start = self.position;
        self.position += length;
        Ok(Some((start, start + length)))
    }

    fn stopped(&self, what: &str) -> ElementError {
        ElementError { what: what.to_owned(), offset: self.offset() }
    }

    /// The byte that is `ahead` bytes after the position; None at the end.
    fn byte(&mut self, ahead: usize) -> Result<Option<u8>, ElementError> {
        while self.position + ahead >= self.buffer.len() {
            if !self.more()? {
                return Ok(None);
            }
        }
        Ok(Some(self.buffer[self.position + ahead]))
    }

    /// Reads more text into the buffer; false at the end.
    fn more(&mut self) -> Result<bool, ElementError> {
        if self.ended {
            return Ok(false);
        }
        self.base += self.position as u64;
        self.buffer.drain(..self.position);
        self.position = 0;
        let length = self.buffer.len();
        self.buffer.resize(length + CHUNK, 0);
        let read = loop {
            match self.input.read(&mut self.buffer[length..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(length + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => self.ended = true,
            Ok(_) => {}
            Err(error) => {
                self.ended = true;
                let offset = self.base + self.buffer.len() as u64;
                return Err(ElementError { what: error.to_string(), offset });
            }
        }
        Ok(!self.ended)
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Result<Option<u8>, ElementError> {
        loop {
            let rest = &self.buffer[self.position..];
            let blank = rest.iter().take_while(|byte| is_blank(**byte)).count();
            self.position += blank;
            if let Some(byte) = self.buffer.get(self.position) {
                return Ok(Some(*byte));
            }
            if !self.more()? {
                return Ok(None);
            }
        }
    }

    /// Length of the element that begins at the position.
    fn measure(&mut self) -> Result<usize, ElementError> {
        let (mut ahead, mut depth) = (0_usize, 0_usize);
        loop {
            if ahead > MAX_ELEMENT {
                return Err(self.stopped(&format!("an element is larger than {} MiB", MAX_ELEMENT >> 20)));
            }
            let Some(byte) = self.byte(ahead)? else {
                // A bare word may end with the text; any other element is incomplete.
                return if depth == 0 && ahead > 0 {
                    Ok(ahead)
                } else {
                    Err(self.stopped("the text ends within an element"))
                };
            };
            match byte {
                b'"' => {
                    ahead = self.string(ahead)?;
                    if depth == 0 {
                        return Ok(ahead);
                    }
                }
                b'{' | b'[' => {
                    depth += 1;
                    ahead += 1;
                    if depth > MAX_DEPTH {
                        return Err(
                            self.stopped(&format!("an element has more than {MAX_DEPTH} brackets in each other"))
                        );
                    }
                }
                b'}' | b']' if depth == 0 => {
                    return if ahead > 0 { Ok(ahead) } else { Err(self.stopped("a value was expected")) };
                }
                b'}' | b']' => {
                    depth -= 1;
                    ahead += 1;
                    if depth == 0 {
                        return Ok(ahead);
                    }
                }
                b',' | b':' if depth == 0 => {
                    return if ahead > 0 { Ok(ahead) } else { Err(self.stopped("a value was expected")) };
                }
                _ => ahead += 1,
            }
        }
    }

    /// The end of the string that begins `ahead` bytes after the position, counted from the position too.
    fn string(&mut self, mut ahead: usize) -> Result<usize, ElementError> {
        ahead += 1;
        loop {
            if ahead > MAX_ELEMENT {
                return Err(self.stopped(&format!("a string is longer than {} MiB", MAX_ELEMENT >> 20)));
            }
            let rest = self.buffer.get(self.position + ahead..).unwrap_or_default();
            let Some(found) = memchr2(b'"', b'\\', rest) else {
                ahead += rest.len();
                if self.byte(ahead)?.is_none() {
                    return Err(self.stopped("the text ends within a string"));
                }
                continue;
            };
            ahead += found;
            if self.buffer[self.position + ahead] == b'\\' {
                ahead += 2;
                continue;
            }
            ahead += 1;
            let mut gap = 0;
            let follows = loop {
                match self.byte(ahead + gap)? {
                    Some(byte) if is_blank(byte) && gap < MAX_GAP => gap += 1,
                    other => break other,
                }
            };
            if matches!(follows, None | Some(b',' | b':' | b'}' | b']')) {
                return Ok(ahead);
            }
        }
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}
