//! Rows about a process beside its training: memory, processors, GPUs, stacks and its environment.

use probe_proto::table::Time;
use probe_proto::tables::{environment, gpu_metrics, memory, process_metrics, stack_samples, stacks};

use super::{Agent, START};

impl Agent {
    /// Stacks of capture 1: rank 0 in an all_reduce, and rank 1 still in its own code.
    pub(in crate::sql) fn stack(&mut self) -> Vec<stacks::Row> {
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
    pub(in crate::sql) fn stack_samples(&mut self) -> Vec<stack_samples::Row> {
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
            device_allocs: on_device.then_some(40),
            device_frees: on_device.then_some(0),
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
            data_workers: Some(2),
            data_workers_percent: rate(if second == 2 { 190.0 } else { 150.0 }),
            data_workers_run_delay: rate(4.0),
            data_workers_read_bytes: rate(3e6),
            data_workers_disk_read_bytes: rate(0.0),
        }
    }

    pub(crate) fn gpu(&mut self, second: i64) -> gpu_metrics::Row {
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
            memory_format: None,
            device: None,
            batch_shape: Some(text("[32, 128]")),
            optimizer: None,
            optimizer_fused: None,
            optimizer_foreach: None,
            optimizers_gone: None,
            optimizer_steps: None,
            unoptimized_parameters: None,
            unoptimized_parameter: None,
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
}
