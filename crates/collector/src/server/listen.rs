//! Binds the collector's listeners, so that other users can't connect.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use probe_common::error::{Error, Result};
use probe_common::paths::{ListenAddress, SocketState, io_error_at, only_ours_to_change, socket_state};
use tokio::net::{TcpListener, UnixListener};

use crate::auth::TlsIdentity;

/// Longest path of a socket (bytes): the kernel's 108 with the zero at the end.
const MAX_PATH_LENGTH: usize = 107;

/// A listener and its address.
#[derive(Debug)]
pub enum BoundListener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener, SocketAddr, Option<TlsIdentity>),
}

/// What protects the listeners over TCP.
#[derive(Debug)]
pub struct ListenerSecurity {
    pub has_tokens: bool,
    pub insecure: bool,
    pub identity: Option<TlsIdentity>,
}

impl BoundListener {
    /// Listens at an address. TCP is refused where there is no token, and beyond this machine also without TLS.
    pub async fn bind(listen: &ListenAddress, locks: &ListenerSecurity) -> Result<Self> {
        match listen {
            ListenAddress::Unix(path) => unix(path),
            ListenAddress::Tcp(address) => tcp(*address, locks).await,
        }
    }

    /// The address. A port that was left to the system is the one that it chose.
    pub fn listen(&self) -> ListenAddress {
        match self {
            Self::Unix(_, file) => ListenAddress::Unix(file.path.clone()),
            Self::Tcp(_, address, _) => ListenAddress::Tcp(*address),
        }
    }
}

async fn tcp(address: SocketAddr, locks: &ListenerSecurity) -> Result<BoundListener> {
    if !locks.has_tokens {
        let what = format!("not listening on {address}: TCP needs a token, or everybody on this machine gets in");
        let pinned = if address.ip().is_loopback() { "" } else { " --tls-self-signed" };
        return Err(Error::usage(what).hint(format!(
            "make one first: probe token make NAME --scope query{pinned}; or leave TCP out: the run's unix socket is \
             always there"
        )));
    }
    if !address.ip().is_loopback() && locks.identity.is_none() && !locks.insecure {
        return Err(Error::usage(format!(
            "not listening on {address}: beyond this machine tokens and all data would be readable on the way"
        ))
        .hint(format!(
            "--tls-self-signed (or --tls-cert and --tls-key); or listen on 127.0.0.1:{} and forward it: ssh -L {0}:127.0.0.1:{0} HOST",
            address.port()
        )));
    }
    let failed = |error: io::Error| Error::failed(format!("not listening on {address}")).because(error);
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(BoundListener::Tcp(listener, address, locks.identity.clone()))
}

/// A socket that is removed when this is dropped, unless another process has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode of the socket.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn unix(path: &Path) -> Result<BoundListener> {
    let path = std::path::absolute(path).map_err(|error| io_error_at(path, error))?;
    let (Some(parent), Some(_)) = (path.parent(), path.file_name()) else {
        return Err(Error::usage(format!("{} is not a valid socket path", path.display())));
    };
    only_ours_to_change(parent)?;
    match socket_state(&path) {
        SocketState::Absent | SocketState::Stale => {}
        SocketState::Live => {
            return Err(Error::failed(format!("a collector is listening on {} already", path.display()))
                .hint("probe list shows it; stop it, or listen somewhere else"));
        }
        SocketState::Other => {
            return Err(Error::failed(format!("{} exists and is not a socket of probe", path.display()))
                .hint("remove it, or listen somewhere else"));
        }
    }
    // The socket is made in a directory that no other user can open, closed to others, and only then moved to its path: at no
    // moment can another user connect. Moving it also replaces a stale socket without a gap.
    let private = parent.join(format!(".{:08x}", random()?));
    let hidden = private.join("s");
    let longest = path.as_os_str().as_bytes().len().max(hidden.as_os_str().as_bytes().len());
    if longest > MAX_PATH_LENGTH {
        return Err(Error::usage(format!(
            "the path of a socket has at most {MAX_PATH_LENGTH} bytes, and {} has {longest}",
            path.display()
        ))
        .hint(format!("name a shorter directory in {}", probe_proto::env::PROBE_RUNTIME_DIR)));
    }
    // Fails where the directory is there already: it may belong to another user.
    fs::DirBuilder::new().mode(0o700).create(&private).map_err(|error| io_error_at(&private, error))?;
    let bound = (|| {
        let listener = UnixListener::bind(&hidden)?;
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600))?;
        let metadata = fs::symlink_metadata(&hidden)?;
        fs::rename(&hidden, &path)?;
        Ok((listener, (metadata.dev(), metadata.ino())))
    })();
    if bound.is_err() {
        let _ = fs::remove_file(&hidden);
    }
    let _ = fs::remove_dir(&private);
    let (listener, identity) = bound.map_err(|error: io::Error| io_error_at(&path, error))?;
    Ok(BoundListener::Unix(listener, SocketFile { path, identity }))
}

fn random() -> Result<u32> {
    getrandom::u32().map_err(|error| Error::failed("no random numbers").because(error))
}
