//! Rows of `python.environment`: facts that Python notes when it learns them, and facts about the machine.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use probe_proto::encode::StringTable;
use probe_proto::table::Time;
use probe_proto::tables::environment;
use pyo3::prelude::*;

use super::cgroup;
use crate::recording::clock;
use crate::shared::{self, STEP};
use probe_trace::BatchShapes;
use probe_trace::payload::MB;
use probe_trace::row_buffer::RowBuffer;

/// Steps that the first row waits for, so that facts which are noted together are in one row.
const SETTLED_STEPS: i64 = 2;
/// Time that the first row waits at most, where there are no steps.
const SETTLED: Duration = Duration::from_secs(5);
/// Time between two rows.
const BETWEEN_ROWS: Duration = Duration::from_secs(1);
/// Rows of a process at most: facts that change more often are not part of its environment.
const MAX_ROWS: u32 = 64;

/// The fact that is the address of the model, which has no column.
const MODEL_ADDRESS: &str = "model_address";

/// The value of a fact.
#[derive(Debug, Clone, PartialEq, FromPyObject, IntoPyObject)]
pub(crate) enum Fact {
    /// Comes before the integer, because Python's booleans are integers too.
    Flag(bool),
    Number(i64),
    Words(String),
}

/// Facts by the name of their column, as they are known now.
pub(crate) type EnvironmentFacts = Option<HashMap<String, Option<Fact>>>;

pub(crate) static FACTS: Mutex<EnvironmentFacts> = Mutex::new(None);

/// Adds this file's functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(note_environment, module)?)
}

/// Notes facts by the name of their column; None removes one.
#[pyfunction]
fn note_environment(facts: HashMap<String, Option<Fact>>) {
    if shared::ENABLED.load(Ordering::Relaxed) {
        shared::lock(&FACTS).get_or_insert_default().extend(facts);
    }
}

/// The facts of the newest row.
#[derive(Debug, Default)]
pub(super) struct NotedEnvironment {
    facts: HashMap<String, Option<Fact>>,
    first_seen: Option<Instant>,
    last_row: Option<Instant>,
    rows: u32,
}

impl NotedEnvironment {
    /// Adds a row if a fact has changed.
    pub(super) fn add_changes(&mut self, now: Instant, batches: &BatchShapes, last: bool, sink: &mut RowBuffer) {
        let changed = shared::lock(&FACTS).as_ref().filter(|facts| **facts != self.facts).cloned();
        let Some(facts) = changed else { return };
        let seen = *self.first_seen.get_or_insert(now);
        let settled = match self.last_row {
            None => STEP.load(Ordering::Relaxed) >= SETTLED_STEPS || now.duration_since(seen) >= SETTLED,
            Some(row) => now.duration_since(row) >= BETWEEN_ROWS,
        };
        if !(settled || last) || self.rows >= MAX_ROWS {
            return;
        }
        self.facts = facts;
        self.last_row = Some(now);
        self.rows += 1;
        let row = self.row(batches, &mut sink.strings);
        sink.push(row);
    }

    fn row(&self, batches: &BatchShapes, strings: &mut StringTable) -> environment::Row {
        let fact = |name: &str| self.facts.get(name).and_then(Option::as_ref);
        let long = |name: &str| match fact(name) {
            Some(Fact::Number(number)) => Some(*number),
            _ => None,
        };
        let number = |name: &str| long(name).and_then(|number| i32::try_from(number).ok());
        let flag = |name: &str| match fact(name) {
            Some(Fact::Flag(flag)) => Some(*flag),
            _ => None,
        };
        let mut text = |name: &str| match fact(name) {
            Some(Fact::Words(words)) => Some(strings.id(words)),
            _ => None,
        };
        environment::Row {
            ts: Time(clock::sample().unix_ns),
            step: STEP.load(Ordering::Relaxed),
            python_version: text("python_version"),
            platform: text("platform"),
            cpu_cores: number("cpu_cores"),
            machine_cores: number("machine_cores"),
            torch_version: text("torch_version"),
            cuda_version: text("cuda_version"),
            cudnn_version: long("cudnn_version"),
            gpu_count: number("gpu_count"),
            gpu_models: text("gpu_models"),
            cuda_visible_devices: text("cuda_visible_devices"),
            default_dtype: text("default_dtype"),
            autocast: flag("autocast"),
            autocast_dtype: text("autocast_dtype"),
            cudnn_benchmark: flag("cudnn_benchmark"),
            cudnn_deterministic: flag("cudnn_deterministic"),
            deterministic_algorithms: flag("deterministic_algorithms"),
            float32_matmul_precision: text("float32_matmul_precision"),
            matmul_tf32: flag("matmul_tf32"),
            cudnn_tf32: flag("cudnn_tf32"),
            anomaly_detection: flag("anomaly_detection"),
            torch_profiler: flag("torch_profiler"),
            cuda_launch_blocking: text("cuda_launch_blocking"),
            nccl_debug: text("nccl_debug"),
            torch_distributed_debug: text("torch_distributed_debug"),
            cpu_quota: cgroup::cpu_quota(),
            memory_limit: cgroup::memory_limit().map(|bytes| bytes / MB),
            torch_threads: number("torch_threads"),
            interop_threads: number("interop_threads"),
            model: text("model"),
            wrapper: text("wrapper"),
            find_unused_parameters: flag("find_unused_parameters"),
            static_graph: flag("static_graph"),
            gradient_as_bucket_view: flag("gradient_as_bucket_view"),
            bucket_cap: long("bucket_cap"),
            parameters: long("parameters"),
            trainable_parameters: long("trainable_parameters"),
            parameter_bytes: long("parameter_bytes"),
            parameter_dtype: text("parameter_dtype"),
            memory_format: text("memory_format"),
            device: text("device"),
            batch_shape: long(MODEL_ADDRESS).and_then(|address| batches.shape_of(address as u64)),
            optimizer: text("optimizer"),
            optimizer_fused: flag("optimizer_fused"),
            optimizer_foreach: flag("optimizer_foreach"),
            optimizers_gone: long("optimizers_gone"),
            optimizer_steps: long("optimizer_steps"),
            unoptimized_parameters: long("unoptimized_parameters"),
            unoptimized_parameter: text("unoptimized_parameter"),
            dataset: text("dataset"),
            sampler: text("sampler"),
            batch_size: long("batch_size"),
            num_workers: number("num_workers"),
            prefetch_factor: number("prefetch_factor"),
            pin_memory: flag("pin_memory"),
            persistent_workers: flag("persistent_workers"),
            drop_last: flag("drop_last"),
            start_method: text("start_method"),
            cpu_model: info("/proc/cpuinfo", "model name").map(|model| strings.id(&model)),
            // In KiB, followed by the unit.
            machine_memory: info("/proc/meminfo", "MemTotal")
                .and_then(|value| value.split_ascii_whitespace().next()?.parse::<f64>().ok())
                .map(|kilobytes| kilobytes * 1024.0 / MB),
        }
    }
}

/// The value of the first line `name: value` of a file.
fn info(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(key, value)| (key.trim(), value.trim()))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.to_owned())
}
