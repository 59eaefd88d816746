//! A collector in a directory of its own, and an agent whose frames the test chooses.

use std::fmt::Debug;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arrow::util::display::array_value_to_string;
use futures::TryStreamExt;
use hyper_util::rt::TokioIo;
use probe_collector::auth::TcpProtection;
use probe_collector::{Collector, CollectorOptions};
use probe_common::paths::{ListenAddress, ProbeDirectories};
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Time;
use probe_proto::tables::steps;
use probe_proto::v1::agent_client::AgentClient;
use probe_proto::v1::control_client::ControlClient;
use probe_proto::v1::{self, AgentFrame, CollectorFrame, agent_frame, collector_frame};
use probe_proto::{MAX_FRAME, PROTOCOL};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// The longest that anything may take; a test that waits longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A collector whose runs and sockets are in a temporary directory.
pub struct Bench {
    pub dir: tempfile::TempDir,
    pub directories: ProbeDirectories,
    pub collector: Collector,
}

pub fn options(run: &str) -> CollectorOptions {
    CollectorOptions {
        run: run.into(),
        command: "python train.py".into(),
        listen: Vec::new(),
        resume: false,
        may_rename: false,
        memory: 64 << 20,
        disk: 1 << 30,
        protection: TcpProtection::Loopback,
        allow_eval: false,
    }
}

pub fn directories() -> (tempfile::TempDir, ProbeDirectories) {
    let dir = tempfile::tempdir().unwrap();
    let directories = ProbeDirectories { home: dir.path().join("home"), runtime: dir.path().join("run") };
    (dir, directories)
}

impl Bench {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut CollectorOptions)) -> Self {
        let (dir, directories) = directories();
        let mut options = options("gpt");
        change(&mut options);
        let collector = Collector::start_in(&directories, options).await.unwrap();
        Self { dir, directories, collector }
    }

    pub fn socket(&self) -> PathBuf {
        self.directories.socket_for(self.collector.run())
    }

    pub async fn control(&self) -> ControlClient<Channel> {
        ControlClient::new(channel(&self.socket()).await)
    }

    /// Connects the agent of a single process that is in no process group.
    pub async fn agent(&self, instance: &str) -> FakeAgent {
        FakeAgent::connect(&self.socket(), hello(instance)).await.unwrap()
    }

    /// Connects the agent of rank `rank` of `world`, as process 100 + rank.
    pub async fn rank(&self, rank: i32, world: i32) -> FakeAgent {
        FakeAgent::connect(&self.socket(), hello_of_rank(rank, world)).await.unwrap()
    }

    /// Connects the agent of rank `rank` of `world`, which was attached to a training under way.
    pub async fn attached_rank(&self, rank: i32, world: i32) -> FakeAgent {
        let hello = v1::Hello { attached: true, ..hello_of_rank(rank, world) };
        FakeAgent::connect(&self.socket(), hello).await.unwrap()
    }

    /// All cells of a query's answer.
    pub async fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        query(self.collector.engine(), sql).await
    }

    /// Waits until a query gives exactly this answer.
    pub async fn until(&self, sql: &str, expected: &[&[&str]]) {
        let mut last = Vec::new();
        let seen = tokio::time::timeout(PATIENCE, async {
            loop {
                last = self.rows(sql).await;
                if last == expected {
                    return;
                }
                tokio::task::yield_now().await;
            }
        });
        if seen.await.is_err() {
            panic!("{sql}\nanswers {last:?}, not {expected:?}");
        }
    }
}

pub async fn query(engine: &probe_query::QueryEngine, sql: &str) -> Vec<Vec<String>> {
    let batches: Vec<_> = engine.query(sql, None).await.unwrap().try_collect().await.unwrap();
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let cell = |column| array_value_to_string(column, row).unwrap();
            rows.push(batch.columns().iter().map(|column| cell(column)).collect());
        }
    }
    rows
}

pub async fn channel(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap()
}

/// Waits for a result, and fails the test where it takes longer than [`PATIENCE`].
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("this takes too long")
}

/// The Hello of rank `rank` of `world`.
pub fn hello_of_rank(rank: i32, world: i32) -> v1::Hello {
    let mut hello = hello(&format!("rank-{rank}"));
    hello.pid = 100 + rank as u32;
    (hello.rank, hello.local_rank, hello.world_size) = (Some(rank), Some(rank), Some(world));
    hello
}

pub fn hello(instance: &str) -> v1::Hello {
    v1::Hello {
        protocol: PROTOCOL,
        instance: instance.into(),
        host: "node".into(),
        pid: 7,
        role: "trainer".into(),
        agent_version: "0.1.0".into(),
        python_version: "3.11".into(),
        torch_version: "2.15".into(),
        command: "python train.py".into(),
        tables: vec![steps::TABLE.wire_schema()],
        says_arrived: true,
        ..Default::default()
    }
}

/// An agent whose every frame the test chooses.
pub struct FakeAgent {
    pub up: mpsc::Sender<AgentFrame>,
    pub down: Streaming<CollectorFrame>,
    pub welcome: v1::Welcome,
    strings: StringTable,
    strings_sent: usize,
}

impl FakeAgent {
    /// Connects and sends Hello; Err is an answer that is not Welcome.
    pub async fn connect(socket: &Path, hello: v1::Hello) -> Result<Self, Farewell> {
        Self::over(channel(socket).await, hello).await
    }

    pub async fn over(channel: Channel, hello: v1::Hello) -> Result<Self, Farewell> {
        Self::over_with(channel, hello, None).await
    }

    /// Connects over `channel` and sends Hello, with a token where one is given.
    pub async fn over_with(channel: Channel, hello: v1::Hello, token: Option<&str>) -> Result<Self, Farewell> {
        let (up, frames) = mpsc::channel(64);
        up.send(frame(agent_frame::Frame::Hello(hello))).await.unwrap();
        let mut client = AgentClient::new(channel).max_encoding_message_size(2 * MAX_FRAME);
        let mut request = tonic::Request::new(ReceiverStream::new(frames));
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", token.parse().unwrap());
        }
        let mut down = soon(client.session(request)).await?.into_inner();
        match soon(down.message()).await?.and_then(|frame| frame.frame) {
            Some(collector_frame::Frame::Welcome(welcome)) => {
                Ok(Self { up, down, welcome, strings: StringTable::default(), strings_sent: 0 })
            }
            Some(collector_frame::Frame::Refused(refused)) => Err(Farewell::Refused(refused)),
            other => panic!("not Welcome: {other:?}"),
        }
    }

    pub async fn send(&self, what: agent_frame::Frame) {
        soon(self.up.send(frame(what))).await.unwrap();
    }

    /// The next frame from the collector.
    pub async fn next(&mut self) -> collector_frame::Frame {
        soon(self.down.message()).await.unwrap().expect("the stream has ended").frame.unwrap()
    }

    /// The error with which the stream ends; acknowledgements before it are skipped.
    pub async fn end(&mut self) -> Status {
        loop {
            match soon(self.down.message()).await {
                Ok(Some(CollectorFrame { frame: Some(collector_frame::Frame::Ack(_)) })) => {}
                Ok(other) => panic!("no error: {other:?}"),
                Err(status) => return status,
            }
        }
    }

    /// A batch of `rows` steps from `first` on, and the strings in it that have not been sent.
    pub fn steps(&mut self, seq: u64, first: i64, rows: i64) -> (Option<v1::Strings>, v1::Batch) {
        let mut builder = BatchBuilder::new(&steps::TABLE);
        for step in first..first + rows {
            let clock = self.strings.id("host");
            builder.push(step_row(step, clock));
        }
        let strings = self.strings.since(self.strings_sent);
        self.strings_sent = self.strings.len();
        (strings, v1::Batch { seq, recorded: (first + rows) as u64, ..builder.take() })
    }

    /// Sends a batch of steps, after the strings in it.
    pub async fn send_steps(&mut self, seq: u64, first: i64, rows: i64) {
        let (strings, batch) = self.steps(seq, first, rows);
        if let Some(strings) = strings {
            self.send(agent_frame::Frame::Strings(strings)).await;
        }
        self.send(agent_frame::Frame::Batch(batch)).await;
    }

    /// Waits until everything up to `seq` is acknowledged.
    pub async fn acknowledged(&mut self, seq: u64) {
        self.send(agent_frame::Frame::Flush(v1::Flush {})).await;
        loop {
            match self.next().await {
                collector_frame::Frame::Ack(ack) if ack.seq >= seq => return assert_eq!(ack.seq, seq),
                collector_frame::Frame::Ack(_) => {}
                other => panic!("not an acknowledgement: {other:?}"),
            }
        }
    }

    pub async fn status(&self, status: v1::Status) {
        self.send(agent_frame::Frame::Status(status)).await;
    }

    pub async fn reply(&self, id: u64, reply: v1::eval_reply::Reply) {
        self.send(agent_frame::Frame::Eval(v1::EvalReply { id, reply: Some(reply) })).await;
    }

    /// Sends Bye, and waits until the collector has received it.
    pub async fn bye(mut self) {
        self.send(agent_frame::Frame::Bye(v1::Bye { reason: "exit".into(), last_seq: 0 })).await;
        while let Ok(Some(_)) = soon(self.down.message()).await {}
    }
}

/// How a collector turns an agent away.
#[derive(Debug)]
pub enum Farewell {
    Refused(v1::Refused),
    Closed(Status),
}

impl From<Status> for Farewell {
    fn from(status: Status) -> Self {
        Self::Closed(status)
    }
}

impl Farewell {
    pub fn refused(self) -> v1::Refused {
        match self {
            Self::Refused(refused) => refused,
            Self::Closed(status) => panic!("not Refused: {status:?}"),
        }
    }
}

fn frame(frame: agent_frame::Frame) -> AgentFrame {
    AgentFrame { frame: Some(frame) }
}

fn step_row(step: i64, clock: probe_proto::table::Text) -> steps::Row {
    steps::Row {
        ts: Time(1_700_000_000_000_000_000 + step),
        forward_time: 0.5,
        backward_time: 0.5,
        other_time: 0.0,
        clock,
        ..steps::Row::of_a_second(step)
    }
}

/// A unix socket to listen on.
pub fn unix(path: impl Into<PathBuf>) -> ListenAddress {
    ListenAddress::Unix(path.into())
}

/// The error of a result that must be one.
pub fn refused<T: Debug>(result: probe_common::error::Result<T>) -> probe_common::error::Error {
    result.unwrap_err()
}
