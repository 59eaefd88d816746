//! `gpu.kernel_metrics`: what Nsight Compute measured of single kernels.

use crate::table::Text;

crate::table! {
    gpu.kernel_metrics, Agent, "One row per metric of a kernel that Nsight Compute profiled, and one per advice that it gives, from an imported CSV page (ncu --csv).";
    sort: [id];
    examples: [
        "SELECT id, kernel, metric, value, unit FROM gpu.kernel_metrics WHERE metric IN ('Duration', 'Achieved Occupancy') ORDER BY id",
        "SELECT id, kernel, rule, speedup, advice FROM gpu.kernel_metrics WHERE rule_type = 'OPT' ORDER BY speedup DESC NULLS LAST LIMIT 10",
    ];
    capture: Text, "", "Name of the capture, as in python.captures.";
    id: i64, "", "Number of the profiled kernel in its file, in the order in which kernels ran.";
    kernel: Text, "", "Name of the kernel, as the file has it.";
    section: Option<Text>, "", "Section of the details page: GPU Speed Of Light Throughput; of an advice its identifier: SpeedOfLight. NULL for the raw page, which has none.";
    metric: Option<Text>, "", "Name of the metric: Duration, gpu__time_duration.sum; NULL for an advice. A name can be in several sections, with other units.";
    unit: Option<Text>, "", "Unit of value, as the file says: ns, hz, byte/s, %. It differs between files that were printed with other options.";
    value: Option<f64>, "", "Value of the metric, in unit; NULL where it is no number.";
    text: Option<Text>, "", "Value where it is no number: CachePreferNone, n/a.";
    rule: Option<Text>, "", "Rule that gives an advice: SOLBottleneck; NULL for a metric.";
    rule_type: Option<Text>, "", "What an advice is: OPT (to gain time), WRN or INF.";
    advice: Option<Text>, "", "What the rule says.";
    speedup: Option<f64>, "%", "What following the advice would gain, as Nsight Compute estimates it.";
    speedup_type: Option<Text>, "", "Of what that is: global (of the kernel) or local (of what the section is about).";
    process: Option<Text>, "", "Name of the process.";
    device: Option<i32>, "", "Number of the device.";
    compute_capability: Option<Text>, "", "Compute capability of the device.";
    stream: Option<i64>, "", "Stream of the device.";
    grid: Option<Text>, "", "Blocks of the grid: [x,y,z].";
    block: Option<Text>, "", "Threads of a block: [x,y,z].";
}
