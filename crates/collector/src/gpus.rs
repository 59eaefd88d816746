//! Reads this node's GPUs once a second, as long as a process of the run lives here, and keeps the readings in `gpu.metrics`. An
//! error of a GPU (Xid) is an event too.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use probe_common::clock;
use probe_common::error::Result;
use probe_common::interval_env;
use probe_common::paths::host_name;
use probe_inspect::gpu::{GpuReading, Gpus, VisibleGpus};
use probe_proto::env::PROBE_GPU_METRICS;
use probe_proto::table::Time;
use probe_proto::tables::gpu_metrics;
use probe_store::ProcessIdentity;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::events::{RunEvent, RunEvents, Severity};
use super::registry::AgentRegistry;
use super::self_ingest::SelfIngest;

/// Default pause between two readings.
const INTERVAL: Duration = Duration::from_secs(1);
/// Shortest pause between two readings: each costs the driver milliseconds.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The pause between two readings; None: GPUs are not read.
///
/// # Errors
/// The variable's value is no duration.
pub(crate) fn interval() -> Result<Option<Duration>> {
    interval_env::read(PROBE_GPU_METRICS, INTERVAL, MIN_INTERVAL, "1s, 10s")
}

/// Reads GPUs and keeps the readings.
pub(crate) struct GpuSampler {
    registry: Arc<AgentRegistry>,
    events: Arc<RunEvents>,
    ingest: SelfIngest,
    /// The identity of the rows: the collector's own.
    identity: Arc<ProcessIdentity>,
    gpus: Mutex<OpenedGpus>,
}

enum OpenedGpus {
    NotYet,
    /// The node has no driver; it is not looked for again.
    None,
    Gpus(Gpus),
}

impl GpuSampler {
    pub(crate) fn new(registry: Arc<AgentRegistry>, events: Arc<RunEvents>, ingest: SelfIngest, run: Arc<str>) -> Self {
        let identity = ProcessIdentity {
            run,
            host: host_name().into(),
            pid: i32::try_from(std::process::id()).unwrap_or(-1),
            rank: None,
            local_rank: None,
            world_size: None,
            role: "collector".into(),
        };
        Self { registry, events, ingest, identity: Arc::new(identity), gpus: Mutex::new(OpenedGpus::NotYet) }
    }

    /// Reads again and again until the collector stops, or there turns out to be no driver.
    pub(crate) async fn watch(self: Arc<Self>, interval: Duration, stopping: CancellationToken) {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stopping.cancelled() => return,
            }
            let this = Arc::clone(&self);
            // The driver may take long, and no other task is to wait for it.
            match tokio::task::spawn_blocking(move || this.sample()).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(broken) => match broken.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    // The collector ends.
                    Err(_) => return,
                },
            }
        }
    }

    /// Reads once; returns whether to go on.
    fn sample(&self) -> bool {
        let here = self.here();
        if here.is_empty() {
            return true;
        }
        let mut opened = self.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        if let OpenedGpus::NotYet = *opened {
            *opened = Gpus::open().map_or(OpenedGpus::None, OpenedGpus::Gpus);
        }
        let OpenedGpus::Gpus(gpus) = &mut *opened else { return false };
        let mut visible = VisibleGpus::default();
        here.iter().for_each(|process| visible.add(process.pid));
        let readings = gpus.read(&visible);
        drop(opened);
        self.keep(&readings, &here);
        for reading in &readings {
            for xid in &reading.xids {
                self.events.record(failed(reading, *xid, &ranks(reading, &here)));
            }
        }
        true
    }

    /// The live processes of this node.
    fn here(&self) -> Vec<Arc<ProcessIdentity>> {
        let live = self.registry.live();
        let identities = live.iter().map(|agent| Arc::clone(&agent.state().identity));
        identities.filter(|identity| identity.host == self.identity.host).collect()
    }

    fn keep(&self, readings: &[GpuReading], here: &[Arc<ProcessIdentity>]) {
        let result = self.ingest.store_rows(&self.identity, |rows, texts| {
            for reading in readings {
                let megabytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / 1e6);
                let watts = |milliwatts: Option<u32>| milliwatts.map(|milliwatts| f64::from(milliwatts) / 1e3);
                let count = |count: Option<u64>| count.and_then(|count| i64::try_from(count).ok());
                let ranks = ranks(reading, here);
                rows.push(gpu_metrics::Row {
                    ts: Time(clock::unix_ns()),
                    gpu: i32::try_from(reading.index).unwrap_or(-1),
                    uuid: texts.id(&reading.uuid),
                    name: reading.name.as_deref().map(|name| texts.id(name)),
                    ranks: (!ranks.is_empty()).then(|| texts.id(&ranks)),
                    utilization: reading.utilization,
                    memory_utilization: reading.memory_utilization,
                    memory_used: megabytes(reading.memory_used),
                    memory_total: megabytes(reading.memory_total),
                    power: watts(reading.power),
                    power_limit: watts(reading.power_limit),
                    temperature: reading.temperature.map(f64::from),
                    sm_clock: reading.sm_clock.map(f64::from),
                    memory_clock: reading.memory_clock.map(f64::from),
                    throttle_reasons: reading.throttle_reasons.as_deref().map(|reasons| texts.id(reasons)),
                    ecc_corrected: count(reading.ecc_corrected),
                    ecc_uncorrected: count(reading.ecc_uncorrected),
                    xid: reading.xids.last().and_then(|xid| i32::try_from(*xid).ok()),
                });
            }
        });
        if let Err(error) = result {
            tracing::warn!("gpu.metrics: {error}");
        }
    }
}

/// The ranks that compute on a GPU, smallest first.
fn ranks(reading: &GpuReading, here: &[Arc<ProcessIdentity>]) -> String {
    let pids = reading.pids.as_deref().unwrap_or_default();
    let on_it = here.iter().filter(|process| u32::try_from(process.pid).is_ok_and(|pid| pids.contains(&pid)));
    let mut ranks: Vec<i32> = on_it.filter_map(|process| process.rank).collect();
    ranks.sort_unstable();
    ranks.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
}

fn failed(reading: &GpuReading, xid: u64, ranks: &str) -> RunEvent {
    let name = reading.name.as_deref().unwrap_or("GPU");
    let suffix = if ranks.is_empty() { String::new() } else { format!(", where rank {ranks} computes") };
    let text = format!("the driver reports Xid {xid} of GPU {} ({name}, {}){suffix}", reading.index, reading.uuid);
    let details = json!({"xid": xid, "gpu": reading.index, "uuid": reading.uuid, "ranks": ranks});
    RunEvent::new("gpu", Severity::Error, text).with_details(&details)
}
