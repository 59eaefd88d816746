//! A collector that does what a test says, and a source of rows that a test fills.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use probe_agent_native::address::CollectorAddress;
use probe_agent_native::python_text::PythonText;
use probe_agent_native::seconds::Seconds;
use probe_agent_native::uplink::link::Uplink;
use probe_agent_native::uplink::outbox::Outbox;
use probe_agent_native::uplink::record_source::RecordSource;
use probe_agent_native::uplink::settings::{Identity, Settings};
use probe_agent_native::uplink::starter::spawn;
use probe_proto::decode::{self, DecodedValues, ReceivedStrings};
use probe_proto::table::ColumnType;
use probe_proto::tables::steps;
use probe_proto::v1::agent_frame::Frame as Up;
use probe_proto::v1::agent_server::{Agent, AgentServer};
use probe_proto::v1::collector_frame::Frame as Down;
use probe_proto::v1::{self, AgentFrame, CollectorFrame};
use probe_trace::row_buffer::RowBuffer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

/// Longer than anything here takes.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Steps to be drained, one row each.
#[derive(Clone, Default)]
pub struct Rows(Arc<Mutex<VecDeque<i64>>>, Arc<Mutex<VecDeque<i64>>>);

impl Rows {
    /// Rows for these steps come with the next drain.
    pub fn put(&self, steps: std::ops::Range<i64>) {
        self.0.lock().unwrap().extend(steps);
    }
    /// Rows for these steps come once recording is finished.
    pub fn put_at_end(&self, steps: std::ops::Range<i64>) {
        self.1.lock().unwrap().extend(steps);
    }
    /// Whether everything put so far was drained.
    pub fn is_drained(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

impl RecordSource for Rows {
    fn drain(&mut self, sink: &mut RowBuffer) {
        for step in self.0.lock().unwrap().drain(..) {
            let clock = sink.strings.id(&format!("clock {}", step % 5));
            sink.push(steps::Row { other_time: 0.0, clock, ..steps::Row::of_a_second(step) });
        }
    }
    fn finish(&mut self) {
        let last: Vec<i64> = self.1.lock().unwrap().drain(..).collect();
        self.0.lock().unwrap().extend(last);
    }
}

/// Starts an uplink to a collector at `socket` that sends what comes from `rows`.
pub fn start(socket: &Path, rows: &Rows, capacity: usize) -> Arc<Uplink> {
    start_at(CollectorAddress::Unix(socket.to_owned()), rows, capacity, settings())
}

/// Settings of an uplink without a token.
pub fn settings() -> Settings {
    Settings {
        collector: String::new(),
        token_file: None,
        tls_pin: None,
        eval_over_tcp: false,
        no_snippets: None,
        patience_s: Seconds(Duration::ZERO),
        hint: "none".into(),
        revival: None,
        instance: "test".into(),
        run: "gpt".into(),
        host: "here".into(),
        command: PythonText("train.py".into()),
        python_version: "3".into(),
        torch_version: "2".into(),
        identity: Identity::default(),
    }
}

/// Starts an uplink to any address.
pub fn start_at(address: CollectorAddress, rows: &Rows, capacity: usize, settings: Settings) -> Arc<Uplink> {
    let link = Arc::new(Uplink::new(address, settings));
    spawn(Arc::clone(&link), Outbox::new(rows.clone(), capacity), drop).unwrap();
    link
}

struct Service(mpsc::Sender<Connection>);

#[tonic::async_trait]
impl Agent for Service {
    type SessionStream = ReceiverStream<Result<CollectorFrame, Status>>;

    async fn session(&self, request: Request<Streaming<AgentFrame>>) -> Result<Response<Self::SessionStream>, Status> {
        let authorization = request.metadata().get("authorization").and_then(|v| v.to_str().ok()).map(str::to_owned);
        let (down, frames) = mpsc::channel(64);
        let connection =
            Connection { up: request.into_inner(), down, strings: ReceivedStrings::default(), authorization };
        self.0.send(connection).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(frames)))
    }
}

/// A collector, which ends when it is dropped.
pub struct Collector {
    connections: mpsc::Receiver<Connection>,
    server: tokio::task::JoinHandle<()>,
}

impl Collector {
    /// Listens at `socket`, after it removes what was there.
    pub fn listen(socket: &Path) -> Self {
        let _ = std::fs::remove_file(socket);
        Self::serve(UnixListenerStream::new(UnixListener::bind(socket).unwrap()))
    }

    /// Listens on a port of this machine. Returns the port too.
    pub async fn listen_tcp() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (Self::serve(TcpListenerStream::new(listener)), address)
    }

    fn serve<S, IO>(incoming: S) -> Self
    where
        S: tokio_stream::Stream<Item = std::io::Result<IO>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let (sender, connections) = mpsc::channel(8);
        let service = AgentServer::new(Service(sender)).max_decoding_message_size(probe_proto::MAX_FRAME);
        let serve = tonic::transport::Server::builder().add_service(service);
        let server = tokio::spawn(async move {
            serve.serve_with_incoming(incoming).await.unwrap();
        });
        Self { connections, server }
    }

    /// The next agent that connects.
    pub async fn connection(&mut self) -> Connection {
        timeout(DEADLINE, self.connections.recv()).await.unwrap().unwrap()
    }

    /// The next agent that connects, after the Welcome.
    pub async fn welcomed(&mut self, acked_seq: u64) -> (Connection, v1::Hello) {
        let mut connection = self.connection().await;
        let Up::Hello(hello) = connection.frame().await.unwrap() else { panic!("the first frame was not Hello") };
        connection.say(Down::Welcome(v1::Welcome { run: "gpt@1".into(), acked_seq, ..Default::default() })).await;
        (connection, hello)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// The collector's side of one connection.
pub struct Connection {
    up: Streaming<AgentFrame>,
    down: mpsc::Sender<Result<CollectorFrame, Status>>,
    strings: ReceivedStrings,
    pub authorization: Option<String>,
}

impl Connection {
    pub async fn say(&self, frame: Down) {
        self.down.send(Ok(CollectorFrame { frame: Some(frame) })).await.unwrap();
    }

    /// The next frame; None when the agent has closed its side.
    pub async fn frame(&mut self) -> Option<Up> {
        let frame = timeout(DEADLINE, self.up.message()).await.unwrap().ok().flatten()?.frame.unwrap();
        if let Up::Strings(strings) = &frame {
            self.strings.extend(strings.clone()).unwrap();
        }
        Some(frame)
    }

    /// The next frame that `pick` wants; others are passed over.
    pub async fn find<T>(&mut self, pick: impl Fn(Up) -> Option<T>) -> T {
        loop {
            if let Some(found) = pick(self.frame().await.expect("the agent closed its side")) {
                return found;
            }
        }
    }

    /// The next batch.
    pub async fn batch(&mut self) -> v1::Batch {
        self.find(|frame| if let Up::Batch(batch) = frame { Some(batch) } else { None }).await
    }

    /// Steps of a batch, checked, its strings too.
    pub fn steps(&self, batch: &v1::Batch) -> Vec<i64> {
        let rows = decode::rows(batch).unwrap();
        let known = self.strings.values().len();
        for (column, packed) in steps::TABLE.columns.iter().zip(&batch.columns) {
            decode::column(column.name, column.kind, column.nullable, packed, rows, known).unwrap();
        }
        match decode::column("step", ColumnType::Int64, false, &batch.columns[0], rows, 0).unwrap().values {
            DecodedValues::Ints(values) => values,
            DecodedValues::Constant(value) => vec![value; rows],
            other => panic!("{other:?}"),
        }
    }
}

/// Waits until `condition` holds.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !condition() {
        assert!(begun.elapsed() < DEADLINE, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
