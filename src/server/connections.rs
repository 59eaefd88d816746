//! Accepting connections: a bounded number of them, and going on when one cannot be accepted.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Connections that may be open over all listeners.
pub(super) const MOST_CONNECTIONS: usize = 512;
/// A handshake that takes longer is none.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Out of file descriptors, it is tried again after this long.
const RETRY: Duration = Duration::from_millis(100);

/// Something that connections come from.
pub(super) trait Accept: Send + Unpin + 'static {
    type Io: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static;
    fn accept(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

impl Accept for UnixListener {
    type Io = UnixStream;
    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(Self::accept(self).await?.0)
    }
}

impl Accept for TcpListener {
    type Io = TcpStream;
    async fn accept(&self) -> io::Result<TcpStream> {
        let stream = Self::accept(self).await?.0;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Connections of a listener, without end and without errors. One too many is closed at once.
pub(super) fn incoming<L: Accept>(
    listener: L,
    limit: Arc<Semaphore>,
) -> impl Stream<Item = io::Result<Counted<L::Io>>> {
    futures::stream::unfold((listener, limit), |(listener, limit)| async move {
        loop {
            match listener.accept().await {
                Ok(io) => match Arc::clone(&limit).try_acquire_owned() {
                    Ok(permit) => return Some((Ok(Counted { io, _permit: permit }), (listener, limit))),
                    Err(_) => tracing::warn!("closed a connection: {MOST_CONNECTIONS} are open"),
                },
                Err(error) => {
                    tracing::warn!("a connection could not be accepted: {error}");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    })
}

/// A connection that counts as open for as long as it lives.
#[derive(Debug)]
pub(super) struct Counted<T> {
    io: T,
    _permit: OwnedSemaphorePermit,
}

impl<T: Connected> Connected for Counted<T> {
    type ConnectInfo = T::ConnectInfo;
    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, data)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, data)
    }
    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

/// Connections with TLS, those that got so far. A handshake that takes too long is given up; none waits for another.
pub(super) fn secured(
    connections: impl Stream<Item = io::Result<Counted<TcpStream>>>,
    acceptor: TlsAcceptor,
) -> impl Stream<Item = io::Result<Secured>> {
    let handshakes = connections.map(move |connection| {
        let acceptor = acceptor.clone();
        async move {
            let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(connection?)).await;
            handshake.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(Secured)
        }
    });
    // As many as there can be connections.
    handshakes.buffer_unordered(MOST_CONNECTIONS).filter_map(async |connection: io::Result<Secured>| match connection {
        Ok(connection) => Some(Ok(connection)),
        Err(error) => {
            tracing::debug!("a TLS handshake failed: {error}");
            None
        }
    })
}

/// A connection with TLS.
#[derive(Debug)]
pub(super) struct Secured(TlsStream<Counted<TcpStream>>);

impl Connected for Secured {
    type ConnectInfo = TcpConnectInfo;
    fn connect_info(&self) -> TcpConnectInfo {
        self.0.get_ref().0.connect_info()
    }
}

impl AsyncRead for Secured {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn one_connection_too_many_is_closed_and_an_ended_one_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut incoming = Box::pin(incoming(UnixListener::bind(&path).unwrap(), Arc::new(Semaphore::new(1))));
        let mut first = UnixStream::connect(&path).await.unwrap();
        let mut served = incoming.next().await.unwrap().unwrap();
        let mut second = UnixStream::connect(&path).await.unwrap();
        let mut buffer = [0];
        tokio::select! {
            _ = incoming.next() => panic!("there was no room"),
            read = second.read(&mut buffer) => assert_eq!(read.unwrap(), 0, "closed"),
        }
        served.write_all(b"x").await.unwrap();
        assert_eq!(first.read(&mut buffer).await.unwrap(), 1);
        drop(served);
        let _third = UnixStream::connect(&path).await.unwrap();
        assert!(incoming.next().await.unwrap().is_ok());
    }
}
