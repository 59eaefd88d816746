//! A record on disk: its length, a checksum, the record. With these, a record that a dying machine left half-written is told
//! from one that was written whole.

use std::io;

use bytes::{Buf, Bytes};
use probe_proto::MAX_FRAME;
use probe_proto::v1;
use prost::Message;

/// The first bytes of a file.
pub(super) const MAGIC: &[u8; 8] = b"probeJ01";

/// Bytes of length and checksum.
const HEAD: usize = 8;

/// The longest record (bytes). It is a checkpoint, which has the strings of every connection; a batch is small compared to
/// it. The bounds of a checkpoint's parts add up to less than this.
const MAX_RECORD_BYTES: usize = 1 << 30;
const _: () = assert!(MAX_RECORD_BYTES > 2 * MAX_FRAME);

/// Refuses a record that is too long to be read again: nothing after it could be read either.
pub(super) fn check_length(record: &v1::Record) -> io::Result<()> {
    match record.encoded_len() {
        length if length > MAX_RECORD_BYTES => Err(io::Error::other(format!("a record of {length} bytes is too long"))),
        _ => Ok(()),
    }
}

/// The bytes of a record, as they are written.
pub(super) fn encode(record: &v1::Record) -> Vec<u8> {
    let length = record.encoded_len();
    let mut frame = Vec::with_capacity(HEAD + length);
    frame.extend_from_slice(&[0; HEAD]);
    record.encode_raw(&mut frame);
    let checksum = crc32fast::hash(&frame[HEAD..]);
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    frame[4..HEAD].copy_from_slice(&checksum.to_le_bytes());
    frame
}

/// The records of a file, up to the first that is not whole.
#[derive(Debug)]
pub(super) struct JournalFrames {
    rest: Bytes,
    /// Bytes after the last whole record; known once the end was reached.
    pub(super) damaged: usize,
}

impl JournalFrames {
    /// The records in `file`.
    pub(super) fn new(mut file: Bytes) -> Self {
        if file.starts_with(MAGIC) {
            file.advance(MAGIC.len());
            return Self { rest: file, damaged: 0 };
        }
        Self { damaged: file.len(), rest: Bytes::new() }
    }

    fn next_whole(&mut self) -> Option<v1::Record> {
        let mut rest = self.rest.clone();
        if rest.len() < HEAD {
            return None;
        }
        let (length, checksum) = (rest.get_u32_le() as usize, rest.get_u32_le());
        if length > MAX_RECORD_BYTES || length > rest.len() {
            return None;
        }
        let record = rest.split_to(length);
        if crc32fast::hash(&record) != checksum {
            return None;
        }
        let record = v1::Record::decode(record).ok()?;
        self.rest = rest;
        Some(record)
    }
}

impl Iterator for JournalFrames {
    type Item = v1::Record;

    fn next(&mut self) -> Option<v1::Record> {
        let record = self.next_whole();
        if record.is_none() && !self.rest.is_empty() {
            self.damaged = self.rest.len();
            self.rest = Bytes::new();
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(connection: u64, bye: bool) -> v1::Record {
        v1::Record { record: Some(v1::record::Record::Closed(v1::Closed { connection, bye, unix_ns: 5 })) }
    }

    proptest! {
        #[test]
        fn records_before_the_damage_are_read_and_no_others(
            count in 0..6_usize, cut in 0..300_usize, flip in prop::option::of(0..300_usize),
        ) {
            let mut file = MAGIC.to_vec();
            let mut ends = vec![file.len()];
            for number in 0..count {
                file.extend(encode(&record(number as u64, number % 2 == 0)));
                ends.push(file.len());
            }
            let mut whole = file.len();
            file.truncate(cut.max(MAGIC.len()));
            whole = whole.min(file.len());
            if let Some(offset) = flip && offset < file.len() {
                file[offset] ^= 0x40;
                whole = whole.min(offset);
            }
            let readable = if whole < MAGIC.len() { 0 } else { ends.iter().filter(|end| **end <= whole).count() - 1 };
            let length = file.len();
            let mut frames = JournalFrames::new(file.into());
            let read: Vec<_> = frames.by_ref().collect();
            prop_assert_eq!(read.len(), readable);
            for (number, found) in read.into_iter().enumerate() {
                prop_assert_eq!(found, record(number as u64, number % 2 == 0));
            }
            prop_assert_eq!(frames.damaged, if whole < MAGIC.len() { length } else { length - ends[readable] });
        }
    }
}
