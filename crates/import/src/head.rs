//! The beginning of a file, by which its format is recognised.

use std::io::Read;
use std::path::Path;

use probe_common::error::{Error, Result};

use super::input::TextInput;

/// Bytes of text that are read.
const MAX_BYTES: u64 = 64 << 10;

/// The beginning of a file's text, unpacked where it is gzip.
#[derive(Debug)]
pub(crate) struct FileHead {
    pub bytes: Vec<u8>,
}

impl FileHead {
    /// Reads the beginning of a file.
    ///
    /// # Errors
    /// The path is no regular file, or can't be read.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let mut bytes = Vec::new();
        let read = TextInput::open(path)?.text.take(MAX_BYTES).read_to_end(&mut bytes);
        match read {
            // The reader of the whole file reports where it is damaged.
            Err(error) if bytes.is_empty() => {
                Err(Error::failed(format!("cannot read {}", path.display())).because(error))
            }
            _ => Ok(Self { bytes }),
        }
    }

    /// The text without white space at its beginning.
    fn text(&self) -> &[u8] {
        self.bytes.trim_ascii_start()
    }

    /// What a file is that can't be imported, where its beginning shows that, and what to do instead.
    pub(crate) fn other_format(&self) -> Option<(&'static str, &'static str)> {
        const PACKED: &str = "unpack it, and import what is in it; only gzip is unpacked here";
        let begins: &[(&[u8], &str, &str)] = &[
            (b"PK\x03\x04", "it is a zip archive", PACKED),
            (b"\xfd7zXZ", "it is packed by xz", PACKED),
            (b"\x28\xb5\x2f\xfd", "it is packed by zstd", PACKED),
            (b"BZh", "it is packed by bzip2", PACKED),
            (b"\x1f\x8b", "it is packed by gzip twice", PACKED),
            (b"\xff\xfe", "its text is UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"),
            (b"\xfe\xff", "its text is UTF-16", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"),
        ];
        let found = begins.iter().find(|(begin, ..)| self.bytes.starts_with(begin));
        let found = found.map(|(_, what, instead)| (*what, *instead));
        // A packet, and the text that it has is not JSON.
        found.or((self.bytes.first() == Some(&b'\n') && self.bytes.contains(&0)).then_some((
            "it seems to be a trace of Perfetto",
            "viewers read it; probe export writes what can be imported with -o FILE.json.gz",
        )))
    }

    /// Whether the text begins as a JSON object or array.
    pub(crate) fn is_json(&self) -> bool {
        matches!(self.text().first(), Some(b'{' | b'['))
    }

    /// Whether the outermost JSON object has the key, as far as the beginning shows.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        self.keys().any(|found| found == key.as_bytes())
    }

    /// The keys of the outermost JSON object.
    fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let text = self.text();
        let (mut offset, mut depth) = (0, 0_u32);
        std::iter::from_fn(move || {
            while offset < text.len() {
                let byte = text[offset];
                offset += 1;
                match byte {
                    b'{' | b'[' => depth = depth.saturating_add(1),
                    b'}' | b']' => depth = depth.saturating_sub(1),
                    b'"' => {
                        let start = offset;
                        offset = end_of_string(text, start);
                        let string = &text[start..offset.min(text.len())];
                        offset += 1;
                        let after = text.get(offset..).unwrap_or_default().trim_ascii_start();
                        if depth == 1 && after.first() == Some(&b':') {
                            return Some(string);
                        }
                    }
                    _ => {}
                }
            }
            None
        })
    }
}

/// The offset of the quote that ends the string at `start`; the end of the text where there is none.
fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut offset = start;
    while offset < text.len() && text[offset] != b'"' {
        offset += if text[offset] == b'\\' { 2 } else { 1 };
    }
    offset.min(text.len())
}

#[cfg(test)]
mod tests {
    use super::FileHead;

    #[test]
    fn keys_are_those_of_the_outermost_object() {
        let head = FileHead { bytes: br#" {"a": {"b": "}\"", "c": ["d"]}, "e\"": 1, "f" : "g", "#.to_vec() };
        assert!(head.is_json() && head.has_key("a") && head.has_key("f") && head.has_key("e\\\""));
        for other in ["b", "c", "d", "g"] {
            assert!(!head.has_key(other), "{other}");
        }
        for odd in [&b""[..], b"\"", b"{\"", b"{\"a\\", b"]]]]\"a\":", b"\xef\xbb\xbf \n"] {
            assert!(!FileHead { bytes: odd.to_vec() }.has_key("a"));
        }
    }
}
