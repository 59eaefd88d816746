//! How many `python.torch_trace` rows a second one connection brings in: `make bench-ingest`.
//!
//! A collector on a unix socket and a client in one process, sharing the machine's cores. The client sends batches that
//! were packed beforehand (8192 rows; 128 modules, three stages, 19 columns as an agent sends them) as fast as the
//! stream takes them, until every one is acknowledged. Bound: 5 M rows/s in release.
//! PROBE_HOME and PROBE_RUNTIME_DIR must name throw-away directories, as the make target does.

#![expect(clippy::print_stdout, reason = "a benchmark says what it measured")]

use std::time::{Duration, Instant};

use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{Table, Time};
use probe_proto::tables::torch_trace::{Row, TABLE};
use probe_proto::v1::{self, agent_frame, collector_frame};

const ROWS: usize = 8192;
const BATCHES: u64 = 2000;

fn batch(strings: &mut StringTable, first_step: i64) -> v1::Batch {
    let mut builder = BatchBuilder::new(&TABLE);
    let cpu = strings.id("cpu");
    for n in 0..ROWS {
        let (module, stage) = (n % 128, ["forward", "backward", "step"][n / 128 % 3]);
        let own = 1e-5 * (1.0 + (n * 2654435761 % 1000) as f64 / 1000.0);
        builder.push(Row {
            step: first_step + (n / 384) as i64,
            micro_step: 0,
            call_index: 0,
            module: Some(strings.id(&format!("layers.{}.attn.{}", module / 8, module % 8))),
            module_type: Some(strings.id(["Linear", "LayerNorm", "GELU", "Block"][module % 4])),
            depth: (module % 4) as i32,
            stage: strings.id(stage),
            ts: Time(1_700_000_000_000_000_000 + n as i64 * 12_345),
            duration: Some(own),
            total_duration: Some(own * 1.5),
            host_duration: own,
            allocated: None,
            allocated_delta: None,
            max_allocated: None,
            reserved: None,
            input_shape: None,
            device: Some(cpu),
            compiled: false,
            thread: 4242,
        });
    }
    builder.take()
}

fn hello(table: &'static Table) -> v1::Hello {
    v1::Hello {
        protocol: probe_proto::PROTOCOL,
        instance: "bench".into(),
        host: "bench".into(),
        pid: std::process::id(),
        role: "trainer".into(),
        tables: vec![table.wire_schema()],
        ..Default::default()
    }
}

fn frame(frame: agent_frame::Frame) -> v1::AgentFrame {
    v1::AgentFrame { frame: Some(frame) }
}

async fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let socket = probe::paths::runtime_dir()?.join("bench.sock");
    let options = probe::collector::Options {
        run: "bench".into(),
        command: String::new(),
        listen: vec![probe::paths::Listen::Unix(socket.clone())],
        resume: false,
        memory: 2 << 30,
        disk: 10 << 30,
        token_file: None,
        exit_when_idle: None,
    };
    let collector = probe::collector::Collector::start(options).await?;

    let mut strings = StringTable::default();
    let batches: Vec<v1::Batch> = (0..16).map(|n| batch(&mut strings, n * 21)).collect();
    let bytes: usize = batches.iter().map(prost::Message::encoded_len).sum::<usize>() / batches.len();

    let channel = tonic::transport::Endpoint::from_shared(format!("unix:{}", socket.display()))?
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20)
        .connect()
        .await?;
    let mut client = v1::agent_client::AgentClient::new(channel);
    let (frames, outgoing) = tokio::sync::mpsc::channel(8);
    let known = strings.since(0).ok_or("no strings")?;
    frames.send(frame(agent_frame::Frame::Hello(hello(&TABLE)))).await?;
    frames.send(frame(agent_frame::Frame::Strings(known))).await?;
    let mut incoming = client.session(tokio_stream::wrappers::ReceiverStream::new(outgoing)).await?.into_inner();

    let began = Instant::now();
    let sending = tokio::spawn(async move {
        for seq in 1..=BATCHES {
            let mut batch = batches[seq as usize % batches.len()].clone();
            (batch.seq, batch.recorded) = (seq, seq * ROWS as u64);
            if frames.send(frame(agent_frame::Frame::Batch(batch))).await.is_err() {
                break;
            }
        }
        frames
    });
    let mut acknowledged = 0;
    while acknowledged < BATCHES {
        let next = tokio::time::timeout(Duration::from_secs(60), incoming.message()).await??;
        match next.and_then(|f| f.frame) {
            Some(collector_frame::Frame::Ack(ack)) => acknowledged = ack.seq,
            Some(collector_frame::Frame::Refused(refused)) => return Err(refused.message.into()),
            Some(_) => {}
            None => return Err("the collector closed the stream".into()),
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let rows = BATCHES * ROWS as u64;
    println!("{rows} rows of {:.1} bytes on the wire in {seconds:.2} s", bytes as f64 / ROWS as f64);
    println!("{:.2} M rows/s on one connection   (bound 5)", rows as f64 / seconds / 1e6);
    drop(sending.await?);
    collector.stop(None).await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(measure())
}
