//! `process.metrics`: what the operating system says of each training process.

use crate::table::Time;

crate::table! {
    process.metrics, Agent, "What the operating system reports about each training process, once a second. Rates cover the time since the row before and are NULL in the first row.";
    sort: [ts];
    examples: [
        "SELECT rank, AVG(user_percent) AS user, AVG(system_percent) AS system, MAX(threads) AS threads, MAX(rss) AS rss FROM process.metrics GROUP BY rank ORDER BY rank",
        "SELECT ts, rank, involuntary_switches, major_faults, disk_read_bytes FROM process.metrics WHERE involuntary_switches > 1000 OR major_faults > 0 ORDER BY ts",
        "SELECT ts, rank, throttled, cpu_pressure, memory_pressure, io_pressure, swap FROM process.metrics ORDER BY ts DESC LIMIT 20",
    ];
    ts: Time, "", "When it was measured.";
    step: i64, "", "Optimizer steps finished then.";
    cpu_user: f64, "s", "Processor time of all threads in user code since the process began.";
    cpu_system: f64, "s", "The same in the kernel.";
    user_percent: Option<f64>, "%", "Processor time in user code over time passed: 100 is one core.";
    system_percent: Option<f64>, "%", "Processor time in the kernel over time passed: a large value means copying, page faults or locks.";
    threads: Option<i32>, "", "Threads.";
    voluntary_switches: Option<f64>, "1/s", "Times that a thread gave up its core to wait.";
    involuntary_switches: Option<f64>, "1/s", "Times that the kernel took the core from a thread: a large value means more threads than cores.";
    minor_faults: Option<f64>, "1/s", "Page faults that needed no disk: memory touched for the first time, or after a fork.";
    major_faults: Option<f64>, "1/s", "Page faults that waited for a disk.";
    read_bytes: Option<f64>, "B/s", "Bytes read by system calls, from files, pipes and sockets, cached or not. NULL when the kernel does not report it.";
    write_bytes: Option<f64>, "B/s", "Bytes written by system calls.";
    disk_read_bytes: Option<f64>, "B/s", "Bytes that had to come from a disk.";
    disk_write_bytes: Option<f64>, "B/s", "Bytes given to a disk to write.";
    open_fds: Option<i32>, "", "Open file descriptors of the process, up to two of the agent among them. The agent's others are in a table of its own and not counted; where the kernel refuses that table (before Linux 5.9, in some containers) they are.";
    rss: Option<f64>, "MB", "Resident memory, in 10^6 bytes.";
    swap: Option<f64>, "MB", "Memory of the process that the kernel has moved to swap. NULL from older agents.";
    cgroup_memory: Option<f64>, "MB", "Memory of the control group with the smallest memory limit, this process and the others in it, with files that are cached: the kernel kills near the limit (memory_limit of python.environment). NULL where there is no limit.";
    throttled: Option<f64>, "%", "Time in which a control group of this process was stopped because it had used up its processor quota. NULL where there is no quota.";
    cpu_pressure: Option<f64>, "%", "Time in which some task of this machine was ready and had no processor, as the kernel accounts it (/proc/pressure). NULL where it does not.";
    memory_pressure: Option<f64>, "%", "Time in which some task of this machine waited for memory: to be read back from swap or from a file, or freed.";
    io_pressure: Option<f64>, "%", "Time in which some task of this machine waited for a disk.";
    data_workers: Option<i32>, "", "Workers of DataLoaders that are children of this process, by the name that torch (2.6 and later) gives them. NULL where there are none; a fork server's are not seen.";
    data_workers_percent: Option<f64>, "%", "Processor time of these workers over time passed: 100 is one core. Near 100 for each of them they are busy decoding; far below, they wait, for files or for room in the queue.";
    data_workers_run_delay: Option<f64>, "%", "Time in which the main threads of these workers were ready and had no processor, all of them together. NULL where the kernel does not count it.";
    data_workers_read_bytes: Option<f64>, "B/s", "Bytes that these workers read by system calls, from files, pipes and sockets, cached or not.";
    data_workers_disk_read_bytes: Option<f64>, "B/s", "Bytes that had to come from a disk for these workers.";
}
