//! The collector's file of tokens: a line each, with the token's SHA-256 instead of the token.
//!
//! ```text
//! laptop query,eval 2026-11-21T18:00:00Z sha256:9c41…
//! ```
//!
//! A token is 256 random bits, so one hash without salt is enough: they can't all be tried.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::unistd::geteuid;
use probe_common::error::{Error, Result};
use probe_common::paths::{ProbeDirectories, io_error_at, only_ours_to_change};
use sha2::{Digest, Sha256};

use super::scope::TokenScopes;

/// Longest file that is read (bytes): some ten thousand tokens.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Longest name (letters).
const MAX_NAME_LENGTH: usize = 64;

/// All that is known of a token but the token itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenEntry {
    /// The name that its maker gave it.
    pub name: String,
    /// What the token allows.
    pub scopes: TokenScopes,
    /// When the token was made.
    pub made: Timestamp,
    /// SHA-256 of the token.
    pub(super) hash: [u8; 32],
}

impl TokenEntry {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (name, scopes, made) = (words.next()?.to_owned(), words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let hash = words.next()?.parse::<probe_proto::credentials::CertificatePin>().ok()?.0;
        (words.next().is_none() && is_name(&name)).then_some(Self { name, scopes, made, hash })
    }

    fn line(&self, out: &mut String) {
        let hash = probe_proto::credentials::CertificatePin(self.hash);
        let _ = writeln!(out, "{} {} {} {hash}", self.name, self.scopes, self.made);
    }
}

pub(super) fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME_LENGTH
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// The file `tokens` in the home.
#[derive(Debug, Clone)]
pub struct TokenFile {
    path: PathBuf,
}

impl TokenFile {
    /// The token file below these directories.
    pub fn of(directories: &ProbeDirectories) -> Self {
        Self { path: directories.home.join("tokens") }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads all tokens, in the order in which they were made; none where there is no file.
    ///
    /// # Errors
    /// Other users can read or change the file, or it has a line that makes no sense: then no token is valid.
    pub fn read(&self) -> Result<Vec<TokenEntry>> {
        let flags = (nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK).bits();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ELOOP as i32) => {
                return Err(Error::denied(format!("{} is a symbolic link", self.path.display())));
            }
            Err(error) => return Err(io_error_at(&self.path, error)),
        };
        self.check(&file)?;
        let mut text = String::new();
        file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(|error| io_error_at(&self.path, error))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let tokens = lines.map(|(index, line)| {
            TokenEntry::parse(line).ok_or_else(|| {
                Error::failed(format!("{}: line {} is not a token of probe", self.path.display(), index + 1))
                    .hint("remove the line; probe token make makes a new token")
            })
        });
        tokens.collect()
    }

    fn check(&self, file: &File) -> Result<()> {
        let metadata = file.metadata().map_err(|error| io_error_at(&self.path, error))?;
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
        let denied = |what: String| Err(Error::denied(format!("{} {what}", self.path.display())));
        if !metadata.is_file() {
            return denied("is no file".into());
        }
        if owner != geteuid().as_raw() && owner != 0 {
            return denied(format!("belongs to uid {owner}, not to you: its owner could grant access to anyone"));
        }
        if mode & 0o077 != 0 {
            let what = format!("{} can be read or written by others (mode {mode:04o})", self.path.display());
            return Err(Error::denied(what).hint(format!("chmod 0600 {}", self.path.display())));
        }
        self.path.parent().map_or(Ok(()), only_ours_to_change)
    }

    /// Makes a token, keeps its hash, and returns the token, which is stored nowhere.
    ///
    /// # Errors
    /// The name is taken or not valid; those of the file.
    pub fn make(&self, name: &str, scopes: TokenScopes) -> Result<String> {
        if !is_name(name) {
            return Err(Error::usage(format!("'{name}' can't name a token"))
                .hint(format!("a name has letters, digits and . _ -, {MAX_NAME_LENGTH} of them at most")));
        }
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|error| Error::failed("no random numbers").because(error))?;
        let mut token = String::from("probe_");
        for byte in random {
            let _ = write!(token, "{byte:02x}");
        }
        self.change(|tokens| {
            if tokens.iter().any(|token| token.name == name) {
                return Err(Error::failed(format!("there is a token called '{name}'"))
                    .hint(format!("choose another name, or first: probe token revoke {name}")));
            }
            let made = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
            tokens.push(TokenEntry { name: name.to_owned(), scopes, made, hash: hash(token.as_bytes()) });
            Ok(())
        })?;
        Ok(token)
    }

    /// Revokes a token.
    ///
    /// # Errors
    /// There is no token of that name; those of the file.
    pub fn revoke(&self, name: &str) -> Result<()> {
        self.change(|tokens| {
            let before = tokens.len();
            tokens.retain(|token| token.name != name);
            if tokens.len() < before {
                return Ok(());
            }
            let names: Vec<_> = tokens.iter().map(|token| token.name.as_str()).collect();
            let there =
                if names.is_empty() { "there is none".into() } else { format!("available: {}", names.join(", ")) };
            Err(Error::failed(format!("there is no token called '{name}'")).hint(there))
        })
    }

    /// Replaces the file with a changed one. Changes come one after the other, and a reader sees the file before or after a
    /// change.
    fn change(&self, change: impl FnOnce(&mut Vec<TokenEntry>) -> Result<()>) -> Result<()> {
        let home = self.path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(home).map_err(|error| io_error_at(home, error))?;
        // The lock is on the directory, since the file is replaced.
        let directory = File::open(home).map_err(|error| io_error_at(home, error))?;
        directory.lock().map_err(|error| io_error_at(home, error))?;
        let mut tokens = self.read()?;
        change(&mut tokens)?;
        let mut text = String::new();
        tokens.iter().for_each(|token| token.line(&mut text));
        let written = (|| {
            // The file has mode 0600 from the beginning.
            let mut file = tempfile::NamedTempFile::new_in(home)?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            directory.sync_all()
        })();
        written.map_err(|error: io::Error| io_error_at(&self.path, error))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use probe_common::error::ErrorKind;

    fn file() -> (tempfile::TempDir, TokenFile) {
        let directory = tempfile::tempdir().unwrap();
        let directories =
            ProbeDirectories { home: directory.path().join("home"), runtime: directory.path().join("run") };
        let file = TokenFile::of(&directories);
        (directory, file)
    }

    #[test]
    fn a_token_is_256_random_bits_and_only_its_hash_is_kept() {
        let (_directory, file) = file();
        assert_eq!(file.read().unwrap(), []);
        let token = file.make("laptop", "query,eval".parse().unwrap()).unwrap();
        let other = file.make("agents", "ingest".parse().unwrap()).unwrap();
        assert_ne!(token, other);
        assert_eq!((token.len(), &token[..6]), (6 + 64, "probe_"));
        assert_eq!(fs::metadata(file.path()).unwrap().mode() & 0o777, 0o600);
        let text = fs::read_to_string(file.path()).unwrap();
        assert!(!text.contains(&token[6..]) && !text.contains(&other[6..]), "{text}");
        let read = file.read().unwrap();
        let seen: Vec<_> = read.iter().map(|token| (token.name.as_str(), token.scopes.to_string())).collect();
        assert_eq!(seen, [("laptop", "query,eval".into()), ("agents", "ingest".into())]);
        assert_eq!(read[0].hash, hash(token.as_bytes()));
        let left: Vec<_> = fs::read_dir(file.path().parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn names_are_taken_once_and_free_again_when_revoked() {
        let (_directory, file) = file();
        let query = || "query".parse().unwrap();
        file.make("a", query()).unwrap();
        assert!(file.make("a", query()).unwrap_err().hint_text().unwrap().contains("revoke a"));
        for wrong in ["", "a b", "a\nb", "ä", &"x".repeat(65)] {
            assert_eq!(file.make(wrong, query()).unwrap_err().kind(), ErrorKind::Usage, "{wrong}");
        }
        assert_eq!(file.revoke("b").unwrap_err().hint_text(), Some("available: a"));
        file.revoke("a").unwrap();
        assert_eq!(file.read().unwrap(), []);
        file.make("a", query()).unwrap();
    }

    #[test]
    fn a_file_that_others_can_change_or_that_makes_no_sense_is_not_believed() {
        let (_directory, file) = file();
        file.make("a", "query".parse().unwrap()).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o666] {
            set(file.path(), mode);
            assert_eq!(file.read().unwrap_err().kind(), ErrorKind::Denied, "{mode:o}");
        }
        set(file.path(), 0o600);
        let home = file.path().parent().unwrap();
        set(home, 0o777);
        assert_eq!(file.read().unwrap_err().kind(), ErrorKind::Denied);
        set(home, 0o755);
        assert_eq!(file.read().unwrap().len(), 1);
        let good = fs::read_to_string(file.path()).unwrap();
        for bad in ["x", "a query", "a all 2026-01-01T00:00:00Z sha256:00", &good.replace("query", "root")] {
            fs::write(file.path(), format!("{good}{bad}\n")).unwrap();
            assert!(file.read().unwrap_err().to_string().contains("line 2"), "{bad}");
        }
        fs::remove_file(file.path()).unwrap();
        symlink("/etc/passwd", file.path()).unwrap();
        assert_eq!(file.read().unwrap_err().kind(), ErrorKind::Denied);
    }
}
