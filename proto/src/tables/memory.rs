//! `python.memory`: what training holds, on the devices and on the host.

use crate::table::{Text, Time};

crate::table! {
    python.memory, Agent, "Device memory at the end of every optimizer step, a row a device, and the host's memory (device cpu), measured when a step ended up to ten times a second, and once a second without.";
    sort: [step, ts];
    examples: [
        "SELECT step, rank, device, allocated, reserved, max_allocated, inactive, retries FROM python.memory WHERE device <> 'cpu' ORDER BY step DESC, rank LIMIT 10",
        "SELECT rank, MIN(rss) AS first, MAX(rss) AS most, MAX(children_rss) AS workers FROM python.memory WHERE device = 'cpu' GROUP BY rank ORDER BY rank",
    ];
    step: i64, "", "Optimizer steps finished when it was measured: a device's row is measured at the end of this step.";
    device: Text, "", "cuda:0, …, or cpu for the host.";
    ts: Time, "", "When it was measured.";
    allocated: Option<f64>, "MB", "Memory (10^6 bytes, here and below) that tensors hold on the device; NULL for the host, which has no such allocator.";
    reserved: Option<f64>, "MB", "Memory that torch's caching allocator holds on the device; NULL for the host.";
    max_allocated: Option<f64>, "MB", "Peak of allocated since the process began or the program reset it (torch.cuda.reset_peak_memory_stats): the agent never resets it. NULL for the host.";
    max_reserved: Option<f64>, "MB", "Peak of reserved, likewise.";
    active: Option<f64>, "MB", "Memory in blocks that are allocated, or that become free when a stream has finished; NULL for the host.";
    inactive: Option<f64>, "MB", "Fragmented memory: unused parts of partly used blocks, which cannot be released; NULL for the host.";
    retries: Option<i64>, "", "Times since the process began that the allocator had to free its cache and try again; NULL for the host.";
    ooms: Option<i64>, "", "Out-of-memory errors on the device since the process began; NULL for the host.";
    device_allocs: Option<i64>, "", "Times since the process began that the allocator asked the driver for memory (cudaMalloc); NULL for the host, and before torch 2.3.";
    device_frees: Option<i64>, "", "Times since then that it gave memory back (cudaFree), which waits for the device; likewise.";
    rss: Option<f64>, "MB", "Resident memory of the process; only for the host.";
    max_rss: Option<f64>, "MB", "Peak of it since the process began; only for the host.";
    children: Option<i32>, "processes", "Child processes (DataLoader workers), counted once a second. NULL for devices, and when the kernel does not report them.";
    children_rss: Option<f64>, "MB", "Sum of their resident memory. Pages that forked workers share with this process are counted in each.";
}
