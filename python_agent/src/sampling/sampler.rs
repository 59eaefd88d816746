//! Rows of `process.metrics` and the host's rows of `python.memory`, when they are due.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use probe_proto::table::Time;
use probe_proto::tables::{memory, process_metrics};

use super::{cgroup, children, environment, proc};
use crate::recording::policy::{Layer, is_on};
use crate::recording::usage::{ResourceUsage, page_size};
use crate::shared;
use probe_trace::BatchShapes;
use probe_trace::payload::MB;
use probe_trace::row_buffer::RowBuffer;

/// Whether `process.metrics` is recorded.
pub static PROCESS: AtomicBool = AtomicBool::new(false);
/// Whether the host's rows of `python.memory` are recorded.
pub static MEMORY: AtomicBool = AtomicBool::new(false);

/// Time between two rows of `process.metrics`, between two examinations of children, and between rows of memory without steps.
const SECOND: Duration = Duration::from_secs(1);

/// The newest measurements, and their times.
#[derive(Debug, Default)]
pub struct ProcessSampler {
    process: Option<(Instant, SampledCounters)>,
    memory: Option<(Instant, i64)>,
    children: Option<(Instant, Option<children::ChildProcesses>)>,
    environment: environment::NotedEnvironment,
}

/// Counts since the process began, its groups were made, or the machine was started.
#[derive(Debug, Clone)]
struct SampledCounters {
    usage: ResourceUsage,
    io: Option<proc::ProcessIo>,
    children: Option<children::ChildProcesses>,
    throttled: BTreeMap<PathBuf, f64>,
    /// Seconds of pressure, in the order of [`PRESSURES`].
    pressure: [Option<f64>; 3],
}

const PRESSURES: [&str; 3] = ["cpu", "memory", "io"];

impl SampledCounters {
    fn now(children: Option<children::ChildProcesses>) -> Option<Self> {
        let (usage, io, throttled) = (ResourceUsage::now()?, proc::io("self"), cgroup::throttled());
        Some(Self { usage, io, children, throttled, pressure: PRESSURES.map(proc::pressure) })
    }

    /// Seconds since `before` without quota, of the group that had none for the longest. None where none has a quota.
    fn throttled_since(&self, before: &Self) -> Option<f64> {
        let since = |(group, now): (&PathBuf, &f64)| Some(now - before.throttled.get(group)?);
        self.throttled.iter().filter_map(since).max_by(f64::total_cmp)
    }
}

impl ProcessSampler {
    /// Adds the rows that are due. `batches` are the newest shapes that modules were given; `last`: nothing more will be recorded.
    pub fn sample(&mut self, batches: &BatchShapes, last: bool, sink: &mut RowBuffer) {
        let now = Instant::now();
        if is_on(Layer::Environment) {
            self.environment.add_changes(now, batches, last, sink);
        }
        let due = |last: Option<Instant>| last.is_none_or(|last| now.duration_since(last) >= SECOND);
        if PROCESS.load(Ordering::Relaxed) && is_on(Layer::Process) && due(self.process.as_ref().map(|(last, _)| *last))
        {
            self.sample_process(now, sink);
        }
        let step = shared::STEP.load(Ordering::Relaxed);
        let stepped = self.memory.is_some_and(|(_, before)| before != step);
        if MEMORY.load(Ordering::Relaxed) && is_on(Layer::Memory) && (stepped || due(self.memory.map(|(last, _)| last)))
        {
            self.memory = Some((now, step));
            self.look_at_children(now);
            self.sample_memory(step, sink);
        }
    }

    fn look_at_children(&mut self, now: Instant) {
        if self.children.as_ref().is_none_or(|(last, _)| now.duration_since(*last) >= SECOND) {
            self.children = Some((now, children::read_children()));
        }
    }

    /// Resident bytes of this process.
    fn resident(&self) -> Option<f64> {
        proc::resident_pages(&std::fs::read("/proc/self/statm").ok()?).map(|pages| pages as f64 * page_size() as f64)
    }

    fn sample_memory(&mut self, step: i64, sink: &mut RowBuffer) {
        let children = self.children.as_ref().and_then(|(_, children)| children.as_ref());
        let (count, pages) = (children.map(|found| found.count), children.map(|found| found.resident_pages));
        let device = sink.strings.id("cpu");
        let rss = self.resident();
        sink.push(memory::Row {
            step,
            device,
            ts: Time(unix_ns()),
            allocated: None,
            reserved: None,
            max_allocated: None,
            max_reserved: None,
            active: None,
            inactive: None,
            retries: None,
            ooms: None,
            device_allocs: None,
            device_frees: None,
            rss: rss.map(|bytes| bytes / MB),
            // The kernel brings its maximum up to date from time to time only.
            max_rss: ResourceUsage::now().map(|usage| usage.max_rss.max(rss.unwrap_or(0.0)) / MB),
            children: count,
            children_rss: pages.map(|pages| pages as f64 * page_size() as f64 / MB),
        });
    }

    fn sample_process(&mut self, now: Instant, sink: &mut RowBuffer) {
        self.look_at_children(now);
        let children = self.children.as_ref().and_then(|(_, children)| children.clone());
        let Some(counters) = SampledCounters::now(children) else { return };
        let before = self.process.replace((now, counters.clone()));
        let seconds = before.as_ref().map(|(last, _)| now.duration_since(*last).as_secs_f64());
        let over_time = |difference: f64| Some(difference.max(0.0) / seconds.filter(|seconds| *seconds > 0.0)?);
        let rate = |value: &dyn Fn(&SampledCounters) -> Option<f64>| {
            over_time(value(&counters)? - value(&before.as_ref()?.1)?)
        };
        let pressure = |resource: usize| rate(&|c| c.pressure[resource]).map(|share| (share * 100.0).min(100.0));
        let throttled = before.as_ref().and_then(|(_, before)| over_time(counters.throttled_since(before)?));
        let usage = counters.usage;
        let percent =
            |value: &dyn Fn(&ResourceUsage) -> f64| rate(&|c| Some(value(&c.usage))).map(|share| share * 100.0);
        let io = |value: fn(&proc::ProcessIo) -> u64| rate(&|c| c.io.as_ref().map(|io| value(io) as f64));
        let of_workers = |value: fn(&children::DataWorker) -> Option<f64>| {
            let before = before.as_ref().and_then(|(_, before)| before.children.as_ref())?;
            over_time(counters.children.as_ref()?.more_than(before, value)?)
        };
        let data_workers = counters.children.as_ref().map_or(0, |children| children.data_workers.len());
        let row = process_metrics::Row {
            ts: Time(unix_ns()),
            step: shared::STEP.load(Ordering::Relaxed),
            cpu_user: usage.user,
            cpu_system: usage.system,
            user_percent: percent(&|usage| usage.user),
            system_percent: percent(&|usage| usage.system),
            threads: proc::threads(),
            voluntary_switches: rate(&|c| Some(c.usage.voluntary)),
            involuntary_switches: rate(&|c| Some(c.usage.involuntary)),
            minor_faults: rate(&|c| Some(c.usage.minor_faults)),
            major_faults: rate(&|c| Some(c.usage.major_faults)),
            read_bytes: io(|io| io.read),
            write_bytes: io(|io| io.written),
            disk_read_bytes: io(|io| io.disk_read),
            disk_write_bytes: io(|io| io.disk_written),
            open_fds: proc::open_files(),
            rss: self.resident().map(|bytes| bytes / MB),
            swap: proc::swap().map(|bytes| bytes / MB),
            cgroup_memory: cgroup::memory().map(|bytes| bytes / MB),
            throttled: throttled.map(|share| (share * 100.0).min(100.0)),
            cpu_pressure: pressure(0),
            memory_pressure: pressure(1),
            io_pressure: pressure(2),
            data_workers: i32::try_from(data_workers).ok().filter(|count| *count > 0),
            data_workers_percent: of_workers(|worker| Some(worker.used.seconds)).map(|share| share * 100.0),
            data_workers_run_delay: of_workers(|worker| worker.run_delay).map(|share| share * 100.0),
            data_workers_read_bytes: of_workers(|worker| Some(worker.io?.read as f64)),
            data_workers_disk_read_bytes: of_workers(|worker| Some(worker.io?.disk_read as f64)),
        };
        sink.push(row);
    }
}

fn unix_ns() -> i64 {
    crate::recording::clock::sample().unix_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_measured_and_its_rates_need_two_looks() {
        let mut sampler = ProcessSampler::default();
        let mut sink = RowBuffer::default();
        let before = ResourceUsage::now().expect("usage");
        sampler.sample_process(Instant::now(), &mut sink);
        let (_, counters) = sampler.process.clone().expect("what was measured");
        assert!(counters.usage.user >= before.user && counters.usage.max_rss > 1e6);
        assert!(sampler.resident().expect("a size") <= counters.usage.max_rss * 2.0);
        let column = process_metrics::TABLE.columns.iter().position(|column| column.name == "user_percent");
        let rates = |sink: &mut RowBuffer| sink.take()[0].columns[column.expect("the column")].nulls;
        assert!(rates(&mut sink));
        sampler.sample_process(Instant::now() + SECOND, &mut sink);
        assert!(!rates(&mut sink));
        sampler.sample_memory(3, &mut sink);
        assert_eq!(sink.take().iter().map(|batch| batch.rows).sum::<u32>(), 1);
    }
}
