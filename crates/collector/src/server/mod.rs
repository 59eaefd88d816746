//! The servers of a collector.
//!
//! Every listener serves the same services, and [`gate`] stands before them: a unix socket lets in the collector's own user and
//! root, by the kernel's word; over TCP every call carries a token.

pub mod audit;
mod authority;
mod connections;
pub mod flight;
mod forward;
mod gate;
mod listen;
pub mod pace;
pub mod peer;
mod plans;
mod quota;
mod refused;
mod revoked;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tower::layer::util::{Identity, Stack};

pub use audit::QueryAudit;
pub use gate::AccessChecks;
pub use listen::{BoundListener, ListenerSecurity};

pub use quota::raise_file_limit;

use crate::background::keep_running;
use connections::{incoming, secured};
use gate::GateLayer;
use quota::ConnectionQuota;

/// HTTP/2's windows (bytes), so that an agent's batches do not wait for permission to be sent.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Most calls that one connection may have open.
const MAX_STREAMS_PER_CONNECTION: u32 = 64;
/// How often a silent peer over TCP is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The listeners of a collector.
#[derive(Debug)]
pub struct Servers {
    tasks: Vec<JoinHandle<()>>,
    stop: CancellationToken,
}

impl Servers {
    /// Serves `routes` on every listener, behind the gate.
    pub fn start(listeners: Vec<BoundListener>, routes: &Routes, gate: &Arc<AccessChecks>) -> Self {
        let stop = CancellationToken::new();
        let over_tcp = listeners.iter().any(|bound| matches!(bound, BoundListener::Tcp(..)));
        let [unix, tcp] = ConnectionQuota::for_unix_and_tcp(over_tcp, gate.events());
        let watch = over_tcp.then(|| {
            let (gate, stop) = (Arc::clone(gate), stop.clone());
            tokio::spawn(async move {
                let watch =
                    keep_running("the watch for tokens that are taken back", gate.events(), || gate.watch_tokens());
                stop.run_until_cancelled(watch).await.unwrap_or_default();
            })
        });
        let tasks = listeners.into_iter().map(|bound| {
            let quota = Arc::clone(if matches!(bound, BoundListener::Tcp(..)) { &tcp } else { &unix });
            tokio::spawn(serve(bound, routes.clone(), Arc::clone(gate), quota, stop.clone()))
        });
        Self { tasks: tasks.chain(watch).collect(), stop }
    }

    /// Takes no more calls, lets those that are open end within `patience`, and removes sockets.
    pub async fn stop(mut self, patience: Duration) {
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
        // Listeners end at once, and calls that are open end with the runtime.
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn builder(gate: Arc<AccessChecks>) -> Server<Stack<GateLayer, Identity>> {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .layer(GateLayer(gate))
}

async fn serve(
    bound: BoundListener,
    routes: Routes,
    gate: Arc<AccessChecks>,
    quota: Arc<ConnectionQuota>,
    stop: CancellationToken,
) {
    let stop = stop.cancelled_owned();
    let ended = match bound {
        BoundListener::Unix(listener, file) => {
            let mut server = builder(gate);
            let ended = server.add_routes(routes).serve_with_incoming_shutdown(incoming(listener, quota), stop).await;
            drop(file);
            ended
        }
        BoundListener::Tcp(listener, _, identity) => {
            let server = builder(gate).http2_keepalive_interval(Some(KEEPALIVE));
            let mut server = server.http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT));
            let most = quota.max_connections();
            let connections = incoming(listener, quota);
            let router = server.add_routes(routes);
            match identity {
                None => router.serve_with_incoming_shutdown(connections, stop).await,
                Some(identity) => {
                    let connections = secured(connections, identity.acceptor, most);
                    router.serve_with_incoming_shutdown(connections, stop).await
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::warn!("a listener ended: {error}");
    }
}
