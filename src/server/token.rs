//! The token that calls over TCP carry.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use nix::unistd::geteuid;
use subtle::ConstantTimeEq;
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::error::{Error, Result};
use crate::paths::named;

/// Shorter ones could be guessed (bytes).
const SHORTEST: usize = 16;
/// Longest file that is read for one (bytes).
const LONGEST: u64 = 4096;

/// A secret. It is in no message, log or error.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Reads a token file: ours, nobody else's (mode 0600 or less), no symbolic link; one line.
    pub fn read(path: &Path) -> Result<Self> {
        let how = format!("make one: (umask 077; head -c 32 /dev/urandom | base64 > {})", path.display());
        let flags = (nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK).bits();
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = opened.map_err(|error| {
            let is_link = error.raw_os_error() == Some(nix::errno::Errno::ELOOP as i32);
            let error = if is_link {
                Error::denied(format!("{} is a symbolic link", path.display()))
            } else {
                named(path, &error)
            };
            error.hint(how.clone())
        })?;
        check(&file, path)?;
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).map_err(|error| named(path, &error))?;
        let token = text.trim();
        if token.len() < SHORTEST || !token.bytes().all(|b| b.is_ascii_graphic()) {
            let what = format!("{} has no token of at least {SHORTEST} letters on one line", path.display());
            return Err(Error::usage(what).hint(how));
        }
        Ok(Self(token.into()))
    }

    /// As `authorization` carries it.
    pub fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether an `authorization` is this token's, in a time that does not depend on how much of it is right.
    fn allows(&self, authorization: &[u8]) -> bool {
        let Some((scheme, given)) = authorization.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(given.ct_eq(self.0.as_bytes()))
    }
}

fn check(file: &File, path: &Path) -> Result<()> {
    let metadata = file.metadata().map_err(|error| named(path, &error))?;
    let mode = metadata.mode() & 0o777;
    if !metadata.is_file() {
        Err(Error::denied(format!("{} is no file", path.display())))
    } else if metadata.uid() != geteuid().as_raw() && metadata.uid() != 0 {
        Err(Error::denied(format!("{} belongs to uid {}, not to you", path.display(), metadata.uid())))
    } else if mode & 0o077 != 0 {
        let what = format!("{} can be read or written by others (mode {mode:04o})", path.display());
        Err(Error::denied(what).hint(format!("chmod 0600 {}", path.display())))
    } else {
        Ok(())
    }
}

/// Lets calls through that carry the token.
#[derive(Debug, Clone)]
pub(super) struct RequireToken(pub(super) Token);

impl Interceptor for RequireToken {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let given = request.metadata().get("authorization");
        if given.is_some_and(|given| self.0.allows(given.as_bytes())) {
            return Ok(request);
        }
        let what = if given.is_some() { "the token is not this collector's" } else { "this endpoint asks for a token" };
        Err(Error::denied(what).hint("name its file with --token-file or PROBE_TOKEN_FILE").into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::error::Kind;

    fn file(dir: &tempfile::TempDir, text: &str, mode: u32) -> std::path::PathBuf {
        let path = dir.path().join("token");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn only_a_file_of_ours_alone_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let secret = "0123456789abcdef";
        for mode in [0o600, 0o400] {
            assert!(Token::read(&file(&dir, &format!("{secret}\n"), mode)).is_ok());
        }
        for mode in [0o640, 0o604, 0o620, 0o666] {
            let error = Token::read(&file(&dir, secret, mode)).unwrap_err();
            assert_eq!(error.kind(), Kind::Denied, "{mode:o}");
            assert!(error.hint_text().unwrap().starts_with("chmod 0600"));
        }
        let path = file(&dir, secret, 0o600);
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(Token::read(&link).unwrap_err().kind(), Kind::Denied);
        assert!(Token::read(&dir.path().join("absent")).unwrap_err().hint_text().unwrap().contains("umask 077"));
        assert_eq!(Token::read(dir.path()).unwrap_err().kind(), Kind::Denied);
    }

    #[test]
    fn a_token_is_one_line_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "short", "two lines of it\nare none", "with a space 12345"] {
            let error = Token::read(&file(&dir, text, 0o600)).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{text}");
            assert!(text.is_empty() || !format!("{error:?}").contains(text), "an error shows no secret");
        }
    }

    #[test]
    fn calls_are_let_through_with_the_token_and_no_other() {
        let token = Token("0123456789abcdef".into());
        assert!(!format!("{token:?}").contains("0123"));
        assert!(token.allows(token.header().as_bytes()) && token.allows(b"bearer 0123456789abcdef"));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert!(!token.allows(wrong.as_bytes()), "{wrong}");
        }
    }
}
