//! The callers, and what audit rows say of them.

use nix::unistd::geteuid;
use probe_common::error::{Error, Result};
use tokio_util::sync::CancellationToken;
use tonic::Extensions;
use tonic::transport::server::{TcpConnectInfo, UdsConnectInfo};

use crate::auth::{CallOrigin, TokenScope, TokenScopes};

/// A caller as audit rows have it, by the kernel's word where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedCaller {
    /// `uid:1000` on the unix socket, `token:laptop` over TCP.
    pub who: String,
    /// The other end of the connection: `pid:4242`, `tcp:10.0.0.7:51234`; None where it is not known.
    pub peer: Option<String>,
}

impl AuditedCaller {
    /// The caller of a call that was let in.
    pub fn of(extensions: &Extensions) -> Self {
        Caller::of(extensions).asker
    }

    /// The collector itself, for a purpose of its own: `probe (hang)`.
    pub fn collector(what: &str) -> Self {
        Self { who: format!("probe ({what})"), peer: None }
    }

    /// This caller, acting for an internal purpose: `uid:1000 (stack)`.
    #[must_use]
    pub fn within(&self, what: &str) -> Self {
        Self { who: format!("{} ({what})", self.who), peer: self.peer.clone() }
    }

    /// The name of the caller, for sentences.
    pub fn name(&self) -> String {
        match &self.peer {
            Some(peer) if peer.starts_with("tcp:") => format!("{} at {peer}", self.who),
            _ => self.who.clone(),
        }
    }
}

/// A caller, and what it may do. The gate attaches it to every call that it lets in.
#[derive(Debug, Clone)]
pub struct Caller {
    pub asker: AuditedCaller,
    pub scopes: TokenScopes,
    pub over_tcp: bool,
    /// Cancelled when the caller's token is revoked.
    pub gone: CancellationToken,
}

impl Caller {
    /// The caller of a call that was let in. A call that no gate has seen may do nothing.
    pub fn of(extensions: &Extensions) -> Self {
        let nobody = || Self {
            asker: ConnectionPeer::of(extensions).asker("nobody"),
            scopes: TokenScopes::default(),
            over_tcp: true,
            gone: CancellationToken::new(),
        };
        extensions.get::<Self>().cloned().unwrap_or_else(nobody)
    }

    /// The collector itself, for a purpose of its own.
    pub fn collector(what: &str) -> Self {
        let (asker, gone) = (AuditedCaller::collector(what), CancellationToken::new());
        Self { asker, scopes: TokenScopes::default(), over_tcp: false, gone }
    }

    /// Returns an error where the caller may not do this: `what` completes "may not …".
    pub fn require(&self, scope: TokenScope, what: &str) -> Result<()> {
        if self.scopes.has(scope) {
            return Ok(());
        }
        let has = if self.scopes == TokenScopes::default() { "nothing".into() } else { self.scopes.to_string() };
        Err(Error::denied(format!("{} may not {what}: its scopes are {has}", self.asker.who)).hint(format!(
            "a token for that is made on the collector's machine: probe token make NAME --scope {}",
            scope.name()
        )))
    }
}

/// The other end of a connection.
#[derive(Debug)]
pub(super) enum ConnectionPeer {
    /// A process on a unix socket: its uid and pid, where the kernel says them.
    Socket { uid: Option<u32>, pid: Option<i32> },
    /// A client over TCP.
    Tcp(Option<std::net::SocketAddr>),
}

impl ConnectionPeer {
    pub(super) fn of(extensions: &Extensions) -> Self {
        match extensions.get::<UdsConnectInfo>() {
            Some(peer) => {
                let peer = peer.peer_cred.as_ref();
                Self::Socket { uid: peer.map(|peer| peer.uid()), pid: peer.and_then(|peer| peer.pid()) }
            }
            None => Self::Tcp(extensions.get::<TcpConnectInfo>().and_then(|peer| peer.remote_addr())),
        }
    }

    /// Whether the peer may use the unix socket: only the collector's own user and root may, whatever the modes of files have
    /// become.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self, Self::Socket { uid: Some(uid), .. } if *uid == 0 || *uid == geteuid().as_raw())
    }

    pub(super) fn origin(&self) -> CallOrigin {
        match self {
            Self::Socket { uid, .. } => CallOrigin::Uid(*uid),
            Self::Tcp(address) => {
                CallOrigin::address(address.map_or(std::net::Ipv4Addr::UNSPECIFIED.into(), |address| address.ip()))
            }
        }
    }

    /// The peer as an audit row has it; `who` where the kernel does not say it.
    pub(super) fn asker(&self, who: &str) -> AuditedCaller {
        match self {
            Self::Socket { uid, pid } => AuditedCaller {
                who: uid.map_or_else(|| "unix".into(), |uid| format!("uid:{uid}")),
                peer: pid.map(|pid| format!("pid:{pid}")),
            },
            Self::Tcp(address) => {
                AuditedCaller { who: who.to_owned(), peer: address.map(|address| format!("tcp:{address}")) }
            }
        }
    }
}
