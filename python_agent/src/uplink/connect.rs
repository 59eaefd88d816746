//! A connection to the collector.

use std::time::Duration;

use hyper_util::rt::TokioIo;
use probe_proto::credentials::Credentials;
use probe_proto::v1::agent_client::AgentClient;
use probe_proto::{env, tcp};
use tokio::net::UnixStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::address::CollectorAddress;

use super::resolve::ResolvedAddresses;
use super::settings::Settings;

/// An attempt to connect fails after this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a collector, and the header that it requires.
#[derive(Debug)]
pub struct CollectorConnection {
    /// The client for one session: it is dropped when that ends, so that the channel's own reconnecting is never used.
    pub client: AgentClient<Channel>,
    /// The token; None where the collector is not reached over TCP.
    pub authorization: Option<MetadataValue<Ascii>>,
}

/// Connects to the collector. On this thread nothing may read the environment, which the program may be changing: the values that
/// are needed are in the settings.
pub async fn connect(
    address: &CollectorAddress,
    settings: &Settings,
    resolved: &mut ResolvedAddresses,
) -> Result<CollectorConnection, String> {
    // The name is for the HTTP/2 header only; the connector decides which address is used.
    let endpoint = Endpoint::from_static("http://collector").connect_timeout(CONNECT_TIMEOUT);
    let (channel, authorization) = match address.clone() {
        CollectorAddress::Unix(path) => {
            let connector = service_fn(move |_| {
                let path = path.clone();
                async move {
                    let stream = UnixStream::connect(path).await?;
                    check_owner(&stream)?;
                    let_be_read(&stream);
                    Ok::<_, std::io::Error>(TokioIo::new(stream))
                }
            });
            (endpoint.connect_with_connector(connector).await, None)
        }
        CollectorAddress::Tcp(host) => {
            let file = settings.token_file.as_deref().ok_or_else(|| {
                format!(
                    "{host} asks for a token; hint: {} names the file of one with scope ingest",
                    env::PROBE_TOKEN_FILE
                )
            })?;
            let credentials = Credentials::read(file).map_err(|problem| problem.to_string())?;
            let way = credentials.way(&host, settings.tls_pin.as_deref()).map_err(|problem| problem.to_string())?;
            let mut authorization: MetadataValue<Ascii> =
                credentials.authorization().parse().map_err(|_| "the token can't be in a header")?;
            authorization.set_sensitive(true);
            let addresses = resolved.addresses(&host).await.map_err(|error| error.to_string())?;
            let connector = service_fn(move |_| {
                let (addresses, way) = (addresses.clone(), way.clone());
                async move { tcp::connect(addresses.as_slice(), &way).await.map(TokioIo::new) }
            });
            let endpoint = endpoint.http2_keep_alive_interval(Duration::from_secs(10)).keep_alive_while_idle(true);
            (endpoint.connect_with_connector(connector).await, Some(authorization))
        }
    };
    let channel = channel.map_err(|error| innermost(&error))?;
    let frame = probe_proto::MAX_FRAME;
    let client = AgentClient::new(channel).max_decoding_message_size(frame).max_encoding_message_size(frame);
    Ok(CollectorConnection { client, authorization })
}

/// Checks that the collector belongs to this process's user or to root, because it can have code run in this process.
fn check_owner(stream: &UnixStream) -> std::io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    if uid == 0 || uid == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    let what = format!("the collector there belongs to uid {uid}, not to you: it could run code in this process");
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, what))
}

/// Lets the collector at the other end, and no other process, read this one's memory where the kernel asks for that
/// (Yama's ptrace_scope 1): it shows stacks of a process that can't answer any more.
fn let_be_read(stream: &UnixStream) {
    let Some(pid) = stream.peer_cred().ok().and_then(|peer| peer.pid()) else { return };
    // SAFETY: the call takes numbers only and changes nothing but who may trace this process. Without Yama it fails,
    // and nothing needs to be allowed.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, pid as libc::c_ulong, 0, 0, 0) };
}

/// The innermost cause of an error, which explains more than "transport error".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
