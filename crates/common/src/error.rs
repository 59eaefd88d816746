//! The one error of all crates: what was asked and what is wrong, what to do about it, and how it ends a command.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Of whatever ends with that error.
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
///
/// Displayed, it says the whole chain in one line: what was asked, and then its causes. An error crosses the wire and goes into
/// logs and tables as such a line. Whoever goes through [`source`](StdError::source) asks what a cause is, and need not print it.
#[derive(Debug, Clone)]
pub struct Error {
    kind: Kind,
    /// Without the causes; empty where they say it all.
    message: String,
    cause: Option<Arc<dyn StdError + Send + Sync>>,
    hint: Option<String>,
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.message.clone();
        let mut cause = self.source();
        while let Some(error) = cause {
            let words = error.to_string();
            // Many errors say their cause themselves.
            if !said.contains(&words) {
                let between = if said.is_empty() { "" } else { ": " };
                said = said + between + &words;
            }
            cause = error.source();
        }
        f.write_str(&said)
    }
}

/// The metadata key under which a hint crosses the wire.
const HINT: &str = "probe-hint-bin";

impl Error {
    /// An error of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), cause: None, hint: None }
    }
    /// Something failed, and its cause says what.
    pub fn caused(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::failed("").because(cause)
    }
    /// The system starts no thread.
    pub fn no_thread(cause: std::io::Error) -> Self {
        Self::failed("no thread could be started").because(cause)
    }
    /// Adds why: what is displayed after the message.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.cause = Some(cause.into().into());
        self
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
        let mut status = Self::new(code, error.to_string());
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
        Self { kind, message: status.message().to_owned(), cause: None, hint }
    }
}

/// Of a stream, which has no name; an error of a file is [`named`](crate::paths::named).
impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::caused(error)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn causes_are_said_once_and_kept() {
        let cause = || io::Error::from(io::ErrorKind::PermissionDenied);
        let error = Error::failed("/runs/gpt@1").because(cause());
        assert_eq!(error.to_string(), "/runs/gpt@1: permission denied");
        let kept = error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
        assert_eq!(kept, Some(io::ErrorKind::PermissionDenied));
        let outer = Error::usage("cannot read the run").because(error.clone());
        assert_eq!(outer.to_string(), "cannot read the run: /runs/gpt@1: permission denied");
        assert_eq!(Error::caused(cause()).to_string(), "permission denied");
        assert_eq!(Status::from(outer).message(), "cannot read the run: /runs/gpt@1: permission denied");
    }
}
