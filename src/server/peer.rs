//! Who calls: what an audit row says of it.

use tonic::Extensions;
use tonic::transport::server::{TcpConnectInfo, UdsConnectInfo};

/// Whoever asks for something, by the kernel's word where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asker {
    /// `uid:1000` on the unix socket, `token` over TCP.
    pub(crate) who: String,
    /// Where the call came from: `pid:4242`, `tcp:10.0.0.7:51234`; None where nothing says it.
    pub(crate) peer: Option<String>,
}

impl Asker {
    /// Of a call.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        if let Some(peer) = extensions.get::<UdsConnectInfo>() {
            return Self {
                who: peer.peer_cred.as_ref().map_or_else(|| "unix".into(), |peer| format!("uid:{}", peer.uid())),
                peer: peer.peer_cred.and_then(|peer| peer.pid()).map(|pid| format!("pid:{pid}")),
            };
        }
        let address = extensions.get::<TcpConnectInfo>().and_then(|peer| peer.remote_addr());
        // Over TCP no call comes this far without the token.
        Self { who: "token".into(), peer: address.map(|address| format!("tcp:{address}")) }
    }

    /// The collector itself, for a purpose of its own: `probe (hang)`.
    pub(crate) fn collector(what: &str) -> Self {
        Self { who: format!("probe ({what})"), peer: None }
    }

    /// The same, asking on behalf of something else: `uid:1000 (stack)`.
    #[must_use]
    pub(crate) fn within(&self, what: &str) -> Self {
        Self { who: format!("{} ({what})", self.who), peer: self.peer.clone() }
    }

    /// In one word or two, for sentences.
    pub(crate) fn name(&self) -> String {
        match &self.peer {
            Some(peer) if peer.starts_with("tcp:") => format!("{} at {peer}", self.who),
            _ => self.who.clone(),
        }
    }
}
