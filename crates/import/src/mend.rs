//! Turns an element that is not valid JSON into one that is, where the meaning is evident: quotes and control bytes within
//! strings, words that are no values of JSON (`NaN`, `N/A`), unknown escapes, commas before a closing bracket.

/// Repairs `text`. The result may still be no JSON.
pub(crate) fn mended(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len() + 16);
    let mut offset = 0;
    while let Some(byte) = bytes.get(offset) {
        match byte {
            b'"' => offset = string(text, offset, &mut out),
            b'{' | b'[' | b':' | b' ' | b'\n' | b'\r' | b'\t' => {
                out.push(*byte as char);
                offset += 1;
            }
            b'}' | b']' => {
                // A comma before the bracket is removed, because nothing follows it.
                let trimmed = out.trim_end().len();
                if out[..trimmed].ends_with(',') {
                    out.truncate(trimmed - 1);
                }
                out.push(*byte as char);
                offset += 1;
            }
            b',' => {
                out.push(',');
                offset += 1;
            }
            _ => {
                let rest = &text[offset..];
                let end = rest.find([',', '}', ']', '\n', '"']).unwrap_or(rest.len());
                let word = rest[..end].trim_end();
                out.push_str(match word {
                    _ if is_value(word) => word,
                    // As text, so that it is not taken for a value that is missing.
                    "NaN" | "Infinity" | "-Infinity" => "\"not finite\"",
                    _ => "null",
                });
                offset += end;
            }
        }
    }
    out
}

fn is_value(word: &str) -> bool {
    matches!(word, "true" | "false" | "null") || serde_json::from_str::<serde_json::Number>(word).is_ok()
}

/// Copies the string that begins at `offset` and returns the offset after it.
fn string(text: &str, offset: usize, out: &mut String) -> usize {
    out.push('"');
    let bytes = text.as_bytes();
    let mut characters = text[offset + 1..].char_indices().peekable();
    while let Some((index, character)) = characters.next() {
        let next = offset + 1 + index + character.len_utf8();
        match character {
            '\\' => match bytes.get(next) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                    out.push('\\');
                    out.push(bytes[next] as char);
                    characters.next();
                }
                Some(b'u')
                    if text.get(next + 1..next + 5).is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit())) =>
                {
                    out.push('\\');
                }
                _ => out.push_str("\\\\"),
            },
            '"' => {
                let follows = bytes[next..].iter().find(|byte| !matches!(byte, b' ' | b'\n' | b'\r' | b'\t'));
                if matches!(follows, None | Some(b',' | b':' | b'}' | b']')) {
                    out.push('"');
                    return next;
                }
                out.push_str("\\\"");
            }
            character if (character as u32) < 0x20 => out.push(' '),
            character => out.push(character),
        }
    }
    out.push('"');
    text.len()
}
