//! The token in an `authorization` header: after `Bearer`, or as the password of `Basic`, whose user is ignored. Dialogs of JDBC
//! and ADBC ask for a user and a password.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The token in the value of an `authorization` header; None if the value has no token.
pub fn token(authorization: &[u8]) -> Option<Cow<'_, [u8]>> {
    let space = authorization.iter().position(|byte| *byte == b' ')?;
    let (scheme, shown) = (&authorization[..space], &authorization[space + 1..]);
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(Cow::Borrowed(shown));
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let both = STANDARD.decode(shown).ok()?;
    let colon = both.iter().position(|byte| *byte == b':')?;
    Some(Cow::Owned(both[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_alone_or_as_a_password() {
        let basic = |both: &str| format!("Basic {}", STANDARD.encode(both));
        for (header, expected) in [
            ("Bearer abc".to_owned(), Some("abc")),
            ("bearer abc".to_owned(), Some("abc")),
            (basic("me:abc"), Some("abc")),
            (basic(":a:b"), Some("a:b")),
            (basic("abc"), None),
            ("Basic ???".to_owned(), None),
            ("Bearer".to_owned(), None),
            ("Digest abc".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(token(header.as_bytes()).as_deref(), expected.map(str::as_bytes), "{header}");
        }
    }
}
