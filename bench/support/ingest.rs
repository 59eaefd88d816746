//! How many `python.torch_trace` rows a second one connection brings into a collector that keeps them: journal, files.
//! PROBE_HOME and PROBE_RUNTIME_DIR must name throw-away directories.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use probe_collector::auth::TcpProtection;
use probe_collector::{Collector, CollectorOptions};

use super::Result;
use super::sender::{ROWS, Sender};

/// The query of the performance document: time by module and stage in the last steps.
pub(crate) const LAST_STEPS: &str = "SELECT module, stage, COUNT(*) AS executions, AVG(duration) AS avg_time_sec,
    SUM(duration) AS total_time_sec, SUM(duration) * 100.0 / SUM(SUM(duration)) OVER () AS pct_time
    FROM python.torch_trace WHERE step > (SELECT MAX(step) - 10 FROM python.torch_trace)
    GROUP BY module, stage ORDER BY total_time_sec DESC";

/// Sends `batches` to a collector in this process. Returns rows a second until the last one is acknowledged, which means on
/// disk, and how many answers came meanwhile: `asked` is a query and its interval, the next one only after the answer.
pub(crate) async fn measure(batches: u64, asked: Option<(Duration, &'static str)>) -> Result<(f64, u64)> {
    let socket = probe_common::paths::runtime_dir()?.join("bench.sock");
    let options = CollectorOptions {
        run: "measured".into(),
        command: String::new(),
        listen: vec![probe_common::paths::ListenAddress::Unix(socket.clone())],
        resume: false,
        may_rename: false,
        memory: 2 << 30,
        disk: 10 << 30,
        protection: TcpProtection::default(),
        allow_eval: false,
    };
    let collector = Collector::start(options).await?;
    let (done, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let asking = asked.map(|(every, sql)| {
        let (engine, done, answers) = (Arc::clone(collector.engine()), Arc::clone(&done), Arc::clone(&answers));
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let began = Instant::now();
                if let Ok(mut answer) = engine.query(sql, None).await {
                    while futures::StreamExt::next(&mut answer).await.is_some_and(|batch| batch.is_ok()) {}
                    answers.fetch_add(1, Ordering::Relaxed);
                }
                tokio::time::sleep(every.saturating_sub(began.elapsed())).await;
            }
        })
    });
    let rows_a_second = send(&socket, batches).await;
    done.store(true, Ordering::Relaxed);
    if let Some(asking) = asking {
        // The answer of a bomb never comes.
        asking.abort();
        let _ = asking.await;
    }
    collector.stop(None).await?;
    Ok((rows_a_second?, answers.load(Ordering::Relaxed)))
}

/// Sends `count` batches as fast as the stream takes them to the collector at `socket`. Returns rows a second until the last
/// one is acknowledged.
pub(crate) async fn send(socket: &Path, count: u64) -> Result<f64> {
    let mut sender = Sender::connect(socket, "bench").await?;
    let began = Instant::now();
    for seq in 1..=count {
        sender.send(seq).await?;
    }
    sender.acknowledged(count).await?;
    Ok((count * ROWS as u64) as f64 / began.elapsed().as_secs_f64())
}
