//! Accepts a bounded number of connections, and goes on when one cannot be accepted.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::authority::ValidAuthority;
use super::forward::forward_writes;
use super::quota::{ConnectionQuota, RefusedConnection};

/// Longest time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a refused connection stays open, so that the client reads the reason.
const LEAVING: Duration = Duration::from_secs(1);
/// Pause before accepting again when the process is out of file descriptors.
const RETRY: Duration = Duration::from_millis(100);

/// A listener.
pub(super) trait Acceptor: Send + Unpin + 'static {
    type Io: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static;
    fn accept(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

impl Acceptor for UnixListener {
    type Io = ValidAuthority<UnixStream>;
    async fn accept(&self) -> io::Result<Self::Io> {
        Ok(ValidAuthority::new(Self::accept(self).await?.0))
    }
}

impl Acceptor for TcpListener {
    type Io = TcpStream;
    async fn accept(&self) -> io::Result<TcpStream> {
        let stream = Self::accept(self).await?.0;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Connections of a listener, without end and without errors. One too many is told so and closed at once.
pub(super) fn incoming<L: Acceptor>(
    listener: L,
    quota: Arc<ConnectionQuota>,
) -> impl Stream<Item = io::Result<CountedConnection<L::Io>>> {
    futures::stream::unfold((listener, quota), |(listener, quota)| async move {
        loop {
            match listener.accept().await {
                Ok(io) => match quota.acquire() {
                    Ok(permit) => return Some((Ok(CountedConnection { io, _permit: permit }), (listener, quota))),
                    Err(RefusedConnection { why, leaving }) => {
                        drop(leaving.map(|leaving| tokio::spawn(turn_away(io, why, leaving))))
                    }
                },
                Err(error) => {
                    tracing::warn!("a connection could not be accepted: {error}");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    })
}

/// Refuses a connection: says why, and waits a moment for the client to read it, because a client that writes to a closed
/// connection does not read any more.
async fn turn_away(mut io: impl AsyncRead + AsyncWrite + Unpin, why: String, _leaving: OwnedSemaphorePermit) {
    let heard = async {
        io.write_all(&go_away(&why)).await?;
        io.shutdown().await?;
        tokio::io::copy(&mut io, &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(LEAVING, heard).await;
}

/// Frames that end an HTTP/2 connection with a reason (RFC 9113, sections 4.1, 6.5 and 6.8): empty settings, and a GOAWAY that
/// says that no call was taken because there are too many. A client with TLS does not understand them; its connection just ends.
fn go_away(why: &str) -> Vec<u8> {
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    const ENHANCE_YOUR_CALM: u32 = 11;
    let frame = |kind: u8, content: &[u8]| {
        let length = (content.len() as u32).to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 0], content].concat()
    };
    let last_call = 0_u32.to_be_bytes();
    let content = [&last_call[..], &ENHANCE_YOUR_CALM.to_be_bytes(), why.as_bytes()].concat();
    [frame(SETTINGS, &[]), frame(GOAWAY, &content)].concat()
}

/// A connection that counts as open for as long as it lives.
#[derive(Debug)]
pub(super) struct CountedConnection<T> {
    io: T,
    _permit: OwnedSemaphorePermit,
}

impl<T: Connected> Connected for CountedConnection<T> {
    type ConnectInfo = T::ConnectInfo;
    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CountedConnection<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

forward_writes!(CountedConnection<T> to io);

/// Connections whose TLS handshake has succeeded. A handshake that takes too long is given up; none waits for another.
pub(super) fn secured(
    connections: impl Stream<Item = io::Result<CountedConnection<TcpStream>>>,
    acceptor: TlsAcceptor,
    most: usize,
) -> impl Stream<Item = io::Result<TlsConnection>> {
    let handshakes = connections.map(move |connection| {
        let acceptor = acceptor.clone();
        async move {
            let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(connection?)).await;
            handshake.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(TlsConnection)
        }
    });
    // As many as there can be connections, `most`.
    handshakes.buffer_unordered(most).filter_map(async |connection: io::Result<TlsConnection>| match connection {
        Ok(connection) => Some(Ok(connection)),
        Err(error) => {
            tracing::debug!("a TLS handshake failed: {error}");
            None
        }
    })
}

/// A connection with TLS.
#[derive(Debug)]
pub(super) struct TlsConnection(TlsStream<CountedConnection<TcpStream>>);

impl Connected for TlsConnection {
    type ConnectInfo = TcpConnectInfo;
    fn connect_info(&self) -> TcpConnectInfo {
        self.0.get_ref().0.connect_info()
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

forward_writes!(TlsConnection to 0);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use hyper_util::rt::TokioIo;
    use probe_proto::v1::DescribeCall;
    use probe_proto::v1::control_client::ControlClient;
    use tokio::io::AsyncReadExt;
    use tonic::transport::Endpoint;

    use super::*;
    use crate::events::RunEvents;
    use probe_store::journal::NewestRows;

    #[tokio::test]
    async fn one_connection_too_many_hears_why_and_an_ended_one_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let events = Arc::new(RunEvents::restore(&"gpt@1".into(), &NewestRows::default()));
        let quota = ConnectionQuota::new("on unix sockets", 1, &events);
        let mut incoming = Box::pin(incoming(UnixListener::bind(&path).unwrap(), quota));
        let mut first = UnixStream::connect(&path).await.unwrap();
        let mut served = incoming.next().await.unwrap().unwrap();
        for _ in 0..3 {
            let path = path.clone();
            let connector = tower::service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            });
            let channel = Endpoint::from_static("http://collector").connect_with_connector_lazy(connector);
            let mut client = ControlClient::new(channel);
            tokio::select! {
                _ = incoming.next() => panic!("there was no room"),
                answer = client.describe(DescribeCall {}) => {
                    let status = answer.unwrap_err();
                    let all = format!("{status:?}");
                    assert!(all.contains("1 connections are open on unix sockets"), "{all}");
                    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{all}");
                }
            }
        }
        let noted = probe_store::SystemTable::rows(&*events).unwrap();
        assert_eq!(noted.num_rows(), 2, "of three");
        let mut buffer = [0];
        served.write_all(b"x").await.unwrap();
        assert_eq!(first.read(&mut buffer).await.unwrap(), 1);
        drop(served);
        let _third = UnixStream::connect(&path).await.unwrap();
        assert!(incoming.next().await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn what_comes_over_tcp_keeps_nobody_out_on_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let events = Arc::new(RunEvents::restore(&"gpt@1".into(), &NewestRows::default()));
        let [unix, tcp] = ConnectionQuota::for_unix_and_tcp(true, &events);
        let taken: Vec<_> = (0..tcp.max_connections()).map(|_| tcp.acquire().unwrap()).collect();
        assert!(tcp.acquire().unwrap_err().why.contains("over TCP"), "{} are taken", taken.len());
        let path = dir.path().join("s");
        let mut incoming = Box::pin(incoming(UnixListener::bind(&path).unwrap(), unix));
        let (mut command, mut buffer) = (UnixStream::connect(&path).await.unwrap(), [0]);
        tokio::select! {
            served = incoming.next() => assert!(served.unwrap().is_ok()),
            _ = command.read(&mut buffer) => panic!("it was turned away"),
        }
    }
}
