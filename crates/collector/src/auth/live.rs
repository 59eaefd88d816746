//! Tokens as a running collector sees them: the file is read again whenever it was replaced, so what `probe token` changes holds
//! at once, also for running calls.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

use super::scope::TokenScopes;
use super::shown;
use super::tokens::{TokenEntry, TokenFile, hash};

/// Identifies the version of the file that was read: each change makes a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    identity: (u64, u64, u64),
    changed: (i64, i64),
}

impl FileVersion {
    fn of(file: &TokenFile) -> Option<Self> {
        let found = fs::symlink_metadata(file.path()).ok()?;
        let changed = (found.ctime(), found.ctime_nsec());
        Some(Self { identity: (found.dev(), found.ino(), found.size()), changed })
    }
}

#[derive(Debug)]
struct LiveToken {
    named: TokenEntry,
    gone: CancellationToken,
}

#[derive(Debug, Default)]
struct TokenSnapshot {
    /// The version that was read: None before the first reading, Some(None) where there was no file.
    read: Option<Option<FileVersion>>,
    entries: Vec<LiveToken>,
}

/// What a valid token allows.
#[derive(Debug, Clone)]
pub struct TokenGrant {
    pub name: String,
    pub scopes: TokenScopes,
    /// Cancelled when the token is revoked.
    pub gone: CancellationToken,
}

/// The tokens that are valid now.
#[derive(Debug)]
pub struct Tokens {
    file: TokenFile,
    state: Mutex<TokenSnapshot>,
}

impl Tokens {
    pub fn new(file: TokenFile) -> Arc<Self> {
        Arc::new(Self { file, state: Mutex::default() })
    }

    /// Reads the file again if it has changed. Tokens that are not in it any more, or have other scopes now, are cancelled. A
    /// file that can't be trusted has no valid tokens.
    pub fn refresh(&self) {
        drop(self.current());
    }

    fn current(&self) -> MutexGuard<'_, TokenSnapshot> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken before reading, so that a change meanwhile is read the next time.
        let stamp = FileVersion::of(&self.file);
        if state.read == Some(stamp) {
            return state;
        }
        let tokens = self.file.read().unwrap_or_else(|error| {
            tracing::warn!("no token is valid: {error}");
            Vec::new()
        });
        let mut before = std::mem::take(&mut state.entries);
        for named in tokens {
            let index = before.iter().position(|entry| entry.named == named);
            let gone = index.map_or_else(CancellationToken::new, |index| before.swap_remove(index).gone);
            state.entries.push(LiveToken { named, gone });
        }
        before.into_iter().for_each(|entry| entry.gone.cancel());
        state.read = Some(stamp);
        state
    }

    /// What an `authorization` header allows; None where its token is not valid. The duration does not depend on how much of the
    /// token is right: its hash is compared with every token's, each to the end.
    pub fn find(&self, authorization: &[u8]) -> Option<TokenGrant> {
        let shown = hash(&shown::token(authorization)?);
        let state = self.current();
        let mut found = None;
        for entry in &state.entries {
            if bool::from(entry.named.hash.ct_eq(&shown)) {
                found = Some(entry);
            }
        }
        let LiveToken { named, gone } = found?;
        Some(TokenGrant { name: named.name.clone(), scopes: named.scopes, gone: gone.clone() })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::auth::TokenScope;
    use probe_common::paths::ProbeDirectories;

    #[test]
    fn changes_hold_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let file =
            TokenFile::of(&ProbeDirectories { home: directory.path().into(), runtime: directory.path().join("run") });
        let tokens = Tokens::new(file.clone());
        assert!(tokens.find(b"Bearer ").is_none());
        let secret = file.make("a", "query".parse().unwrap()).unwrap();
        let header = format!("Bearer {secret}");
        let grant = tokens.find(header.as_bytes()).unwrap();
        assert_eq!((grant.name.as_str(), grant.scopes.has(TokenScope::Query)), ("a", true));
        assert!(tokens.find(format!("bearer {secret}").as_bytes()).is_some(), "a scheme's case does not matter");
        for wrong in
            ["", "Bearer", &header[..header.len() - 1], &format!("{header}0"), &format!("Basic {secret}"), &secret]
        {
            assert!(tokens.find(wrong.as_bytes()).is_none(), "{wrong}");
        }
        file.make("b", "eval".parse().unwrap()).unwrap();
        tokens.refresh();
        assert!(!grant.gone.is_cancelled(), "another one's coming is nothing to it");
        file.revoke("a").unwrap();
        tokens.refresh();
        assert!(grant.gone.is_cancelled());
        assert!(tokens.find(header.as_bytes()).is_none());
    }

    #[test]
    fn of_a_file_that_can_not_be_believed_no_token_is_valid() {
        let directory = tempfile::tempdir().unwrap();
        let file =
            TokenFile::of(&ProbeDirectories { home: directory.path().into(), runtime: directory.path().join("run") });
        let header = format!("Bearer {}", file.make("a", "query".parse().unwrap()).unwrap());
        let tokens = Tokens::new(file.clone());
        let grant = tokens.find(header.as_bytes()).unwrap();
        fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert!(tokens.find(header.as_bytes()).is_none());
        assert!(grant.gone.is_cancelled());
    }
}
