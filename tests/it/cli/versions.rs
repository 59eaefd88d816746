//! Agents of other versions against this collector: frames that were recorded are played, byte by byte, to the real binary.
//!
//! `agents/older.frames` is what an agent of 2026-11-21 11:03 sent (11 tables, none of steps' later columns),
//! `agents/newer.frames` what one of this version sent, made to look as a later one may: columns, tables, fields and
//! frames that this version does not know, and a column that has another type. [`recorder`] makes these files.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use futures::StreamExt;
use hyper_util::rt::TokioIo;
use probe_proto::v1::{self, AgentFrame, CollectorFrame, agent_frame, collector_frame};
use prost::Message;
use prost::bytes::{Buf, BufMut};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Endpoint;
use tonic::{Request, Status};

use crate::cli::support::Home;

#[path = "recorder.rs"]
mod recorder;

/// The frames of a file, as they are on the wire.
type Frames = Vec<Vec<u8>>;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/cli/agents").join(name)
}

fn frames(name: &str) -> Frames {
    let bytes = std::fs::read(file(name)).unwrap();
    let mut rest = bytes.as_slice();
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let length = prost::decode_length_delimiter(&mut rest).unwrap();
        let (frame, after) = rest.split_at(length);
        frames.push(frame.to_vec());
        rest = after;
    }
    frames
}

/// The frames as this version decodes them.
fn understood(frames: &Frames) -> Vec<agent_frame::Frame> {
    frames.iter().filter_map(|frame| AgentFrame::decode(frame.as_slice()).unwrap().frame).collect()
}

fn hello(frames: &Frames) -> v1::Hello {
    let first = understood(frames).into_iter().next();
    let Some(agent_frame::Frame::Hello(hello)) = first else { panic!("the first frame is {first:?}") };
    hello
}

/// Number of rows by table.
fn rows(frames: &Frames) -> std::collections::BTreeMap<String, u64> {
    let mut tables = Vec::new();
    let mut rows = std::collections::BTreeMap::new();
    for frame in understood(frames) {
        match frame {
            agent_frame::Frame::Hello(hello) => tables = hello.tables,
            agent_frame::Frame::Batch(batch) => {
                *rows.entry(tables[batch.table as usize].name.clone()).or_default() += u64::from(batch.rows);
            }
            _ => {}
        }
    }
    rows
}

/// A codec whose requests are bytes that are sent unchanged.
#[derive(Clone, Copy)]
struct AsTheyAre;

impl Codec for AsTheyAre {
    type Encode = Vec<u8>;
    type Decode = CollectorFrame;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for AsTheyAre {
    type Item = Vec<u8>;
    type Error = Status;
    fn encode(&mut self, frame: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&frame);
        Ok(())
    }
}

impl Decoder for AsTheyAre {
    type Item = CollectorFrame;
    type Error = Status;
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<CollectorFrame>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        CollectorFrame::decode(bytes).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

/// The answers of the collector to all frames.
#[derive(Debug, Default)]
struct Answers {
    acknowledged: u64,
    refused: Option<v1::Refused>,
    tables_refused: Vec<String>,
}

/// Sends the frames on one stream, and reads all answers of the collector.
fn play(socket: &Path, frames: Frames) -> Answers {
    play_until(socket, frames, 0)
}

/// Sends the frames on one stream that stays open until batch `seq` is acknowledged, which means that it is on disk.
fn play_until(socket: &Path, frames: Frames, seq: u64) -> Answers {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let socket = socket.to_owned();
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://collector").connect_with_connector(connector).await.unwrap();
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let path = "/probe.v1.Agent/Session".parse().unwrap();
        let (go, may_go) = tokio::sync::oneshot::channel::<()>();
        let mut go = Some(go);
        let end = futures::stream::once(may_go).filter_map(|_| std::future::ready(None));
        let answer = client.streaming(Request::new(futures::stream::iter(frames).chain(end)), path, AsTheyAre);
        let answer = answer.await.unwrap();
        let mut down = answer.into_inner();
        let mut answers = Answers::default();
        loop {
            if answers.acknowledged >= seq {
                drop(go.take());
            }
            let Some(frame) = down.message().await.unwrap() else { break };
            match frame.frame {
                Some(collector_frame::Frame::Ack(ack)) => answers.acknowledged = ack.seq,
                Some(collector_frame::Frame::Refused(refused)) => answers.refused = Some(refused),
                Some(collector_frame::Frame::TableRefused(refused)) => answers.tables_refused.push(refused.table),
                _ => {}
            }
        }
        answers
    })
}

/// `probe serve`, ended with the test.
struct Served {
    home: Home,
    child: Child,
    socket: PathBuf,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn start() -> Self {
        let home = Home::empty();
        let socket = home.path().join("s");
        let address = format!("unix:{}", socket.display());
        let mut command = home.command(["serve", "--name", "gpt", "--listen", &address]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            if let Some(status) = child.try_wait().unwrap() {
                let mut said = String::new();
                child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("it has ended with {status}: {said}");
            }
            assert!(std::time::Instant::now() < deadline, "it does not begin");
            std::thread::yield_now();
        }
        Self { home, child, socket }
    }

    /// The answer of the binary to a query, with one line for each row.
    fn ask(&self, sql: &str) -> Vec<String> {
        let address = format!("unix:{}", self.socket.display());
        let text = self.home.stdout([&address, "query", "--format", "csv", sql]);
        text.lines().skip(1).map(str::to_owned).collect()
    }

    /// Number of rows of a table.
    fn count(&self, table: &str) -> u64 {
        self.ask(&format!("SELECT COUNT(*) FROM {table}"))[0].parse().unwrap()
    }
}

#[test]
fn an_older_agents_rows_are_kept_and_what_it_lacks_is_null() {
    let older = frames("older.frames");
    let sent = rows(&older);
    assert!(sent["python.steps"] >= 5 && sent["python.torch_trace"] > 20, "{sent:?}");
    let served = Served::start();
    let answers = play(&served.socket, older.clone());
    assert!(answers.refused.is_none() && answers.tables_refused.is_empty(), "{answers:?}");
    for (table, rows) in &sent {
        assert_eq!(served.count(table), *rows, "{table}");
    }
    assert!(served.ask("SELECT * FROM probe.drops").is_empty());
    // Whose clock all times are of, and columns that came later.
    let columns: Vec<String> = hello(&older)
        .tables
        .iter()
        .find(|table| table.name == "python.steps")
        .unwrap()
        .columns
        .iter()
        .map(|column| column.name.clone())
        .collect();
    for column in ["warmup", "gpu_idle_max", "validation_time", "checkpoint_time", "kind"] {
        assert!(!columns.contains(&column.to_owned()));
        assert_eq!(served.ask(&format!("SELECT COUNT(*) FROM python.steps WHERE {column} IS NOT NULL")), ["0"]);
    }
    let whole = "SELECT COUNT(*) FROM python.steps WHERE duration > 0 AND abs(duration - (data_time + forward_time + backward_time + optimizer_time + comm_time + other_time)) < 1e-9";
    assert_eq!(served.ask(whole), [sent["python.steps"].to_string()]);
    assert_eq!(served.ask("SELECT DISTINCT stage FROM python.torch_trace ORDER BY 1"), ["backward", "forward", "step"]);
    let books = "SELECT state, rows_recorded = rows_stored, rows_dropped, problem FROM probe.agents";
    assert_eq!(served.ask(books), ["ended,true,0,"]);
}

#[test]
fn a_newer_agents_rows_are_kept_as_far_as_they_are_known_here_and_the_rest_is_counted() {
    let newer = frames("newer.frames");
    let sent = rows(&newer);
    let served = Served::start();
    let answers = play(&served.socket, newer);
    assert!(answers.refused.is_none(), "{answers:?}");
    assert_eq!(answers.tables_refused, [recorder::CHANGED], "{answers:?}");
    for (table, rows) in &sent {
        match table.as_str() {
            recorder::NOVEL => {}
            recorder::CHANGED => assert_eq!(served.count(table), 0),
            _ => assert_eq!(served.count(table), *rows, "{table}"),
        }
    }
    // Its columns are others' neighbours here, and each is what it was.
    let whole = "SELECT COUNT(*) FROM python.steps WHERE duration > 0 AND clock = 'host' AND abs(duration - (data_time + forward_time + backward_time + optimizer_time + comm_time + other_time)) < 1e-9";
    assert_eq!(served.ask(whole), [sent["python.steps"].to_string()]);
    let drops = served.ask("SELECT table_name, reason, at, rows FROM probe.drops ORDER BY table_name");
    let expected = [
        format!("{},table refused,collector,{}", recorder::CHANGED, sent[recorder::CHANGED]),
        format!("{},unknown table,collector,{}", recorder::NOVEL, sent[recorder::NOVEL]),
    ];
    assert_eq!(drops, expected);
    let problem = served.ask("SELECT problem FROM probe.agents").join("\n");
    for words in [
        "1 columns of python.steps are not known here and ignored: novel",
        "table python.novel is not known here",
        "rows of python.data_trace are not kept: column python.data_trace.wait: declared as a 64-bit integer",
    ] {
        assert!(problem.contains(words), "{words:?} is not in {problem:?}");
    }
    assert_eq!(served.ask("SELECT state, agent_version FROM probe.agents"), ["ended,9.0.0"]);
}

#[test]
fn an_agent_of_another_protocol_is_turned_away_in_words() {
    let served = Served::start();
    let mut other = hello(&frames("newer.frames"));
    other.protocol += 1;
    let hello = AgentFrame { frame: Some(agent_frame::Frame::Hello(other)) };
    let refused = play(&served.socket, vec![hello.encode_to_vec()]).refused.unwrap();
    assert!(!refused.retry && refused.message.contains("install a newer probe on the collector's side"), "{refused:?}");
    assert!(served.ask("SELECT * FROM probe.agents").is_empty());
}

/// The frames of the same agent as process `pid`, `rank` of two, whose clock is `ahead` nanoseconds ahead of the recorded one.
fn with_clock(frames: &Frames, ahead: i64, rank: i32) -> Frames {
    let tables = hello(frames).tables;
    let shifted = understood(frames).into_iter().map(|mut frame| {
        match &mut frame {
            agent_frame::Frame::Hello(hello) => {
                hello.unix_ns += ahead;
                hello.instance = format!("rank {rank}");
                hello.pid += rank as u32;
                (hello.rank, hello.world_size) = (Some(rank), Some(2));
            }
            agent_frame::Frame::Status(status) => status.unix_ns += ahead,
            agent_frame::Frame::Batch(batch) => {
                let columns = &tables[batch.table as usize].columns;
                for (column, packed) in columns.iter().zip(&mut batch.columns) {
                    if column.r#type() == v1::ColumnType::Timestamp && !packed.nulls {
                        packed.base += ahead;
                    }
                }
            }
            _ => {}
        }
        AgentFrame { frame: Some(frame) }.encode_to_vec()
    });
    shifted.collect()
}

#[test]
fn an_hour_that_a_clock_is_ahead_is_measured_and_kept() {
    const HOUR: i64 = 3_600_000_000_000;
    let older = frames("older.frames");
    let mut served = Served::start();
    // Each report as if it were made now, give or take the second that training took.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64;
    let ahead = now - hello(&older).unix_ns;
    let last = understood(&older).into_iter().filter_map(|frame| match frame {
        agent_frame::Frame::Batch(batch) => Some(batch.seq),
        _ => None,
    });
    let last = last.max().unwrap();
    play_until(&served.socket, with_clock(&older, ahead, 0), last);
    play_until(&served.socket, with_clock(&older, ahead + HOUR, 1), last);
    let offsets = "SELECT rank, abs(clock_offset - 3600 * rank) < 300 FROM probe.agents ORDER BY rank";
    assert_eq!(served.ask(offsets), ["0,true", "1,true"]);
    // A step's times are an hour apart as they are recorded, and together by the collector's clock.
    let apart = |time: &str| {
        format!(
            "SELECT MIN(apart) > 3000, MAX(apart) < 300 FROM (SELECT s.step, MAX({time}) - MIN({time}) AS apart FROM python.steps s JOIN probe.agents a USING (run, host, pid) GROUP BY s.step)"
        )
    };
    assert_eq!(served.ask(&apart("date_part('epoch', s.ts)")), ["true,false"]);
    assert_eq!(served.ask(&apart("date_part('epoch', s.ts) - a.clock_offset")), ["false,true"]);
    // After the collector's death too.
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let kept = served.home.stdout(["gpt", "query", "--format", "csv", offsets]);
    assert_eq!(kept.lines().skip(1).collect::<Vec<_>>(), ["0,true", "1,true"]);
}
