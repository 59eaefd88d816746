//! Clients on a unix socket whose `:authority` is the path of the socket.
//!
//! gRPC's C core (Python, C++, Ruby) sends the path percent-encoded, and Java sends it as it is. Neither is a valid
//! authority (RFC 9110, section 7.2), so the HTTP/2 library refuses each call with a protocol error, which can have no
//! text. Here the bytes that no authority may have are replaced before the library reads them. The value itself is not
//! used: a client on the socket has reached this collector.
//!
//! Only text that is not Huffman-coded is replaced, byte for byte, so that no length and no table of HPACK changes. A
//! connection whose first call is in order is not looked at any further.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::uri::Authority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use super::forward::forward_writes;

/// What a connection begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Longer headers are passed on as they are (bytes). The library's own limit is 16 KiB.
const MAX_HEADERS: usize = 64 << 10;
/// Bytes that are read at a time while a connection is looked at.
const READ: usize = 8 << 10;
/// `:authority` in HPACK's static table (RFC 7541, appendix A).
const AUTHORITY: usize = 1;

/// A connection whose authorities are made valid.
#[derive(Debug)]
pub(super) struct ValidAuthority<T> {
    io: T,
    next: ExpectedBytes,
    /// Bytes that were received and not passed on yet.
    buffer: Vec<u8>,
    /// How many of `buffer` may be passed on.
    ready: usize,
}

/// What comes next on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedBytes {
    Preface,
    Frame,
    /// This many more bytes of a frame that is passed on uninspected.
    Content(usize),
    /// The rest of the connection, which is passed on uninspected.
    Anything,
}

impl<T> ValidAuthority<T> {
    pub(super) fn new(io: T) -> Self {
        Self { io, next: ExpectedBytes::Preface, buffer: Vec::new(), ready: 0 }
    }

    /// Goes over the bytes that were received, up to the last complete frame.
    fn read_frames(&mut self) {
        loop {
            let rest = &mut self.buffer[self.ready..];
            let (passed, next) = match self.next {
                ExpectedBytes::Preface if rest.starts_with(PREFACE) => (PREFACE.len(), ExpectedBytes::Frame),
                ExpectedBytes::Preface if PREFACE.starts_with(rest) => return,
                ExpectedBytes::Preface | ExpectedBytes::Anything => {
                    self.next = ExpectedBytes::Anything;
                    self.ready = self.buffer.len();
                    return;
                }
                ExpectedBytes::Content(left) => {
                    let passed = left.min(rest.len());
                    (passed, if passed == left { ExpectedBytes::Frame } else { ExpectedBytes::Content(left - passed) })
                }
                ExpectedBytes::Frame if rest.len() < FRAME_HEADER => return,
                ExpectedBytes::Frame => {
                    let length = usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
                    let (kind, flags, whole) = (rest[3], rest[4], FRAME_HEADER + length);
                    match rest.get_mut(FRAME_HEADER..whole) {
                        _ if kind != HEADERS => (FRAME_HEADER, ExpectedBytes::Content(length)),
                        _ if length > MAX_HEADERS => (0, ExpectedBytes::Anything),
                        None => return,
                        Some(content) => match replace_in_headers(content, flags) {
                            true => (whole, ExpectedBytes::Frame),
                            false => (whole, ExpectedBytes::Anything),
                        },
                    }
                }
            };
            self.ready += passed;
            self.next = next;
            if passed == 0 && next != ExpectedBytes::Anything && next != ExpectedBytes::Frame {
                return;
            }
        }
    }
}

/// Makes authorities in the content of a frame of headers valid. Returns whether one was changed.
fn replace_in_headers(content: &mut [u8], flags: u8) -> bool {
    let padding = if flags & PADDED != 0 { content.first().map_or(0, |length| 1 + usize::from(*length)) } else { 0 };
    let before = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let end = (content.len() + usize::from(padding > 0)).saturating_sub(padding);
    content.get_mut(before..end).is_some_and(|fields| replace_in_fields(fields).unwrap_or(false))
}

/// Walks over the fields of a header block (RFC 7541, section 6). None where they end in the middle of one.
fn replace_in_fields(fields: &mut [u8]) -> Option<bool> {
    let (mut position, mut replaced) = (0, false);
    while let Some(&first) = fields.get(position) {
        let prefix = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let index = integer(fields, &mut position, prefix)?;
        if prefix == 7 || prefix == 5 {
            continue; // a field that was sent before, and the size of the table
        }
        let named = if index == 0 {
            let (name, coded) = text(fields, &mut position)?;
            !coded && fields[name] == *b":authority"
        } else {
            index == AUTHORITY
        };
        let (value, coded) = text(fields, &mut position)?;
        let value = &mut fields[value];
        if named && !coded && !value.is_empty() && Authority::try_from(&*value).is_err() {
            let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'.';
            value.iter_mut().filter(|byte| !allowed(byte)).for_each(|byte| *byte = b'-');
            replaced = true;
        }
    }
    Some(replaced)
}

/// An integer of HPACK whose first byte has `prefix` bits of it (RFC 7541, section 5.1).
fn integer(fields: &[u8], position: &mut usize, prefix: u32) -> Option<usize> {
    let mask = (1 << prefix) - 1;
    let mut value = usize::from(*fields.get(*position)?) & mask;
    *position += 1;
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14] {
        let byte = usize::from(*fields.get(*position)?);
        *position += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Where the text at `position` is, and whether it is Huffman-coded.
fn text(fields: &[u8], position: &mut usize) -> Option<(std::ops::Range<usize>, bool)> {
    let coded = fields.get(*position)? & 0x80 != 0;
    let length = integer(fields, position, 7)?;
    let range = *position..*position + length;
    *position = range.end;
    (range.end <= fields.len()).then_some((range, coded))
}

impl<T: Connected> Connected for ValidAuthority<T> {
    type ConnectInfo = T::ConnectInfo;
    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ValidAuthority<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ready == 0 {
            if this.next == ExpectedBytes::Anything && this.buffer.is_empty() {
                return Pin::new(&mut this.io).poll_read(cx, buf);
            }
            let mut bytes = [0; READ];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.io).poll_read(cx, &mut read))?;
            this.buffer.extend_from_slice(read.filled());
            if read.filled().is_empty() {
                this.next = ExpectedBytes::Anything; // the end: what there is of a frame is passed on
                if this.buffer.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
            this.read_frames();
        }
        let passed = this.ready.min(buf.remaining());
        buf.put_slice(&this.buffer[..passed]);
        this.buffer.drain(..passed);
        this.ready -= passed;
        Poll::Ready(Ok(()))
    }
}

forward_writes!(ValidAuthority<T> to io);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn frame(kind: u8, flags: u8, content: &[u8]) -> Vec<u8> {
        let length = (content.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], content].concat()
    }

    /// A frame of headers: `:method`, which the static table has, an authority, by its index in that table or by its name as
    /// gRPC's C core has it, and a header with a name of its own.
    fn headers(authority: &[u8]) -> Vec<u8> {
        let by_name = authority.len().is_multiple_of(2);
        let name: &[u8] = if by_name { b"\x40\x0a:authority" } else { b"\x41" };
        let fields = [b"\x83", name, &[authority.len() as u8], authority, b"\x40\x01a\x01%"].concat();
        frame(HEADERS, 4, &fields)
    }

    /// Writes `sent` to a connection, `at_a_time` bytes each, and returns what is read from it.
    async fn read(sent: &[u8], at_a_time: usize) -> Vec<u8> {
        let (mut client, server) = tokio::io::duplex(at_a_time);
        let mut server = ValidAuthority::new(server);
        let mut received = Vec::new();
        let write = async {
            client.write_all(sent).await.unwrap();
            drop(client);
        };
        tokio::join!(write, server.read_to_end(&mut received)).1.unwrap();
        received
    }

    #[tokio::test]
    async fn a_path_becomes_an_authority_of_the_same_length_however_it_arrives() {
        let settings = frame(4, 0, &[0; 6]);
        let data = frame(0, 1, &[0x41, 3, b'%', b'%', b'%']);
        let call = |authority: &[u8]| [&headers(authority), &data[..]].concat();
        let connection = |calls: &[Vec<u8>]| [PREFACE, &settings, &calls.concat()].concat();
        let sent = connection(&[call(b"%2Ftmp%2Fgpt.sock"), call(b"/tmp/gpt@1.sock"), call(b"tmp%2Fgpt.sock")]);
        let expected = connection(&[call(b"-2Ftmp-2Fgpt.sock"), call(b"-tmp-gpt-1.sock"), call(b"tmp-2Fgpt.sock")]);
        for at_a_time in [1, 2, 7, 23, 64, 4096] {
            assert_eq!(read(&sent, at_a_time).await, expected, "{at_a_time} bytes at a time");
        }
    }

    #[tokio::test]
    async fn what_is_in_order_or_not_known_passes_as_it_is() {
        let in_order = [PREFACE, &headers(b"localhost:50051"), &headers(b"%2F")].concat();
        let huffman = frame(HEADERS, 4, &[0x41, 0x82, b'%', b'%']);
        let cut = frame(HEADERS, 4, &[0x41, 0x7f]);
        let endless = frame(HEADERS, 4, &[0x41, 0xff, 0xff, 0xff, 0xff, 0xff]);
        let half = headers(b"%2F");
        let other = [b"GET / HTTP/1.1\r\n".to_vec(), headers(b"%2F")].concat();
        let behind = |bytes: &[u8]| [PREFACE, bytes].concat();
        for sent in [
            in_order,
            behind(&huffman),
            behind(&cut),
            behind(&endless),
            behind(&half[..half.len() - 1]),
            other,
            Vec::new(),
        ] {
            for at_a_time in [1, 4096] {
                assert_eq!(read(&sent, at_a_time).await, sent);
            }
        }
    }

    #[test]
    fn padding_and_priority_are_no_fields() {
        let fields = [&[0x41, 3][..], b"%2F"].concat();
        let mut content = [&[2, 0, 0, 0, 0, 16][..], &fields, &[0, 0]].concat();
        assert!(replace_in_headers(&mut content, PADDED | PRIORITY));
        assert_eq!(content, [&[2, 0, 0, 0, 0, 16, 0x41, 3][..], b"-2F", &[0, 0]].concat());
        assert!(!replace_in_headers(&mut [9, 0x41], PADDED), "padding that is longer than the frame");
        assert!(!replace_in_headers(&mut [], PADDED | PRIORITY));
    }
}
