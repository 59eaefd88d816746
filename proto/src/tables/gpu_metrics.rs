//! `gpu.metrics`: what the driver says of the GPUs that a run's processes can see.

use crate::table::{Text, Time};

crate::table! {
    gpu.metrics, Agent, "One row per GPU that the run's processes on a node can see, once a second, as the driver reports it (NVML). Read by the node's collector: pid is its own, and rank is NULL.";
    sort: [ts];
    examples: [
        "SELECT gpu, ranks, AVG(utilization) AS utilization, MAX(memory_used) AS memory_used, MAX(temperature) AS temperature, AVG(power) AS power FROM gpu.metrics GROUP BY gpu, ranks ORDER BY gpu",
        "SELECT ts, host, gpu, sm_clock, temperature, throttle_reasons FROM gpu.metrics WHERE throttle_reasons NOT IN ('none', 'idle') ORDER BY ts DESC LIMIT 20",
    ];
    ts: Time, "", "When it was read.";
    gpu: i32, "", "Number of the GPU on its host, as nvidia-smi counts them: not the number that the process gives it.";
    uuid: Text, "", "Identifier of the GPU, which never changes.";
    name: Option<Text>, "", "Its model.";
    ranks: Option<Text>, "", "Ranks of this run that compute on it, separated by commas. NULL when the driver reports none, as in most containers.";
    utilization: Option<f64>, "%", "Share of the driver's last sample period in which a kernel ran, however much of the GPU it used.";
    memory_utilization: Option<f64>, "%", "Share of that period in which its memory was read or written.";
    memory_used: Option<f64>, "MB", "Memory in use by everybody, in 10^6 bytes.";
    memory_total: Option<f64>, "MB", "Memory it has, in 10^6 bytes.";
    power: Option<f64>, "W", "What it draws.";
    power_limit: Option<f64>, "W", "What it may draw.";
    temperature: Option<f64>, "°C", "Temperature of the chip.";
    sm_clock: Option<f64>, "MHz", "Clock of its processors.";
    memory_clock: Option<f64>, "MHz", "Clock of its memory.";
    throttle_reasons: Option<Text>, "", "Why its clocks are lower than they could be, by the driver's names, separated by commas: none, idle, sw_power_cap, hw_thermal_slowdown.";
    ecc_corrected: Option<i64>, "", "Memory errors that were corrected since the driver was loaded; NULL without ECC.";
    ecc_uncorrected: Option<i64>, "", "Memory errors that could not be corrected since then.";
    xid: Option<i32>, "", "Number of the driver's newest error (Xid) since the row before, which is also an event in probe.events. NULL when there was none.";
}
