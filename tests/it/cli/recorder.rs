//! Makes the files of `agents/`: a stand-in for a collector that writes down what a real agent sends.
//!
//! ```text
//! PROBE_TEST_PYTHON=.venv/bin/python cargo test --workspace --test it -- --ignored record
//! ```
//!
//! It runs `agents/train.py` under that Python with whatever agent is installed there, and writes what that sent to
//! `agents/$PROBE_RECORD.frames` (each frame behind its length); with PROBE_RECORD=newer, the default, after it has made a
//! later version's of them. An older agent's: with the wheel of an older commit in that Python, or its package first in
//! PYTHONPATH.

use std::process::Command;

use probe_proto::v1::agent_server::{Agent, AgentServer};
use probe_proto::v1::{self, AgentFrame, CollectorFrame, agent_frame, collector_frame};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// A table that only a newer agent has, and one of which it has another type in a column.
pub(super) const NOVEL: &str = "python.novel";
pub(super) const CHANGED: &str = "python.data_trace";

struct Recorder(mpsc::Sender<Option<AgentFrame>>);

#[tonic::async_trait]
impl Agent for Recorder {
    type SessionStream = ReceiverStream<Result<CollectorFrame, Status>>;

    async fn session(&self, call: Request<Streaming<AgentFrame>>) -> Result<Response<Self::SessionStream>, Status> {
        let (down, answers) = mpsc::channel(64);
        let (seen, mut up) = (self.0.clone(), call.into_inner());
        tokio::spawn(async move {
            let say = |frame| down.send(Ok(CollectorFrame { frame: Some(frame) }));
            while let Ok(Some(frame)) = up.message().await {
                let answer = match &frame.frame {
                    Some(agent_frame::Frame::Hello(_)) => {
                        Some(collector_frame::Frame::Welcome(v1::Welcome { run: "gpt".into(), ..Default::default() }))
                    }
                    Some(agent_frame::Frame::Batch(batch)) => {
                        Some(collector_frame::Frame::Ack(v1::Ack { seq: batch.seq }))
                    }
                    _ => None,
                };
                seen.send(Some(frame)).await.unwrap();
                if let Some(answer) = answer {
                    say(answer).await.unwrap();
                }
            }
            seen.send(None).await.unwrap();
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

/// The messages that an agent sends on its one stream.
async fn record(python: &str) -> Vec<AgentFrame> {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let (seen, mut frames) = mpsc::channel(64);
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let server = tonic::transport::Server::builder().add_service(AgentServer::new(Recorder(seen)));
    let server = tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    let script = std::fs::read_to_string(super::file("train.py")).unwrap();
    let mut training = Command::new(python)
        .args(["-c", &script])
        .env("PROBE", "1")
        .env("PROBE_COLLECTOR", format!("unix:{}", socket.display()))
        .env("OMP_NUM_THREADS", "1")
        .spawn()
        .unwrap();
    let mut all = Vec::new();
    while let Some(frame) = frames.recv().await.unwrap() {
        all.push(anonymous(frame));
    }
    assert!(training.wait().unwrap().success());
    server.abort();
    all
}

/// Removes values that depend on this machine.
fn anonymous(mut frame: AgentFrame) -> AgentFrame {
    if let Some(agent_frame::Frame::Hello(hello)) = &mut frame.frame {
        (hello.host, hello.command, hello.instance) = ("node".into(), "python train.py".into(), "recorded".into());
        hello.pid = 4_000_000;
    }
    frame
}

/// Appends a field that this version does not know to a message: its number, and three bytes.
fn with_unknown_field(mut message: Vec<u8>, number: u32) -> Vec<u8> {
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut message);
    message.extend([3, b'n', b'e', b'w']);
    message
}

/// A frame around the bytes of a message.
fn framed(number: u32, message: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut frame);
    prost::encoding::encode_varint(message.len() as u64, &mut frame);
    frame.extend(message);
    frame
}

/// The frames as a later version may send them.
fn made_newer(frames: Vec<AgentFrame>) -> Vec<Vec<u8>> {
    let column = |name: &str, kind: i32| v1::ColumnSchema { name: name.into(), r#type: kind };
    let mut tables = Vec::new();
    let mut newest = 0;
    let mut made = Vec::new();
    for frame in frames {
        match frame.frame.unwrap() {
            agent_frame::Frame::Hello(mut hello) => {
                hello.agent_version = "9.0.0".into();
                // In front of all others, and of a type that there is not.
                let steps = hello.tables.iter_mut().find(|table| table.name == "python.steps").unwrap();
                steps.columns.insert(0, column("novel", 77));
                let changed = hello.tables.iter_mut().find(|table| table.name == CHANGED).unwrap();
                let time = changed.columns.iter_mut().find(|column| column.name == "wait").unwrap();
                time.r#type = v1::ColumnType::Int64 as i32;
                let columns = vec![column("a", v1::ColumnType::Int64 as i32)];
                hello.tables.push(v1::TableSchema { name: NOVEL.into(), columns });
                tables = hello.tables.clone();
                made.push(framed(1, &with_unknown_field(hello.encode_to_vec(), 500)));
            }
            agent_frame::Frame::Batch(mut batch) => {
                if tables[batch.table as usize].name == "python.steps" {
                    let data = vec![9; 3 * batch.rows as usize];
                    batch.columns.insert(0, v1::Column { data: data.into(), width: 3, ..Default::default() });
                }
                newest = batch.seq;
                made.push(framed(3, &with_unknown_field(batch.encode_to_vec(), 900)));
            }
            agent_frame::Frame::Status(status) => {
                made.push(framed(4, &with_unknown_field(status.encode_to_vec(), 700)));
            }
            agent_frame::Frame::Bye(bye) => {
                let table = tables.len() as u32 - 1;
                let columns = vec![v1::Column { base: 7, ..Default::default() }];
                let batch = v1::Batch { seq: newest + 1, table, rows: 5, recorded: 5, columns };
                made.push(framed(3, &batch.encode_to_vec()));
                // A kind of frame that there is not.
                made.push(framed(60, b"new"));
                let bye = v1::Bye { last_seq: newest + 1, ..bye };
                made.push(framed(6, &bye.encode_to_vec()));
            }
            other => made.push(AgentFrame { frame: Some(other) }.encode_to_vec()),
        }
    }
    made
}

#[test]
#[ignore = "writes a file of tests/it/cli/agents, from a real training run"]
fn record_an_agent() {
    let python = std::env::var("PROBE_TEST_PYTHON").expect("PROBE_TEST_PYTHON: a Python with torch and an agent");
    let name = std::env::var("PROBE_RECORD").unwrap_or_else(|_| "newer".into());
    let frames = tokio::runtime::Runtime::new().unwrap().block_on(record(&python));
    let made = match name.as_str() {
        "newer" => made_newer(frames),
        _ => frames.iter().map(Message::encode_to_vec).collect(),
    };
    let mut bytes = Vec::new();
    for frame in made {
        prost::encode_length_delimiter(frame.len(), &mut bytes).unwrap();
        bytes.extend(frame);
    }
    std::fs::write(super::file(&format!("{name}.frames")), bytes).unwrap();
}
