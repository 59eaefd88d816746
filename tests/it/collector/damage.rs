//! Whatever frames arrive, the collector stays up and serves other connections.

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use probe_proto::v1::{self, AgentFrame, agent_frame};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status};

use crate::collector::support::{Bench, FakeAgent, PATIENCE, channel, hello};

/// A codec that sends messages as given bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// Sends frames unchanged, and waits until the collector has ended the stream.
async fn speak(bench: &Bench, frames: Vec<Bytes>) {
    let mut grpc = tonic::client::Grpc::new(channel(&bench.socket()).await);
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static("/probe.v1.Agent/Session");
    let request = Request::new(tokio_stream::iter(frames));
    let Ok(answer) = grpc.streaming(request, path, Raw).await else { return };
    let mut answers = answer.into_inner();
    while let Ok(Some(_)) = answers.message().await {}
}

fn encoded(frame: agent_frame::Frame) -> Vec<u8> {
    AgentFrame { frame: Some(frame) }.encode_to_vec()
}

/// Frames of a session that begins well, some of them damaged, and bytes that are no frames.
fn frames(sound: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<Bytes>> {
    let damage = (0..sound.len(), any::<prop::sample::Index>(), any::<u8>(), 0..3_u8);
    let garbage = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..3);
    (prop::collection::vec(damage, 0..6), garbage, any::<bool>()).prop_map(move |(damage, garbage, greet)| {
        let mut frames = sound.clone();
        for (index, at, byte, kind) in damage {
            // Mostly after Hello, so that there is a session to harm.
            let frame = &mut frames[if greet { index.max(1) } else { index }];
            if frame.is_empty() {
                continue;
            }
            let at = at.index(frame.len());
            match kind {
                0 => frame[at] = byte,
                1 => frame.truncate(at),
                _ => frame.insert(at, byte),
            }
        }
        frames.into_iter().chain(garbage).map(Bytes::from).collect()
    })
}

#[test]
fn no_bytes_harm_anybody_but_their_sender() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (bench, mut witness, sound) = runtime.block_on(async {
        let bench = Bench::start().await;
        let witness = bench.agent("witness").await;
        let mut model: FakeAgent = bench.agent("model").await;
        let (strings, batch) = model.steps(1, 0, 40);
        let status = v1::Status {
            step: 1,
            drops: vec![v1::Drop { table: "python.steps".into(), reason: "ring full".into(), rows: 1 }],
            layers: [("forward".into(), "tp_call".into())].into(),
            ..Default::default()
        };
        let reply = v1::EvalReply { id: 1, reply: Some(v1::eval_reply::Reply::Armed(v1::Armed { step: 1 })) };
        let sound = vec![
            encoded(agent_frame::Frame::Hello(hello("damaged"))),
            encoded(agent_frame::Frame::Strings(strings.unwrap())),
            encoded(agent_frame::Frame::Batch(batch.clone())),
            encoded(agent_frame::Frame::Status(status)),
            encoded(agent_frame::Frame::Eval(reply)),
            encoded(agent_frame::Frame::Hello(hello("damaged"))),
            encoded(agent_frame::Frame::Batch(v1::Batch { seq: 2, ..batch })),
            encoded(agent_frame::Frame::Bye(v1::Bye::default())),
        ];
        model.bye().await;
        (bench, witness, sound)
    });
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let mut seq = 0;
    let seq = tokio::sync::Mutex::new(&mut seq);
    let witness = tokio::sync::Mutex::new(&mut witness);
    let result = runner.run(&frames(sound), |frames| {
        runtime.block_on(async {
            tokio::time::timeout(PATIENCE, speak(&bench, frames)).await.expect("the stream is ended");
            let (mut seq, mut witness) = (seq.lock().await, witness.lock().await);
            **seq += 1;
            let step = **seq as i64;
            witness.send_steps(**seq, step, 1).await;
            witness.acknowledged(**seq).await;
        });
        Ok(())
    });
    result.unwrap();
    runtime.block_on(async {
        // And what it holds can be asked for.
        assert_eq!(
            bench.rows("SELECT COUNT(*) FROM python.steps WHERE pid = 7 AND step >= 0 AND step <= 1").await.len(),
            1
        );
        assert_eq!(bench.rows("SELECT state FROM probe.agents ORDER BY first_seen LIMIT 1").await, [["live"]]);
        assert!(!bench.rows("SELECT * FROM probe.agents").await.is_empty());
        assert!(!bench.rows("SELECT * FROM probe.drops").await.is_empty());
        bench.rows("SELECT * FROM python.steps").await;
    });
}
