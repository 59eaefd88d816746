//! The certificate that a collector shows over TCP: one that it was given, or one that it makes and keeps.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::geteuid;
use probe_common::error::{Error, Result};
use probe_common::paths::{ProbeDirectories, host_name, io_error_at, private_directory};
use probe_proto::credentials::CertificatePin;
use probe_proto::tcp;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{Error as TlsError, ServerConfig};

/// Longest file that is read (bytes).
const MAX_FILE_BYTES: u64 = 1 << 20;

/// How TCP is protected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum TcpProtection {
    /// No TLS, which is allowed on loopback only.
    #[default]
    Loopback,
    /// No TLS, on any address.
    InsecureNoTls,
    /// TLS with a certificate that is made once and kept in the home.
    SelfSigned,
    /// TLS with this certificate (and those that vouch for it) and its key, PEM.
    Files {
        /// The certificate.
        certificate: PathBuf,
        /// The certificate's key, of mode 0600.
        key: PathBuf,
    },
}

/// A certificate with its acceptor.
#[derive(Clone)]
pub struct TlsIdentity {
    pub acceptor: TlsAcceptor,
    pub pin: CertificatePin,
}

impl std::fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsIdentity").field("pin", &self.pin).finish_non_exhaustive()
    }
}

impl TcpProtection {
    /// The certificate that the listeners show; None without TLS.
    ///
    /// # Errors
    /// A file is missing, is open to other users, or has no certificate and key.
    pub fn identity(&self, directories: &ProbeDirectories) -> Result<Option<TlsIdentity>> {
        match self {
            Self::Loopback | Self::InsecureNoTls => Ok(None),
            Self::SelfSigned => {
                let path = self_signed_path(directories);
                make_once(&path)?;
                let pem = secret(&path)?;
                load((&path, &pem), (&path, &pem)).map(Some)
            }
            Self::Files { certificate, key } => {
                let public = fs::read(certificate).map_err(|error| io_error_at(certificate, error))?;
                load((certificate, &public), (key, &secret(key)?)).map(Some)
            }
        }
    }
}

/// The pin of the certificate that `probe serve --tls-self-signed` shows, which is made where `wanted`; None where none
/// has been made.
///
/// # Errors
/// The file is open to other users, can't be made, or has no certificate.
pub fn self_signed_pin(directories: &ProbeDirectories, wanted: bool) -> Result<Option<CertificatePin>> {
    let path = self_signed_path(directories);
    if wanted {
        make_once(&path)?;
    }
    if !path.exists() {
        return Ok(None);
    }
    let pem = secret(&path)?;
    Ok(Some(tcp::pin_of(first_certificate(&path, &pem)?.as_ref())))
}

/// The path of the self-signed certificate and its key: one file, so that they are there together or not at all.
fn self_signed_path(directories: &ProbeDirectories) -> PathBuf {
    directories.home.join("tls").join("self-signed.pem")
}

fn first_certificate(path: &Path, pem: &[u8]) -> Result<CertificateDer<'static>> {
    let mut all = CertificateDer::pem_slice_iter(pem);
    let none = || Error::usage(format!("{} has no certificate (PEM)", path.display()));
    all.next().and_then(std::result::Result::ok).ok_or_else(none)
}

/// The identity of a certificate and its key, each with the file that it is from.
fn load((path, certificate): (&Path, &[u8]), (key_path, key): (&Path, &[u8])) -> Result<TlsIdentity> {
    let pin = tcp::pin_of(first_certificate(path, certificate)?.as_ref());
    let chain: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|_| Error::usage(format!("{} has a broken certificate", path.display())))?;
    // The error has nothing of the file's content, which may be secret.
    let no_key = |_| Error::usage(format!("{} has no private key (PEM)", key_path.display()));
    let key = PrivateKeyDer::from_pem_slice(key).map_err(no_key)?;
    let unusable = |error: TlsError| Error::usage(format!("{} can't be used for TLS", path.display())).because(error);
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&TLS13]).map_err(unusable)?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).map_err(unusable)?;
    config.alpn_protocols = vec![tcp::ALPN.to_vec()];
    Ok(TlsIdentity { acceptor: TlsAcceptor::from(Arc::new(config)), pin })
}

/// Reads a file that belongs to this user or root and is closed to others.
fn secret(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|error| io_error_at(path, error))?;
    let metadata = file.metadata().map_err(|error| io_error_at(path, error))?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
    if owner != geteuid().as_raw() && owner != 0 {
        return Err(Error::denied(format!("{} belongs to uid {owner}, not to you", path.display())));
    }
    if mode & 0o077 != 0 {
        let what = format!("{} holds a key and can be read or written by others (mode {mode:04o})", path.display());
        return Err(Error::denied(what).hint(format!("chmod 0600 {}", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(|error| io_error_at(path, error))?;
    Ok(bytes)
}

fn make_once(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let directory = path.parent().unwrap_or(path);
    private_directory(directory)?;
    let failed = |error: rcgen::Error| Error::failed("no certificate could be made").because(error);
    // The names are for clients of other programs; probe's clients check the pin.
    let host = std::iter::once(host_name());
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into_iter();
    let names: Vec<String> = names.chain(host.filter(|name| name.is_ascii() && !name.is_empty())).collect();
    let made = rcgen::generate_simple_self_signed(names).map_err(failed)?;
    let both = format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem());
    let written = (|| {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(both.as_bytes())?;
        file.as_file().sync_all()?;
        match file.persist_noclobber(path) {
            // Another collector was faster: its certificate is used.
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(error) => return Err(error.error),
            Ok(_) => {}
        }
        let public = directory.join("certificate.pem");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(public)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(made.cert.pem().as_bytes())
    })();
    written.map_err(|error: io::Error| io_error_at(path, error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use probe_common::error::ErrorKind;

    #[test]
    fn a_certificate_is_made_once_and_its_key_is_ours_alone() {
        let directory = tempfile::tempdir().unwrap();
        let directories =
            ProbeDirectories { home: directory.path().join("home"), runtime: directory.path().join("run") };
        assert_eq!(self_signed_pin(&directories, false).unwrap(), None);
        let first = TcpProtection::SelfSigned.identity(&directories).unwrap().unwrap();
        let again = TcpProtection::SelfSigned.identity(&directories).unwrap().unwrap();
        assert_eq!(first.pin, again.pin);
        assert_eq!(self_signed_pin(&directories, false).unwrap(), Some(first.pin.clone()));
        assert_eq!(self_signed_pin(&directories, true).unwrap(), Some(first.pin.clone()), "it is made once");
        let path = self_signed_path(&directories);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let certificate = path.with_file_name("certificate.pem");
        let public = fs::read_to_string(&certificate).unwrap();
        assert!(public.contains("CERTIFICATE") && !public.contains("PRIVATE"));
        let files = TcpProtection::Files { certificate: certificate.clone(), key: path.clone() };
        assert_eq!(files.identity(&directories).unwrap().unwrap().pin, first.pin);
        let keyless = TcpProtection::Files { certificate: certificate.clone(), key: certificate };
        assert_eq!(keyless.identity(&directories).unwrap_err().kind(), ErrorKind::Usage);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(TcpProtection::SelfSigned.identity(&directories).unwrap_err().kind(), ErrorKind::Denied);
    }
}
