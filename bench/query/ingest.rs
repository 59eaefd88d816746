//! How many rows a second one connection brings in while questions are asked of the same collector.
//! PROBE_HOME and PROBE_RUNTIME_DIR must name throw-away directories.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Time;
use probe_proto::tables::torch_trace::{Row, TABLE};
use probe_proto::v1::{self, agent_frame, collector_frame};

use super::Result;

const ROWS: usize = 8192;
const BATCHES: u64 = 2000;

fn batch(strings: &mut StringTable, first_step: i64) -> v1::Batch {
    let mut builder = BatchBuilder::new(&TABLE);
    let cpu = strings.id("cpu");
    for n in 0..ROWS {
        let module = n % 128;
        let own = (10_000 + n * 2_654_435_761 % 20_000) as f64 / (1_u64 << 30) as f64;
        builder.push(Row {
            step: first_step + (n / 384) as i64,
            micro_step: 0,
            call_index: 0,
            module: Some(strings.id(&format!("layers.{}.attn.{}", module / 8, module % 8))),
            module_type: Some(strings.id(["Linear", "LayerNorm", "GELU", "Block"][module % 4])),
            depth: (module % 4) as i32,
            stage: strings.id(["forward", "backward", "step"][n / 128 % 3]),
            ts: Time(1_767_225_600_000_000_000 + n as i64 * 12_345),
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

/// Rows a second until the last is acknowledged; `asked` every so often, the next only when the one before is answered.
pub(crate) async fn measure(asked: Option<(Duration, &'static str)>) -> Result<f64> {
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
    let done = Arc::new(AtomicBool::new(false));
    let asking = asked.map(|(every, sql)| {
        let (engine, done) = (Arc::clone(collector.engine()), Arc::clone(&done));
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let began = Instant::now();
                if let Ok(mut answer) = engine.query(sql, None).await {
                    while !done.load(Ordering::Relaxed) && futures::StreamExt::next(&mut answer).await.is_some() {}
                }
                tokio::time::sleep(every.saturating_sub(began.elapsed())).await;
            }
        })
    });
    let mut strings = StringTable::default();
    let batches: Vec<v1::Batch> = (0..16).map(|n| batch(&mut strings, n * 21)).collect();
    let channel = tonic::transport::Endpoint::from_shared(format!("unix:{}", socket.display()))?
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20)
        .connect()
        .await?;
    let mut client = v1::agent_client::AgentClient::new(channel);
    let (frames, outgoing) = tokio::sync::mpsc::channel(8);
    let hello = v1::Hello {
        protocol: probe_proto::PROTOCOL,
        instance: "bench".into(),
        host: "bench".into(),
        pid: std::process::id(),
        role: "trainer".into(),
        tables: vec![TABLE.wire_schema()],
        ..Default::default()
    };
    let frame = |frame| v1::AgentFrame { frame: Some(frame) };
    frames.send(frame(agent_frame::Frame::Hello(hello))).await?;
    frames.send(frame(agent_frame::Frame::Strings(strings.since(0).ok_or("no strings")?))).await?;
    let mut incoming = client.session(tokio_stream::wrappers::ReceiverStream::new(outgoing)).await?.into_inner();
    let began = Instant::now();
    let sending = tokio::spawn(async move {
        for seq in 1..=BATCHES {
            let mut batch = batches[seq as usize % batches.len()].clone();
            (batch.seq, batch.recorded) = (seq, seq * ROWS as u64);
            let batch = v1::AgentFrame { frame: Some(agent_frame::Frame::Batch(batch)) };
            if frames.send(batch).await.is_err() {
                break;
            }
        }
        frames
    });
    let mut acknowledged = 0;
    while acknowledged < BATCHES {
        let next = tokio::time::timeout(Duration::from_secs(120), incoming.message()).await??;
        match next.and_then(|frame| frame.frame) {
            Some(collector_frame::Frame::Ack(ack)) => acknowledged = ack.seq,
            Some(collector_frame::Frame::Refused(refused)) => return Err(refused.message.into()),
            Some(_) => {}
            None => return Err("the collector closed the stream".into()),
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    done.store(true, Ordering::Relaxed);
    if let Some(asking) = asking {
        // A bomb's answer never comes.
        asking.abort();
        let _ = asking.await;
    }
    drop(sending.await?);
    collector.stop(None).await?;
    Ok((BATCHES * ROWS as u64) as f64 / seconds)
}
