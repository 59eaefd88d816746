//! What clients may do over TCP: tokens with scopes, kept by their hashes in one file of the collector's user.
//!
//! A unix socket needs no token: its clients are identified by the kernel (SO_PEERCRED, [`crate::server`]). [`Tokens`] is what a
//! running collector sees of the file, and follows its changes; [`TokenFile`] is what `probe token` changes.

mod failures;
mod live;
mod scope;
mod shown;
mod tls;
mod tokens;

pub use failures::{AuthFailures, CallOrigin};
pub use live::{TokenGrant, Tokens};
pub use scope::{TokenScope, TokenScopes};
pub use shown::token;
pub use tls::TlsIdentity;
pub use tls::{TcpProtection, self_signed_pin};
pub use tokens::{TokenEntry, TokenFile};
