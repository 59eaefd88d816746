//! A capture of rank 0: two steps, a module, four activities of a device, one of them a collective.

use probe_proto::table::{Text, Time};
use probe_proto::tables::{
    captures, execution_trace, frames, kernel_metrics, kernels, launches, memory_blocks, memory_events, nccl_inspector,
    operators,
};

use super::data::{Agent, START};

fn at(seconds: i64) -> Time {
    Time(START + seconds * 1_000_000_000)
}

impl Agent {
    fn text(&mut self, text: &str) -> Text {
        self.strings.id(text)
    }

    /// Name, kind, depth, parent, when it began and how long it took; its own time; and that of the device, with and without
    /// what is within.
    fn operator(&mut self, name: &str, parent: Option<&str>, times: [i64; 3], device: [f64; 2]) -> operators::Row {
        let [begin, duration, own] = times;
        let is_step = parent.is_none();
        operators::Row {
            capture: self.text("trace.json"),
            step: Some(begin / 100),
            ts: at(begin),
            duration: duration as f64,
            self_duration: own as f64,
            device_duration: Some(device[0]),
            device_self_duration: Some(device[1]),
            kind: self.text(if is_step { "annotation" } else { "operator" }),
            stage: (!is_step).then(|| self.text("forward")),
            module: (!is_step).then(|| self.text("Net_0.Linear_0")),
            name: self.text(name),
            depth: i32::from(!is_step) + i32::from(parent == Some("aten::linear")),
            parent: parent.map(|parent| self.text(parent)),
            input_shapes: (!is_step).then(|| self.text("[[2,3]]")),
            input_types: (!is_step).then(|| self.text("[\"float\"]")),
            input_bytes: (!is_step).then_some(6_000_000_000_000),
            flops: (name == "aten::addmm").then_some(3e14),
            file: Some(self.text("train.py")),
            line: Some(3),
            stack: Some(1),
            thread: 100,
            sequence: None,
            external_id: None,
            record_function: Some(begin),
            collective: None,
        }
    }

    pub(super) fn operators(&mut self) -> Vec<operators::Row> {
        vec![
            self.operator("ProfilerStep#0", None, [0, 100, 54], [53.0, 23.0]),
            self.operator("aten::linear", Some("ProfilerStep#0"), [10, 40, 20], [30.0, 0.0]),
            self.operator("aten::addmm", Some("aten::linear"), [20, 20, 15], [30.0, 30.0]),
            self.operator("ProfilerStep#1", None, [100, 100, 80], [30.0, 0.0]),
            self.operator("aten::addmm", Some("ProfilerStep#1"), [110, 20, 16], [30.0, 30.0]),
        ]
    }

    /// Kind, category and name; when it was launched, began and ended.
    fn activity(&mut self, words: [&str; 3], times: [i64; 4], number: i64, operator: Option<&str>) -> kernels::Row {
        let [launched, launch_end, begin, end] = times;
        let is_collective = words[1] == "communication";
        let is_kernel = words[0] == "kernel";
        kernels::Row {
            capture: self.text("trace.json"),
            step: Some(launched / 100),
            ts: at(begin),
            duration: (end - begin) as f64,
            kind: self.text(words[0]),
            category: self.text(words[1]),
            name: self.text(words[2]),
            device: Some(0),
            stream: Some(if is_collective { 20 } else { 7 }),
            operator: operator.map(|operator| self.text(operator)),
            module: operator.map(|_| self.text("Net_0.Linear_0")),
            correlation: Some(number),
            launch_ts: Some(at(launched)),
            launch_duration: Some((launch_end - launched) as f64),
            launch_delay: Some((begin - launch_end).max(0) as f64),
            launch_kernels: Some(1),
            grid: is_kernel.then(|| self.text("[8,1,1]")),
            block: is_kernel.then(|| self.text("[256,1,1]")),
            registers: None,
            shared_memory: None,
            blocks_per_sm: is_kernel.then_some(0.5),
            warps_per_sm: None,
            occupancy: is_kernel.then_some(25.0),
            bytes: (!is_kernel).then_some(1024),
            bandwidth: None,
            flops: None,
            bytes_accessed: None,
            collective: is_collective.then(|| self.text("allreduce")),
            group_name: None,
            ranks: None,
            group_size: is_collective.then_some(2),
            seq: None,
            dtype: None,
            elements: None,
            busbw_gbps: None,
            graph_launch: Some(false),
            external_id: None,
        }
    }

    pub(super) fn kernels(&mut self) -> Vec<kernels::Row> {
        let addmm = Some("aten::addmm");
        vec![
            self.activity(["kernel", "computation", "volta_fp16_s884gemm"], [25, 30, 40, 70], 1, addmm),
            self.activity(["memcpy", "memory", "Memcpy HtoD (Pageable -> Device)"], [60, 64, 70, 80], 2, None),
            self.activity(["kernel", "communication", "ncclKernel_AllReduce"], [80, 82, 82, 95], 3, None),
            self.activity(["kernel", "computation", "elementwise"], [112, 116, 120, 150], 4, addmm),
        ]
    }

    pub(super) fn launches(&mut self) -> Vec<launches::Row> {
        let mut launch =
            |name: &str, operator: Option<&str>, begin: i64, duration: i64, number: i64, device: i64| launches::Row {
                capture: self.text("trace.json"),
                step: Some(begin / 100),
                ts: at(begin),
                duration: duration as f64,
                name: self.text(name),
                operator: operator.map(|operator| self.text(operator)),
                module: None,
                thread: 100,
                correlation: Some(number),
                kernels: 1,
                device_duration: device as f64,
                external_id: None,
            };
        vec![
            launch("cudaLaunchKernel", Some("aten::addmm"), 25, 5, 1, 30),
            launch("cudaMemcpyAsync", None, 60, 4, 2, 10),
            launch("cudaLaunchKernel", None, 80, 2, 3, 13),
            launch("cudaLaunchKernel", Some("aten::addmm"), 112, 4, 4, 30),
        ]
    }

    pub(super) fn frames(&mut self) -> Vec<frames::Row> {
        let mut frame =
            |id: i64, function: &str, file: Option<&str>, module: Option<&str>, times: [i64; 3]| frames::Row {
                capture: self.text("trace.json"),
                step: Some(0),
                id: Some(id),
                parent: (id > 1).then_some(id - 1),
                ts: at(times[0]),
                duration: times[1] as f64,
                self_duration: times[2] as f64,
                function: self.text(function),
                file: file.map(|file| self.text(file)),
                line: file.map(|_| 3),
                module: module.map(|module| self.text(module)),
                depth: id as i32 - 1,
                thread: 100,
            };
        vec![
            frame(1, "main", Some("train.py"), None, [0, 200, 150]),
            frame(2, "Net_0", None, Some("Net_0"), [5, 50, 0]),
            frame(3, "Linear_0", None, Some("Net_0.Linear_0"), [5, 50, 50]),
        ]
    }

    /// When, of which device, what (negative: freed), where, what is allocated after it, and by which operator. 1000 bytes of the
    /// device are older than the capture.
    pub(super) fn memory_events(&mut self) -> Vec<memory_events::Row> {
        let events = [
            (12, "cuda:0", 300, 0x1000, 1300, "aten::linear"),
            (22, "cuda:0", 700, 0x2000, 2000, "aten::addmm"),
            (30, "cuda:0", -300, 0x1000, 1700, "aten::addmm"),
            (112, "cuda:0", 500, 0x1000, 2200, "aten::addmm"),
            (130, "cuda:0", -700, 0x2000, 1500, "aten::addmm"),
            (15, "cpu", 64, 0x1000, 64, "aten::linear"),
            (16, "cpu", -8, 0x9000, 56, "aten::linear"),
        ];
        let mut row = |(number, (at_second, device, size, address, allocated, operator)): (
            usize,
            (i64, &str, i64, i64, i64, &str),
        )| {
            memory_events::Row {
                capture: self.text("trace.json"),
                number: number as i64,
                step: Some(at_second / 100),
                ts: Some(at(at_second)),
                action: self.text(if size < 0 { "free" } else { "alloc" }),
                device: self.text(device),
                address: Some(address),
                size: Some(size.abs()),
                stream: None,
                allocated: Some(allocated),
                reserved: Some(if device == "cpu" { 0 } else { 4096 }),
                device_free: None,
                operator: Some(self.text(operator)),
                module: Some(self.text("Net_0.Linear_0")),
                stage: Some(self.text("forward")),
                file: Some(self.text("train.py")),
                line: Some(3),
                function: Some(self.text("main")),
                thread: Some(100),
                metadata: None,
            }
        };
        events.into_iter().enumerate().map(&mut row).collect()
    }

    /// A segment of which a quarter is in use.
    pub(super) fn memory_blocks(&mut self) -> Vec<memory_blocks::Row> {
        let mut row = |address: i64, size: i64, state: &str, line: Option<i32>| memory_blocks::Row {
            capture: self.text("trace.json"),
            ts: Some(at(130)),
            device: self.text("cuda:0"),
            stream: Some(0),
            segment_address: 0x1000,
            segment_size: 4096,
            segment_type: Some(self.text("small")),
            expandable: Some(false),
            pool: Some(self.text("[0,0]")),
            address,
            size,
            requested_size: line.map(|_| 1000),
            state: self.text(state),
            file: line.map(|_| self.text("train.py")),
            line,
            function: line.map(|_| self.text("main")),
        };
        vec![row(0x1000, 1024, "active_allocated", Some(3)), row(0x1400, 3072, "inactive", None)]
    }

    /// Two metrics of a kernel, one of them no number, and an advice.
    pub(super) fn kernel_metrics(&mut self) -> [kernel_metrics::Row; 3] {
        let mut row = |metric: Option<&str>, value: Option<f64>, text: Option<&str>, rule: Option<&str>| {
            let (capture, kernel) = (self.strings.id("gemm.csv"), self.strings.id("gemm"));
            let mut id = |text: Option<&str>| text.map(|text| self.strings.id(text));
            kernel_metrics::Row {
                capture,
                id: 0,
                kernel,
                section: id(Some("Occupancy")),
                metric: id(metric),
                unit: id(value.map(|_| "%")),
                value,
                text: id(text),
                rule: id(rule),
                rule_type: id(rule.map(|_| "OPT")),
                advice: id(rule.map(|_| "use fewer registers")),
                speedup: rule.map(|_| 12.5),
                speedup_type: id(rule.map(|_| "global")),
                process: id(Some("python3")),
                device: Some(0),
                compute_capability: id(Some("9.0")),
                stream: Some(7),
                grid: id(Some("[1024,1,1]")),
                block: id(Some("[256,1,1]")),
            }
        };
        [
            row(Some("Achieved Occupancy"), Some(50.0), None, None),
            row(Some("Cluster Scheduling Policy"), None, Some("PolicySpread"), None),
            row(None, None, None, Some("TheoreticalOccupancy")),
        ]
    }

    /// The same operators of a trace without times.
    pub(super) fn execution_trace(&mut self) -> [execution_trace::Row; 2] {
        let mut node = |node: i64, name: &str, parent: Option<&str>, shapes: &str, began: i64| execution_trace::Row {
            capture: self.text("et.json"),
            node,
            parent_node: parent.map(|_| node - 1),
            parent: parent.map(|parent| self.text(parent)),
            depth: Some(i32::from(parent.is_some())),
            name: self.text(name),
            kind: self.text("operator"),
            schema: None,
            record_function: Some(began),
            forward_node: None,
            sequence: None,
            thread: Some(1),
            input_shapes: Some(self.text(shapes)),
            input_types: None,
            output_shapes: None,
            output_types: None,
        };
        [node(3, "aten::linear", None, "[[2,3]]", 10), node(4, "aten::addmm", Some("aten::linear"), "[[3],[2,3]]", 20)]
    }

    pub(super) fn inspected(&mut self) -> nccl_inspector::Row {
        nccl_inspector::Row {
            capture: self.text("inspector.log"),
            dumped: at(30),
            ts: None,
            duration: Some(0.25),
            timing: Some(self.text("kernel_gpu")),
            communicator: self.text("0x7f"),
            communicator_name: None,
            communicator_rank: Some(0),
            ranks: Some(2),
            nodes: Some(1),
            operation_type: self.text("AllReduce"),
            seq: Some(7),
            p2p: false,
            peer: None,
            bytes: Some(1000),
            algbw_gbps: Some(0.75),
            busbw_gbps: Some(1.5),
        }
    }

    pub(super) fn capture(&mut self) -> captures::Row {
        captures::Row {
            capture: self.text("trace.json"),
            ts: Some(at(0)),
            duration: Some(200.0),
            tool: self.text("kineto"),
            file: Some(self.text("/traces/trace.json")),
            file_bytes: 1000,
            text_bytes: 1000,
            versions: None,
            devices: Some(self.text("Tesla V100-SXM2-16GB")),
            clock: self.text("unix"),
            rank_source: self.text("file"),
            steps: 2,
            first_step: Some(0),
            last_step: Some(1),
            events: 20,
            operators: 5,
            kernels: 4,
            launches: 4,
            frames: 3,
            metrics: 0,
            spans: 0,
            memory_events: 7,
            memory_blocks: 2,
            nodes: 0,
            without_launch: 0,
            left_out: 4,
            reasons: Some(self.text("{\"flow\":4}")),
            mended: 0,
            complete: true,
            problem: None,
            cost: None,
            waited: None,
        }
    }
}
