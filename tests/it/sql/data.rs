//! A small run of two ranks, as its agents would have sent it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use probe_common::error::Result;
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{ColumnType, Row, Table, Text, Time};
use probe_proto::tables::{
    agents, checkpoints, copies, custom, data_trace, drops, environment, evals, events, exceptions, gpu_metrics,
    memory, metrics, nccl_trace, pauses, process_metrics, spans, stack_samples, stacks, steps, sync_points,
    torch_trace,
};
use probe_query::Engine;
use probe_store::{Identity, Mapping, Origin, RecordBatchBuilder, Rows, StorageStats, Store, Strings, SystemTable};

/// 2026-01-01T00:00:00Z.
pub(crate) const START: i64 = 1_767_225_600_000_000_000;

/// An agent and its connection.
pub(crate) struct Agent {
    instance: Arc<str>,
    pub(crate) identity: Arc<Identity>,
    seq: u64,
    pub(crate) strings: StringTable,
    sent: usize,
    received: Strings,
}

impl Agent {
    /// Rank `rank` of two, whose pid is 100 + rank.
    pub(crate) fn new(rank: i32) -> Self {
        let identity = Identity {
            run: "gpt@1".into(),
            host: "node-1".into(),
            pid: 100 + rank,
            rank: Some(rank),
            local_rank: Some(rank),
            world_size: Some(2),
            role: "trainer".into(),
        };
        Self {
            instance: format!("rank {rank}").into(),
            identity: Arc::new(identity),
            seq: 0,
            strings: StringTable::default(),
            sent: 0,
            received: Strings::default(),
        }
    }

    /// Makes one batch of `rows` and decodes it as the collector does.
    pub(crate) fn batch<R: Row>(&mut self, rows: impl IntoIterator<Item = R>) -> Rows {
        let mut builder = BatchBuilder::new(R::TABLE);
        rows.into_iter().for_each(|row| builder.push(row));
        if let Some(strings) = self.strings.since(self.sent) {
            self.sent = self.strings.len();
            self.received.extend(strings).unwrap();
        }
        let mapping = Mapping::new(&R::TABLE.wire_schema()).unwrap();
        Rows::decode(&mapping, &builder.take(), &mut self.received).unwrap()
    }

    /// Makes one batch of `rows` and appends it.
    pub(crate) fn send<R: Row>(&mut self, store: &Store, rows: impl IntoIterator<Item = R>) {
        let rows = self.batch(rows);
        self.seq += 1;
        store.append(&self.identity, Origin::batch(&self.instance, self.seq), rows);
    }

    /// Declares the program's own table `my.metrics`, each rank in another order, and appends a row a step.
    fn send_own(&mut self, store: &Store) {
        let mut columns =
            vec![("loss", ColumnType::Float64), ("tokens", ColumnType::Int64), ("split", ColumnType::Text)];
        columns.rotate_left(self.identity.rank.unwrap() as usize);
        let own: Vec<_> = columns.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect();
        let schema = custom::declare("my.metrics", &own).unwrap().wire_schema();
        let table = store.declare(&schema).unwrap();
        let split = self.strings.id("train");
        let mut builder = BatchBuilder::new(custom::declare("my.metrics", &own).unwrap());
        for step in 0..4 {
            builder.push_with(|cells| {
                cells[0].put_int(step);
                cells[1].put_int(START + step * 1_000_000_000);
                for (cell, (name, _)) in cells[2..].iter_mut().zip(&columns) {
                    match *name {
                        "loss" if step == 3 => cell.put_null(),
                        "loss" => cell.put_float(1.0 / (step + 1) as f64),
                        "tokens" => cell.put_int(512),
                        _ => cell.put_int(i64::from(split.0)),
                    }
                }
            });
        }
        if let Some(strings) = self.strings.since(self.sent) {
            self.sent = self.strings.len();
            self.received.extend(strings).unwrap();
        }
        let mapping = Mapping::of(Some(table), &schema).unwrap();
        let rows = Rows::decode(&mapping, &builder.take(), &mut self.received).unwrap();
        self.seq += 1;
        store.append(&self.identity, Origin::batch(&self.instance, self.seq), rows);
    }

    /// A row of `python.torch_trace` in which little is known.
    pub(crate) fn trace(&mut self, step: i64, module: Option<&str>, stage: &str, duration: f64) -> torch_trace::Row {
        let kind = module.map(|name| if name == "AdamW" { "AdamW" } else { "Linear" });
        torch_trace::Row {
            step,
            micro_step: 0,
            call_index: 0,
            module: module.map(|name| self.strings.id(name)),
            module_type: kind.map(|name| self.strings.id(name)),
            depth: i32::from(module.is_some_and(|name| name.starts_with("layers"))),
            stage: self.strings.id(stage),
            ts: Time(START + step * 1_000_000_000),
            duration: Some(duration),
            total_duration: Some(duration),
            host_duration: duration,
            allocated: None,
            allocated_delta: None,
            max_allocated: None,
            reserved: None,
            input_shape: (module == Some("layers.0") && stage == "forward").then(|| self.strings.id("[32, 128]")),
            device: Some(self.strings.id("cpu")),
            compiled: false,
            thread: 4000,
        }
    }

    fn traces(&mut self, step: i64) -> Vec<torch_trace::Row> {
        let slower = f64::from(1 + self.identity.rank.unwrap());
        vec![
            self.trace(step, Some("layers.0"), "forward", 0.25),
            self.trace(step, Some("layers.1"), "forward", 0.5),
            self.trace(step, Some("layers.1"), "backward", 1.0),
            self.trace(step, Some("layers.0"), "backward", 0.5),
            self.trace(step, None, "backward", 0.125),
            self.trace(step, Some("AdamW"), "step", 0.125 * slower),
        ]
    }

    pub(crate) fn collective(&mut self, step: i64, seq: i64, operation: &str) -> nccl_trace::Row {
        let carries = operation != "barrier";
        let seconds = carries.then_some(0.002);
        nccl_trace::Row {
            step,
            seq,
            operation_type: self.strings.id(operation),
            group_name: self.strings.id("default_pg"),
            group_size: 2,
            bytes: if carries { 1 << 20 } else { 0 },
            dtype: carries.then(|| self.strings.id("float32")),
            async_op: carries,
            backend: self.strings.id("gloo"),
            ts: Time(START + step * 1_000_000_000),
            duration_ms: seconds.map(|seconds| seconds * 1000.0),
            status: self.strings.id(if carries { "completed" } else { "issued" }),
            algbw_gbps: seconds.map(|_| 0.5),
            busbw_gbps: seconds.map(|_| 0.5),
        }
    }

    pub(crate) fn batch_handed(&mut self, step: i64) -> data_trace::Row {
        let workers = self.identity.rank == Some(1);
        let waits = workers && step == 2;
        let of_workers = |value: i32| workers.then_some(value);
        data_trace::Row {
            step,
            batch_index: Some(step),
            dataset: Some(self.strings.id("Tokens")),
            ts: Time(START + step * 1_000_000_000),
            wait: match (workers, waits) {
                (false, _) => 0.125,
                (_, false) => 0.0625,
                (_, true) => 0.5,
            },
            num_workers: Some(if workers { 2 } else { 0 }),
            queue_depth: of_workers(if waits { 0 } else { 2 }),
            tasks_outstanding: of_workers(4),
            prefetch_factor: of_workers(2),
            samples: Some(32),
            bytes: workers.then_some(16384),
            pinned: Some(false),
            persistent_workers: Some(workers),
            thread: 4000,
        }
    }

    /// Rank 0 in an all_reduce, and rank 1 still in its own code, as capture 1 saw them.
    fn stack(&mut self) -> Vec<stacks::Row> {
        let (waits_for, frames) = match self.identity.rank {
            Some(0) => ("collective all_reduce", vec![("all_reduce", false, 40), ("train", true, 7)]),
            _ => ("", vec![("load", true, 3)]),
        };
        let waits_for = (!waits_for.is_empty()).then(|| self.strings.id(waits_for));
        let mut rows = Vec::new();
        for ((function, user_code, line), depth) in frames.into_iter().zip(0..) {
            rows.push(stacks::Row {
                capture: 1,
                ts: Time(START + 4_000_000_000),
                thread: 0,
                thread_name: Some(self.strings.id("MainThread")),
                os_thread: Some(i64::from(self.identity.pid)),
                main: true,
                gil: waits_for.is_none(),
                running: waits_for.is_none(),
                waits_for,
                depth,
                function: Some(self.strings.id(function)),
                file: Some(self.strings.id(if user_code { "train.py" } else { "distributed_c10d.py" })),
                line: Some(line),
                user_code,
                samples: 1,
                moving: false,
                method: self.strings.id("memory"),
            });
        }
        rows
    }

    /// The main thread in `write_log` at line 9, between the parts of a step, after `seconds`.
    pub(crate) fn stack_sample(&mut self, step: i64, seconds: f64) -> stack_samples::Row {
        stack_samples::Row {
            ts: Time(START + (seconds * 1e9) as i64),
            step,
            kind: self.strings.id("always"),
            elapsed: Some(1.0),
            part: self.strings.id("other"),
            function: Some(self.strings.id("write_log")),
            file: Some(self.strings.id("train.py")),
            line: Some(9),
            library_function: None,
            library_file: None,
            library_line: None,
            running: true,
            gil: true,
            gil_elsewhere: false,
            gil_thread: None,
            gil_function: None,
            gil_file: None,
            gil_line: None,
        }
    }

    /// Rank 0 writes a log; another thread of rank 1 holds the GIL.
    fn stack_samples(&mut self) -> Vec<stack_samples::Row> {
        let held = self.identity.rank == Some(1);
        let holder = held.then(|| ["Pump", "pump", "pump.py"].map(|text| self.strings.id(text)));
        let row = |row: stack_samples::Row| stack_samples::Row {
            running: !held,
            gil: !held,
            gil_elsewhere: held,
            gil_thread: holder.map(|[thread, ..]| thread),
            gil_function: holder.map(|[_, function, _]| function),
            gil_file: holder.map(|[.., file]| file),
            gil_line: held.then_some(5),
            ..row
        };
        (0..4).map(|step| row(self.stack_sample(step, step as f64 + 0.5))).collect()
    }

    pub(crate) fn memory(&mut self, step: i64, device: &str) -> memory::Row {
        let on_device = device != "cpu";
        let size = |megabytes: f64| on_device.then_some(megabytes);
        memory::Row {
            step,
            device: self.strings.id(device),
            ts: Time(START + step * 1_000_000_000 + 3_000_000_000),
            allocated: size(512.0),
            reserved: size(1024.0),
            max_allocated: size(768.0),
            max_reserved: size(1024.0),
            active: size(520.0),
            inactive: size(64.0),
            retries: on_device.then_some(i64::from(step == 3)),
            ooms: on_device.then_some(0),
            rss: (!on_device).then_some(2000.0 + 100.0 * step as f64),
            max_rss: (!on_device).then_some(2500.0),
            children: (!on_device).then_some(2),
            children_rss: (!on_device).then_some(600.0),
        }
    }

    pub(crate) fn metrics(&mut self, second: i64) -> process_metrics::Row {
        let rate = |value: f64| (second > 0).then_some(value);
        process_metrics::Row {
            ts: Time(START + second * 1_000_000_000),
            step: second,
            cpu_user: 0.75 * second as f64,
            cpu_system: 0.25 * second as f64,
            user_percent: rate(75.0),
            system_percent: rate(25.0),
            threads: Some(12),
            voluntary_switches: rate(100.0),
            involuntary_switches: rate(if second == 2 { 2000.0 } else { 10.0 }),
            minor_faults: rate(50.0),
            major_faults: rate(0.0),
            read_bytes: None,
            write_bytes: None,
            disk_read_bytes: None,
            disk_write_bytes: None,
            open_fds: Some(30),
            rss: Some(2000.0),
            swap: Some(0.0),
            cgroup_memory: Some(3000.0),
            throttled: None,
            cpu_pressure: rate(if second == 2 { 60.0 } else { 5.0 }),
            memory_pressure: rate(0.0),
            io_pressure: rate(1.0),
        }
    }

    fn gpu(&mut self, second: i64) -> gpu_metrics::Row {
        let device = self.identity.rank.unwrap();
        let mut text = |text: &str| self.strings.id(text);
        gpu_metrics::Row {
            ts: Time(START + second * 1_000_000_000),
            gpu: device,
            uuid: text(&format!("GPU-{device}")),
            name: Some(text("H200")),
            ranks: Some(text(&device.to_string())),
            utilization: Some(if second == 0 { 0.0 } else { 90.0 }),
            memory_utilization: Some(40.0),
            memory_used: Some(1000.0 + 500.0 * second as f64),
            memory_total: Some(141_000.0),
            power: Some(600.0),
            power_limit: Some(700.0),
            temperature: Some(60.0 + second as f64),
            sm_clock: Some(if second == 3 && device == 1 { 1200.0 } else { 1980.0 }),
            memory_clock: None,
            throttle_reasons: Some(text(match (second, device) {
                (0, _) => "idle",
                (3, 1) => "hw_thermal_slowdown",
                _ => "none",
            })),
            ecc_corrected: None,
            ecc_uncorrected: None,
            xid: None,
        }
    }

    pub(crate) fn environment(&mut self) -> environment::Row {
        let mut text = |text: &str| self.strings.id(text);
        environment::Row {
            ts: Time(START),
            step: 2,
            python_version: None,
            platform: None,
            cpu_model: None,
            cpu_cores: Some(64),
            machine_cores: None,
            machine_memory: None,
            torch_version: Some(text("2.15.0")),
            cuda_version: Some(text("13.2")),
            cudnn_version: None,
            gpu_count: None,
            gpu_models: Some(text("NVIDIA H200")),
            cuda_visible_devices: None,
            default_dtype: Some(text("float32")),
            autocast: Some(true),
            autocast_dtype: Some(text("bfloat16")),
            cudnn_benchmark: Some(true),
            cudnn_deterministic: None,
            deterministic_algorithms: None,
            float32_matmul_precision: Some(text("high")),
            matmul_tf32: None,
            cudnn_tf32: None,
            anomaly_detection: Some(false),
            torch_profiler: Some(false),
            cuda_launch_blocking: None,
            nccl_debug: None,
            torch_distributed_debug: None,
            cpu_quota: None,
            memory_limit: None,
            torch_threads: Some(8),
            interop_threads: None,
            model: None,
            wrapper: None,
            find_unused_parameters: None,
            static_graph: None,
            gradient_as_bucket_view: None,
            bucket_cap: None,
            parameters: Some(1_000_000),
            trainable_parameters: None,
            parameter_bytes: None,
            parameter_dtype: None,
            device: None,
            batch_shape: Some(text("[32, 128]")),
            optimizer: None,
            optimizer_fused: None,
            optimizer_foreach: None,
            dataset: None,
            sampler: None,
            batch_size: None,
            num_workers: Some(0),
            prefetch_factor: None,
            pin_memory: None,
            persistent_workers: None,
            drop_last: None,
            start_method: None,
        }
    }

    /// Step 2 is watched: the batch goes to the device, the loss comes back twice.
    pub(crate) fn copies(&mut self) -> [copies::Row; 2] {
        let mut copy = |operation: &str, to_device: bool, bytes: i64| copies::Row {
            step: 2,
            stride: 64,
            ts: Time(START + 2_000_000_000),
            duration: 0.25,
            operation: self.strings.id(operation),
            direction: self.strings.id(if to_device { "host to device" } else { "host to host" }),
            bytes,
            blocking: !to_device,
            contiguous: to_device,
            converted: !to_device,
            source: self.strings.id("cpu"),
            destination: self.strings.id(if to_device { "cuda:0" } else { "cpu" }),
            part: Some(self.strings.id("other")),
            file: to_device.then(|| self.strings.id("train.py")),
            line: to_device.then_some(12),
            thread: 4000,
        };
        [copy("to", true, 16384), copy("copy_", false, 512)]
    }

    /// Rank 1 runs out of memory, and goes on.
    fn exception(&mut self) -> exceptions::Row {
        let mut text = |text: &str| self.strings.id(text);
        exceptions::Row {
            step: 3,
            ts: Time(START + 3_500_000_000),
            exception: text("torch.OutOfMemoryError"),
            message: text("CUDA out of memory. Tried to allocate 2.00 GiB."),
            traceback: text(
                "Traceback (most recent call last):\n  File \"train.py\", line 9, in forward\ntorch.OutOfMemoryError: CUDA out of memory.\n",
            ),
            uncaught: false,
            main: true,
            module: Some(text("layers.0")),
            stage: Some(text("forward")),
            function: Some(text("forward")),
            file: Some(text("train.py")),
            line: Some(9),
            out_of_memory: true,
            memory: Some(text("VmRSS: 2300000 kB\nMemAvailable: 1000 kB")),
            thread: 4000,
            thread_name: text("MainThread"),
        }
    }

    pub(crate) fn sync_point(&mut self) -> sync_points::Row {
        sync_points::Row {
            step: 2,
            stride: 64,
            ts: Time(START + 2_500_000_000),
            operation: self.strings.id("item"),
            device: self.strings.id("cuda:0"),
            count: 2,
            waited: 0.5,
            part: Some(self.strings.id("forward")),
            file: Some(self.strings.id("train.py")),
            line: Some(20),
            thread: 4000,
        }
    }

    fn spans(&mut self, step: i64) -> [spans::Row; 2] {
        let outer = self.strings.id("train_step");
        let mut span = |name: &str, kind: &str, depth: i32| spans::Row {
            step: Some(step),
            ts: Time(START + step * 1_000_000_000 + i64::from(depth)),
            duration: if depth == 0 { 2.0 } else { 0.5 },
            name: self.strings.id(name),
            kind: self.strings.id(kind),
            depth,
            parent: (depth > 0).then_some(outer),
            thread: 4000,
        };
        [span("loss", "record_function", 1), span("train_step", "span", 0)]
    }

    fn loss(&mut self, step: i64) -> metrics::Row {
        let known = self.identity.rank == Some(0);
        metrics::Row {
            step,
            ts: Time(START + step * 1_000_000_000),
            name: self.strings.id("loss"),
            value: known.then_some(1.0 / (step + 1) as f64),
            reason: (!known).then(|| self.strings.id("on a device")),
        }
    }

    /// Before the last step rank 0 saves what it has, and one that fails.
    fn checkpoints(&mut self) -> [checkpoints::Row; 2] {
        let mut saved = |path: Option<&str>, bytes: Option<i64>, error: Option<&str>| checkpoints::Row {
            step: 3,
            ts: Time(START + 3_000_000_000),
            duration: 0.015625,
            kind: self.strings.id("torch.save"),
            path: path.map(|path| self.strings.id(path)),
            bytes,
            error: error.map(|error| self.strings.id(error)),
            thread: 4000,
        };
        [saved(Some("step 3.pt"), Some(1_000_000), None), saved(None, None, Some("OSError"))]
    }

    /// In the last step rank 0 collects garbage, and rank 1 compiles.
    fn pause(&mut self) -> pauses::Row {
        let is_compilation = self.identity.rank == Some(1);
        pauses::Row {
            step: 3,
            ts: Time(START + 3_250_000_000),
            kind: self.strings.id(if is_compilation { "compilation" } else { "garbage collection" }),
            part: self.strings.id(if is_compilation { "forward" } else { "other" }),
            duration: 0.015625,
            generation: (!is_compilation).then_some(2),
            collected: (!is_compilation).then_some(1_000),
            uncollectable: (!is_compilation).then_some(0),
            compile_id: is_compilation.then(|| self.strings.id("3/1")),
            thread: 4000,
        }
    }

    /// Rank 0 waits for the other one, and validates and saves before the last step.
    fn step(&mut self, step: i64) -> steps::Row {
        let waited = if self.identity.rank == Some(0) { 0.125 } else { 0.0625 };
        let (validated, saved) =
            if self.identity.rank == Some(0) && step == 3 { (0.0625, 0.03125) } else { (0.0, 0.0) };
        steps::Row {
            ts: Time(START + step * 1_000_000_000),
            duration: 3.0,
            data_time: 0.25,
            forward_time: 0.75,
            backward_time: 1.625,
            optimizer_time: 0.125,
            comm_time: waited,
            validation_time: Some(validated),
            checkpoint_time: Some(saved),
            other_time: 0.25 - waited - validated - saved,
            cpu_time: (step > 0).then_some(2.5),
            run_delay: (step > 0 && self.identity.rank == Some(1)).then_some(0.125),
            gc_time: Some(0.0625),
            kind: Some(self.strings.id("optimizer")),
            clock: self.strings.id("host"),
            samples: (step > 0).then_some(32),
            detail: step % 2 == 0,
            warmup: Some(step < 2),
            ..steps::Row::of_a_second(step)
        }
    }
}

/// Four steps of two ranks.
pub(crate) fn store() -> Arc<Store> {
    let store = Store::new(1 << 30);
    for rank in 0..2 {
        let mut agent = Agent::new(rank);
        let row = agent.environment();
        agent.send(&store, [row]);
        for step in 0..4 {
            let traces = agent.traces(step);
            agent.send(&store, traces);
            let mut collectives = vec![agent.collective(step, step, "all_reduce")];
            if step == 3 {
                collectives.push(agent.collective(step, 4, "barrier"));
            }
            agent.send(&store, collectives);
            let row = agent.step(step);
            agent.send(&store, [row]);
            let row = agent.batch_handed(step);
            agent.send(&store, [row]);
            let rows = [agent.memory(step, "cpu"), agent.memory(step, "cuda:0")];
            agent.send(&store, rows);
            let row = agent.metrics(step);
            agent.send(&store, [row]);
            let row = agent.gpu(step);
            agent.send(&store, [row]);
            let rows = agent.spans(step);
            agent.send(&store, rows);
            let row = agent.loss(step);
            agent.send(&store, [row]);
        }
        if rank == 0 {
            let rows = agent.operators();
            agent.send(&store, rows);
            let rows = agent.kernels();
            agent.send(&store, rows);
            let rows = agent.launches();
            agent.send(&store, rows);
            let rows = agent.memory_events();
            agent.send(&store, rows);
            let rows = agent.memory_blocks();
            agent.send(&store, rows);
            let rows = agent.kernel_metrics();
            agent.send(&store, rows);
            let rows = agent.execution_trace();
            agent.send(&store, rows);
            let row = agent.inspected();
            agent.send(&store, [row]);
            let rows = agent.frames();
            agent.send(&store, rows);
            let row = agent.capture();
            agent.send(&store, [row]);
            let checkpoints = agent.checkpoints();
            agent.send(&store, checkpoints);
        }
        let rows = agent.dumped(rank);
        agent.send(&store, rows);
        let row = agent.process_group(rank);
        agent.send(&store, [row]);
        let copies = agent.copies();
        agent.send(&store, copies);
        let pause = agent.pause();
        agent.send(&store, [pause]);
        let sync_point = agent.sync_point();
        agent.send(&store, [sync_point]);
        if rank == 1 {
            let exception = agent.exception();
            agent.send(&store, [exception]);
        }
        let stack = agent.stack();
        agent.send(&store, stack);
        let samples = agent.stack_samples();
        agent.send(&store, samples);
        agent.send_own(&store);
    }
    store
}

/// The engine of a live collector of that run.
pub(crate) fn live() -> Engine {
    Engine::new(store(), system()).unwrap()
}

/// The collector's own tables.
pub(crate) fn system() -> Vec<Arc<dyn SystemTable>> {
    vec![
        Arc::new(Agents),
        Arc::new(Drops),
        Arc::new(StorageStats::new(&store(), &"gpt@1".into())),
        Arc::new(Evals),
        Arc::new(probe_collector::server::Audit::default()),
        Arc::new(Events),
    ]
}

fn system_rows<R: Row>(strings: StringTable, rows: impl IntoIterator<Item = R>) -> Result<RecordBatch> {
    let mut builder = RecordBatchBuilder::new(R::TABLE);
    rows.into_iter().for_each(|row| builder.push(row));
    builder.finish(&strings)
}

#[derive(Debug)]
struct Agents;

impl SystemTable for Agents {
    fn table(&self) -> &'static Table {
        &agents::TABLE
    }
    fn rows(&self) -> Result<RecordBatch> {
        let mut strings = StringTable::default();
        let mut text = |text: &str| -> Text { strings.id(text) };
        let mut agent = |rank: i32| agents::Row {
            run: text("gpt@1"),
            host: text("node-1"),
            pid: 100 + rank,
            rank: Some(rank),
            local_rank: Some(rank),
            world_size: Some(2),
            role: text("trainer"),
            state: text(if rank == 0 { "live" } else { "lost" }),
            ended: (rank == 1).then_some(Time(START + 4_500_000_000)),
            exit_status: None,
            signal: (rank == 1).then(|| text("SIGKILL")),
            cause: (rank == 1).then(|| text("kernel log: Out of memory: Killed process 101 (python)")),
            step: 4,
            steps_per_second: (rank == 0).then_some(0.5),
            detail: Some(text("every-step")),
            layers: text("forward=tp_call"),
            attached: Some(false),
            agent_version: text("0.1.0"),
            python_version: text("3.11.2"),
            torch_version: text("2.15.0"),
            rows_recorded: 33,
            rows_stored: 33,
            rows_dropped: 0,
            first_seen: Time(START),
            last_seen: Time(START + 4_000_000_000),
            clock_offset: None,
            problem: None,
            command: text("train.py"),
        };
        let rows = [agent(0), agent(1)];
        system_rows(strings, rows)
    }
}

#[derive(Debug)]
struct Drops;

impl SystemTable for Drops {
    fn table(&self) -> &'static Table {
        &drops::TABLE
    }
    fn rows(&self) -> Result<RecordBatch> {
        let mut strings = StringTable::default();
        let mut text = |text: &str| -> Text { strings.id(text) };
        let row = drops::Row {
            run: text("gpt@1"),
            host: text("node-1"),
            pid: 101,
            rank: Some(1),
            table_name: text("python.torch_trace"),
            reason: text("ring full"),
            at: text("agent"),
            rows: 7,
            last_seen: Time(START),
        };
        system_rows(strings, [row])
    }
}

#[derive(Debug)]
struct Evals;

impl SystemTable for Evals {
    fn table(&self) -> &'static Table {
        &evals::TABLE
    }
    fn rows(&self) -> Result<RecordBatch> {
        system_rows(StringTable::default(), std::iter::empty::<evals::Row>())
    }
}

#[derive(Debug)]
struct Events;

impl SystemTable for Events {
    fn table(&self) -> &'static Table {
        &events::TABLE
    }
    fn rows(&self) -> Result<RecordBatch> {
        let mut strings = StringTable::default();
        let mut text = |text: &str| -> Text { strings.id(text) };
        let mut event = |step: i64, rank: Option<i32>, kind, severity, message, details: Option<&str>| events::Row {
            id: step - 1,
            ts: Time(START + step * 1_000_000_000),
            kind: text(kind),
            severity: text(severity),
            run: text("gpt@1"),
            host: rank.map(|_| text("node-1")),
            pid: rank.map(|rank| 100 + rank),
            rank,
            step: Some(step),
            message: text(message),
            details: details.map(&mut text),
        };
        let slow = "steps take 0.2 s instead of 0.1 s";
        let rows = [
            event(2, None, "slow", "warning", slow, Some(r#"{"baseline":0.1,"recent":0.2}"#)),
            event(3, Some(1), "hang", "error", "rank 1 has been in all_reduce for 60 s", None),
        ];
        system_rows(strings, rows)
    }
}
