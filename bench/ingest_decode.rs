//! How fast one connection's batches are decoded and appended, without the network:
//! `cargo run --release -p probe-bench --bin bench-ingest-decode [ROWS_PER_BATCH]`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

#[path = "support/rows.rs"]
mod rows;

use std::sync::Arc;
use std::time::{Duration, Instant};

use probe_proto::encode::StringTable;
use probe_proto::tables::torch_trace;
use probe_proto::v1;
use probe_query::QueryEngine;
use probe_store::{BatchOrigin, BatchRows, ColumnMapping, ProcessIdentity, Store, StringReceiver};
use prost::Message;
use prost::bytes::Bytes;
use rows::{STEP, batch};

const ROWS: usize = 20_000_000;

/// Frames as an agent on a CPU would send them.
fn frames(strings: &mut StringTable, rows: usize) -> Vec<Bytes> {
    (0..64).map(|number| batch(strings, rows, (number * rows / STEP) as i64).encode_to_vec().into()).collect()
}

fn main() {
    let rows = std::env::args().nth(1).map_or(4096, |rows| rows.parse().unwrap());
    let mut table = StringTable::default();
    let frames = frames(&mut table, rows);
    let bytes: usize = frames.iter().map(Bytes::len).sum();
    println!("{rows} rows a batch, {:.1} bytes a row on the wire", bytes as f64 / (64 * rows) as f64);

    let store = Store::new(1 << 30);
    let mut strings = StringReceiver::default();
    strings.extend(table.since(0).unwrap()).unwrap();
    let mapping = ColumnMapping::new(&torch_trace::TABLE.wire_schema()).unwrap();
    let identity = Arc::new(ProcessIdentity {
        run: "bench".into(),
        host: "here".into(),
        pid: 1,
        rank: Some(0),
        local_rank: Some(0),
        world_size: Some(1),
        role: "trainer".into(),
    });
    let instance: Arc<str> = "ingest".into();
    let (mut decoding, mut appending) = (Duration::ZERO, Duration::ZERO);
    let count = ROWS / rows;
    for number in 0..count {
        let started = Instant::now();
        let mut batch = v1::Batch::decode(frames[number % frames.len()].clone()).unwrap();
        // The frames are repeated, each time as later steps.
        batch.columns[0].base += (number / frames.len() * frames.len() * rows / STEP) as i64;
        let decoded = BatchRows::decode(&mapping, &batch, &mut strings).unwrap();
        let halfway = Instant::now();
        store.append(&identity, BatchOrigin::batch(&instance, number as u64 + 1), decoded);
        decoding += halfway - started;
        appending += halfway.elapsed();
    }
    let total = (count * rows) as f64;
    println!(
        "{:.1} M rows/s: decode {:.1} ns/row, append {:.1} ns/row",
        total / (decoding + appending).as_secs_f64() / 1e6,
        decoding.as_nanos() as f64 / total,
        appending.as_nanos() as f64 / total
    );
    let evicted: u64 = store.evicted().iter().map(|evicted| evicted.rows).sum();
    println!("{} MiB hold {} rows; {evicted} evicted", store.memory() >> 20, total as u64 - evicted);

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let engine = QueryEngine::new(store, Vec::new()).unwrap();
    for (name, sql) in [
        ("SELECT 1", "SELECT 1"),
        (
            "last steps",
            "SELECT module, stage, COUNT(*), AVG(duration), SUM(duration) FROM python.torch_trace WHERE step > (SELECT MAX(step) - 10 FROM python.torch_trace) GROUP BY module, stage",
        ),
        ("all rows", "SELECT module, stage, COUNT(*), SUM(duration) FROM python.torch_trace GROUP BY module, stage"),
    ] {
        let mut times: Vec<Duration> = (0..9)
            .map(|_| {
                let started = Instant::now();
                let rows = runtime.block_on(async {
                    let stream = engine.query(sql, None).await.unwrap();
                    futures::StreamExt::count(stream).await
                });
                assert!(rows > 0);
                started.elapsed()
            })
            .collect();
        times.sort();
        println!("{name}: {:.2} ms", times[4].as_secs_f64() * 1e3);
    }
}
