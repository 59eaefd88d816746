//! A small run of two ranks, as its agents would have sent it.

use std::sync::Arc;

use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{ColumnType, Row, Time};
use probe_proto::tables::{
    checkpoints, copies, custom, data_trace, exceptions, metrics, nccl_trace, operator_counts, pauses, spans, steps,
    sync_points, torch_trace,
};
use probe_query::QueryEngine;
use probe_store::{
    BatchOrigin, BatchRows, ColumnMapping, ProcessIdentity, StorageStats, Store, StringReceiver, SystemTable,
};

mod process_rows;
mod system_tables;

use self::system_tables::{Agents, Drops, Evals, Events};

/// 2026-01-01T00:00:00Z.
pub(crate) const START: i64 = 1_767_225_600_000_000_000;

/// An agent of the run, and the state of its connection.
pub(crate) struct Agent {
    instance: Arc<str>,
    pub(crate) identity: Arc<ProcessIdentity>,
    seq: u64,
    pub(crate) strings: StringTable,
    sent: usize,
    received: StringReceiver,
}

impl Agent {
    /// Rank `rank` of two, whose pid is 100 + rank.
    pub(crate) fn new(rank: i32) -> Self {
        let identity = ProcessIdentity {
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
            received: StringReceiver::default(),
        }
    }

    /// Makes one batch of `rows` and decodes it as the collector does.
    pub(crate) fn batch<R: Row>(&mut self, rows: impl IntoIterator<Item = R>) -> BatchRows {
        let mut builder = BatchBuilder::new(R::TABLE);
        rows.into_iter().for_each(|row| builder.push(row));
        if let Some(strings) = self.strings.since(self.sent) {
            self.sent = self.strings.len();
            self.received.extend(strings).unwrap();
        }
        let mapping = ColumnMapping::new(&R::TABLE.wire_schema()).unwrap();
        BatchRows::decode(&mapping, &builder.take(), &mut self.received).unwrap()
    }

    /// Makes one batch of `rows` and appends it.
    pub(crate) fn send<R: Row>(&mut self, store: &Store, rows: impl IntoIterator<Item = R>) {
        let rows = self.batch(rows);
        self.seq += 1;
        store.append(&self.identity, BatchOrigin::batch(&self.instance, self.seq), rows);
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
        let mapping = ColumnMapping::of(Some(table), &schema).unwrap();
        let rows = BatchRows::decode(&mapping, &builder.take(), &mut self.received).unwrap();
        self.seq += 1;
        store.append(&self.identity, BatchOrigin::batch(&self.instance, self.seq), rows);
    }

    /// A row of `python.torch_trace` in which most columns are NULL.
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
            captured: Some(false),
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
            worker: of_workers((step % 2) as i32),
            // Rank 1's second worker is slow.
            fetch_time: workers.then_some(if step % 2 == 1 { 0.75 } else { 0.125 }),
            samples: Some(32),
            bytes: workers.then_some(16384),
            padding: (step % 8 == 0).then_some(if workers { 0.5 } else { 0.0 }),
            pinned: Some(false),
            persistent_workers: Some(workers),
            thread: 4000,
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

    /// A layer calls an operator, which calls another one.
    pub(crate) fn operator_counts(&mut self) -> [operator_counts::Row; 2] {
        let mut called = |operator, outermost, duration| operator_counts::Row {
            step: 2,
            stride: 64,
            ts: Time(START + 3_000_000_000),
            operator: Some(self.strings.id(operator)),
            part: self.strings.id("forward"),
            count: 4,
            outermost,
            duration,
        };
        [called("aten::linear", 4, 0.0625), called("aten::addmm", 0, 0.25)]
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
        let counts = agent.operator_counts();
        agent.send(&store, counts);
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
pub(crate) fn live() -> QueryEngine {
    QueryEngine::new(store(), system()).unwrap()
}

/// The collector's own tables.
pub(crate) fn system() -> Vec<Arc<dyn SystemTable>> {
    vec![
        Arc::new(Agents),
        Arc::new(Drops),
        Arc::new(StorageStats::new(&store(), &"gpt@1".into())),
        Arc::new(Evals),
        Arc::new(probe_collector::server::QueryAudit::default()),
        Arc::new(Events),
    ]
}
