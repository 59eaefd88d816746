//! The address of the collector.

use std::path::PathBuf;

/// Address of a collector: `unix:PATH` or `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CollectorAddress {
    /// A socket on this machine.
    Unix(PathBuf),
    /// `host:port`, as it was given.
    Tcp(String),
}

impl CollectorAddress {
    /// Parses `unix:PATH` or `HOST:PORT`; the error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err("'unix:' without a path".into()) } else { Ok(Self::Unix(path.into())) };
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Self::Tcp(text.to_owned())),
            _ => Err(format!("'{text}' is neither unix:PATH nor HOST:PORT")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        assert_eq!(CollectorAddress::parse("unix:/run/a b.sock"), Ok(CollectorAddress::Unix("/run/a b.sock".into())));
        assert_eq!(CollectorAddress::parse("node1:7000"), Ok(CollectorAddress::Tcp("node1:7000".into())));
        assert_eq!(CollectorAddress::parse("[::1]:7000"), Ok(CollectorAddress::Tcp("[::1]:7000".into())));
        for wrong in ["", "unix:", "node1", ":7000", "node1:", "node1:70000"] {
            assert!(CollectorAddress::parse(wrong).is_err(), "{wrong}");
        }
    }
}
