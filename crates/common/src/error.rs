//! The error type of all crates: what was requested and what is wrong, what to do about it, and the exit status of the command.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// A result whose error is an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How a command ends; the number is its exit status. 0 is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorKind {
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
/// Displayed, it gives the whole chain in one line: what was requested, and then the causes. An error crosses the wire and
/// goes into logs and tables as such a line. [`source`](StdError::source) is for finding out what a cause is; it need not be
/// printed.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    /// The message without the causes; empty where the causes suffice.
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
        let mut text = self.message.clone();
        let mut cause = self.source();
        while let Some(error) = cause {
            let words = error.to_string();
            // The messages of many errors contain their cause.
            if !text.contains(&words) {
                let separator = if text.is_empty() { "" } else { ": " };
                text = text + separator + &words;
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}

/// The metadata key under which a hint crosses the wire.
const HINT: &str = "probe-hint-bin";

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), cause: None, hint: None }
    }
    /// A failure that its cause describes.
    pub fn caused(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::failed("").because(cause)
    }
    /// An error of the system, which could not start a thread.
    pub fn no_thread(cause: std::io::Error) -> Self {
        Self::failed("no thread could be started").because(cause)
    }
    /// Adds the cause, which is displayed after the message.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.cause = Some(cause.into().into());
        self
    }
    /// The query, snippet or command failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }
    /// Wrong usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }
    /// Nothing reachable at ENDPOINT.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unreachable, message)
    }
    /// Not allowed.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Denied, message)
    }
    /// A limit or deadline was reached.
    pub fn limit(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Limit, message)
    }
    /// Adds a hint: what to do about the error.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
    /// The hint: what to do about the error.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match error.kind {
            ErrorKind::Failed => Code::Aborted,
            ErrorKind::Usage => Code::InvalidArgument,
            ErrorKind::Unreachable => Code::Unavailable,
            ErrorKind::Denied => Code::PermissionDenied,
            ErrorKind::Limit => Code::ResourceExhausted,
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
            Code::InvalidArgument => ErrorKind::Usage,
            Code::Unavailable => ErrorKind::Unreachable,
            Code::PermissionDenied | Code::Unauthenticated => ErrorKind::Denied,
            Code::ResourceExhausted | Code::DeadlineExceeded => ErrorKind::Limit,
            _ => ErrorKind::Failed,
        };
        let hint = status.metadata().get_bin(HINT).and_then(|v| v.to_bytes().ok());
        let hint = hint.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
        Self { kind, message: status.message().to_owned(), cause: None, hint }
    }
}

/// Converts an error of a stream, which has no name; [`io_error_at`](crate::paths::io_error_at) converts an error of a file.
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
