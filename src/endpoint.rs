//! The grammar of ENDPOINT, the word that says whom a command asks:
//!
//! ```text
//! 12345                 a process id: that process's rows of the run it is in
//! localhost:7777        a collector over TCP ([::1]:7777 for IPv6)
//! unix:/run/probe/gpt@1.sock, /run/probe/gpt@1.sock, gpt.sock
//!                       a collector's socket
//! gpt, gpt@1            a run's name: the live one, else the newest recorded one; with @N that one
//! ./runs/gpt@1, /path   the directory of a run
//! ```

use std::fmt;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::runs::RunName;

/// What a person wrote. Whether anybody is there is another question ([`crate::client::resolve`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A training process on this machine.
    Pid(u32),
    /// A collector's TCP address. The host of an IPv6 address is without its brackets.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// A collector's socket.
    Socket(PathBuf),
    /// A run's name.
    Run(RunName),
    /// A socket or the directory of a run, whichever is there.
    Path(PathBuf),
}

impl Endpoint {
    /// Reads an ENDPOINT; the error says what it could have been.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |what: String| Err(Error::unreachable(format!("'{text}' is no ENDPOINT: {what}")).hint(FORMS));
        if text.is_empty() {
            return wrong("it is empty".into());
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return match text.parse() {
                Ok(pid) if pid > 0 => Ok(Self::Pid(pid)),
                _ => wrong("no process has that id".into()),
            };
        }
        if let Some(path) = text.strip_prefix("unix:") {
            // grpc's own spelling of an absolute path is unix:///path.
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() { wrong("unix: is followed by a path".into()) } else { Ok(Self::Socket(path.into())) };
        }
        if text.contains('/') || text == "." || text == ".." {
            return Ok(Self::Path(text.into()));
        }
        if text.ends_with(".sock") {
            return Ok(Self::Socket(text.into()));
        }
        if let Some((host, port)) = text.rsplit_once(':') {
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            return match port.parse() {
                Ok(port) if port > 0 && is_host(host) => Ok(Self::Tcp { host: host.to_owned(), port }),
                Ok(_) => wrong(format!("'{host}' is no host")),
                Err(_) => wrong(format!("'{port}' is no port")),
            };
        }
        match RunName::parse(text) {
            Ok(name) => Ok(Self::Run(name)),
            Err(error) => wrong(error.to_string()),
        }
    }
}

/// Letters that a host name, an IPv4 or an IPv6 address can have; who it is, the resolver says.
fn is_host(host: &str) -> bool {
    !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%'))
}

/// What an ENDPOINT can be, for hints.
pub const FORMS: &str = "an ENDPOINT is a run's name (gpt, gpt@1), a process id, HOST:PORT, unix:PATH or a run's directory";

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "{pid}"),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
            Self::Run(name) => write!(f, "{name}"),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::Kind;

    fn parsed(text: &str) -> Endpoint {
        Endpoint::parse(text).unwrap()
    }

    #[test]
    fn every_form_is_told_from_the_others() {
        let tcp = |host: &str, port| Endpoint::Tcp { host: host.into(), port };
        assert_eq!(parsed("12345"), Endpoint::Pid(12345));
        assert_eq!(parsed("node-3.local:7777"), tcp("node-3.local", 7777));
        assert_eq!(parsed("[::1]:80"), tcp("::1", 80));
        assert_eq!(parsed("unix:/x/y"), Endpoint::Socket("/x/y".into()));
        assert_eq!(parsed("unix:///x/y"), Endpoint::Socket("/x/y".into()));
        assert_eq!(parsed("unix:rel"), Endpoint::Socket("rel".into()));
        assert_eq!(parsed("here.sock"), Endpoint::Socket("here.sock".into()));
        assert_eq!(parsed("./runs/gpt@1"), Endpoint::Path("./runs/gpt@1".into()));
        assert_eq!(parsed("/x/y:8"), Endpoint::Path("/x/y:8".into()));
        assert_eq!(parsed("gpt"), Endpoint::Run(RunName { base: "gpt".into(), number: None }));
        assert_eq!(parsed("gpt@2"), Endpoint::Run(RunName { base: "gpt".into(), number: Some(2) }));
    }

    #[test]
    fn what_is_none_of_them_says_why() {
        for text in ["", "0", "99999999999", "unix:", "host:", "host:99999", "host:0", ":80", "a b:80", "gpt@", "gpt@0", "sélu", "-x", "a b"] {
            let error = Endpoint::parse(text).unwrap_err();
            assert_eq!(error.kind(), Kind::Unreachable, "{text}");
            assert_eq!(error.hint_text(), Some(FORMS), "{text}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(text in ".*") {
            let _ = Endpoint::parse(&text);
        }

        #[test]
        fn what_is_shown_is_read_as_the_same(text in "[a-z0-9@:./\\[\\]_-]{1,16}") {
            if let Ok(endpoint) = Endpoint::parse(&text) {
                prop_assert_eq!(Endpoint::parse(&endpoint.to_string()).unwrap(), endpoint);
            }
        }
    }
}
