//! The one error of this crate: what was asked and what is wrong, what to do about it, and how it ends a command.

use std::fmt;

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Everywhere in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How a command ends; the number is its exit status. 0 is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The query, snippet or command failed.
    Failed = 1,
    /// Wrong usage.
    Usage = 2,
    /// Nothing reachable at ENDPOINT.
    Unreachable = 3,
    /// Not allowed.
    Denied = 4,
    /// A limit or deadline was reached.
    Limit = 5,
}

/// An error for people.
#[derive(Debug, Clone, thiserror::Error)]
pub struct Error {
    kind: Kind,
    message: String,
    hint: Option<String>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The metadata key under which a hint crosses the wire.
const HINT: &str = "probe-hint-bin";

impl Error {
    /// An error of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }
    /// The query, snippet or command failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }
    /// Wrong usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }
    /// Nothing reachable at ENDPOINT.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(Kind::Unreachable, message)
    }
    /// Not allowed.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(Kind::Denied, message)
    }
    /// A limit or deadline was reached.
    pub fn limit(message: impl Into<String>) -> Self {
        Self::new(Kind::Limit, message)
    }
    /// Adds what to do about the error.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// What kind it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }
    /// What to do about it.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match error.kind {
            Kind::Failed => Code::Aborted,
            Kind::Usage => Code::InvalidArgument,
            Kind::Unreachable => Code::Unavailable,
            Kind::Denied => Code::PermissionDenied,
            Kind::Limit => Code::ResourceExhausted,
        };
        let mut status = Self::new(code, error.message);
        if let Some(hint) = error.hint {
            status.metadata_mut().insert_bin(HINT, MetadataValue::from_bytes(hint.as_bytes()));
        }
        status
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let kind = match status.code() {
            Code::InvalidArgument => Kind::Usage,
            Code::Unavailable => Kind::Unreachable,
            Code::PermissionDenied | Code::Unauthenticated => Kind::Denied,
            Code::ResourceExhausted | Code::DeadlineExceeded => Kind::Limit,
            _ => Kind::Failed,
        };
        let hint = status.metadata().get_bin(HINT).and_then(|v| v.to_bytes().ok());
        let hint = hint.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
        Self { kind, message: status.message().to_owned(), hint }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::failed(error.to_string())
    }
}
