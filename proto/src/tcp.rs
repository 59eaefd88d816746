//! Connections to a collector over TCP, plain or with TLS to the one expected certificate.
//!
//! Neither an authority nor a name vouches for a collector: a client with the certificate's hash needs neither.

use std::io;
use std::pin::Pin as Pinned;
use std::sync::Arc;
use std::task::{Context, Poll};

use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio_rustls::{TlsConnector, rustls};

use crate::credentials::{CertificatePin, TcpSecurity};
use crate::loopback;

/// The name of HTTP/2 in the TLS handshake.
pub const ALPN: &[u8] = b"h2";

/// The pin of a certificate.
pub fn pin_of(certificate: &[u8]) -> CertificatePin {
    CertificatePin(Sha256::digest(certificate).into())
}

/// A connection to a collector.
#[derive(Debug)]
pub enum CollectorStream {
    /// Unencrypted.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects to `HOST:PORT`, or to the addresses that it resolves to.
///
/// # Errors
/// The network's; `PermissionDenied` where the certificate is not the expected one, or another user's process listens.
pub async fn connect(address: impl ToSocketAddrs, way: &TcpSecurity) -> io::Result<CollectorStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let pin = match way {
        TcpSecurity::Plain => return Ok(CollectorStream::Plain(stream)),
        TcpSecurity::Loopback => {
            loopback::check_owner(&stream)?;
            return Ok(CollectorStream::Plain(stream));
        }
        TcpSecurity::Tls(pin) => pin,
    };
    // The name is sent, and not used otherwise.
    let name = ServerName::try_from("probe").map_err(io::Error::other)?;
    match TlsConnector::from(Arc::new(config(pin)?)).connect(name, stream).await {
        Ok(stream) => Ok(CollectorStream::Tls(Box::new(stream))),
        Err(error) => Err(explained(error)),
    }
}

fn config(pin: &CertificatePin) -> io::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let only = Arc::new(PinnedVerifier { pin: pin.clone(), provider: Arc::clone(&provider) });
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(io::Error::other)?;
    let mut config = builder.dangerous().with_custom_certificate_verifier(only).with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}

fn explained(error: io::Error) -> io::Error {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(Error::General(message)) => io::Error::new(io::ErrorKind::PermissionDenied, message.clone()),
        Some(Error::InvalidMessage(_)) => io::Error::other("it does not speak TLS, which the pin asks for"),
        _ => error,
    }
}

/// Accepts one certificate and no other.
#[derive(Debug)]
struct PinnedVerifier {
    pin: CertificatePin,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = pin_of(certificate);
        if shown == self.pin {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::General(format!("its certificate is not the expected one: it has pin {shown}, not {}", self.pin)))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(rustls::PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl AsyncRead for CollectorStream {
    fn poll_read(self: Pinned<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pinned::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pinned::new(stream.as_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for CollectorStream {
    fn poll_write(self: Pinned<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pinned::new(stream).poll_write(cx, data),
            Self::Tls(stream) => Pinned::new(stream.as_mut()).poll_write(cx, data),
        }
    }
    fn poll_flush(self: Pinned<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pinned::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pinned::new(stream.as_mut()).poll_flush(cx),
        }
    }
    fn poll_shutdown(self: Pinned<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pinned::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pinned::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
