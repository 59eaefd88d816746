//! The services on one port, and who may reach them.
//!
//! Every listener serves the same services. A unix socket lets in whoever the file system lets open it; over TCP every
//! call carries the token.

pub(crate) mod audit;
mod connections;
pub mod flight;
mod listen;
pub(crate) mod peer;
mod token;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::{InterceptorLayer, Routes};
use tonic::transport::Server;

pub use audit::Audit;
pub(crate) use listen::Bound;
pub use token::Token;

use connections::{MOST_CONNECTIONS, incoming};
use token::RequireToken;

/// HTTP/2's windows (bytes), so that an agent's batches do not wait for permission to be sent.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Calls that one connection may have open.
const STREAMS_PER_CONNECTION: u32 = 64;
/// Over TCP a peer that is gone without a word is noticed by this.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The listeners of a collector.
#[derive(Debug)]
pub(crate) struct Servers {
    tasks: Vec<JoinHandle<()>>,
    stop: CancellationToken,
}

impl Servers {
    /// Serves `routes` on every listener; `token` is what TCP asks for.
    pub(crate) fn start(listeners: Vec<Bound>, routes: &Routes, token: Option<&Token>) -> Self {
        let stop = CancellationToken::new();
        let limit = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let tasks = listeners.into_iter().map(|bound| {
            let (routes, token, stop, limit) = (routes.clone(), token.cloned(), stop.clone(), Arc::clone(&limit));
            tokio::spawn(serve(bound, routes, token, limit, stop))
        });
        Self { tasks: tasks.collect(), stop }
    }

    /// Takes no more calls, and lets those that are open end within `patience`. Sockets are removed.
    pub(crate) async fn stop(mut self, patience: Duration) {
        self.stop.cancel();
        let deadline = tokio::time::Instant::now() + patience;
        for mut task in std::mem::take(&mut self.tasks) {
            if tokio::time::timeout_at(deadline, &mut task).await.is_err() {
                task.abort();
                let _ = task.await;
            }
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Nobody waits: listeners end at once, and what is open with the runtime.
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn builder() -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
}

async fn serve(bound: Bound, routes: Routes, token: Option<Token>, limit: Arc<Semaphore>, stop: CancellationToken) {
    let ended = match bound {
        Bound::Unix(listener, file) => {
            let ended = builder()
                .add_routes(routes)
                .serve_with_incoming_shutdown(incoming(listener, limit), stop.cancelled_owned())
                .await;
            drop(file);
            ended
        }
        Bound::Tcp(listener, _) => {
            // Bound::bind refuses TCP without one.
            let Some(token) = token else { return };
            builder()
                .http2_keepalive_interval(Some(KEEPALIVE))
                .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
                .layer(InterceptorLayer::new(RequireToken(token)))
                .add_routes(routes)
                .serve_with_incoming_shutdown(incoming(listener, limit), stop.cancelled_owned())
                .await
        }
    };
    if let Err(error) = ended {
        tracing::warn!("a listener ended: {error}");
    }
}
