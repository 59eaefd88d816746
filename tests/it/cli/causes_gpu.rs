//! `probe diagnose` about GPUs: slowed down, broken, or used in a way that leaves their fast units idle.

use probe_proto::tables::{environment, gpu_metrics, nccl_trace, steps, sync_points, torch_trace};
use probe_store::Store;

use super::diagnose_collectives::one_a_step;
use super::diagnosed_runs::{STEPS, begins, of_rule, record, said, says};
use crate::cli::support::Home;
use crate::sql::data::Agent;

/// The driver's rows of every second.
fn driver(change: impl Fn(&mut Agent, i64, &mut gpu_metrics::Row)) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let row = |agent: &mut Agent, second| {
            let none = Some(agent.strings.id("none"));
            let mut row = gpu_metrics::Row { throttle_reasons: none, sm_clock: Some(1980.0), ..agent.gpu(second) };
            change(agent, second, &mut row);
            row
        };
        let rows: Vec<_> = (0..STEPS).map(|second| row(agent, second)).collect();
        agent.send(store, rows);
    }
}

#[test]
fn a_gpu_that_is_too_hot_is_told_from_one_that_draws_all_its_power() {
    let of = |reason: &'static str, clock: f64| {
        let slowed = move |agent: &mut Agent, second: i64, row: &mut gpu_metrics::Row| {
            if agent.identity.rank == Some(1) && second % 4 == 0 {
                row.throttle_reasons = Some(agent.strings.id(reason));
                row.sm_clock = Some(clock);
            }
        };
        of_rule("gpu-slowed-down", STEPS, |_| (), driver(slowed))
    };
    begins(&of("hw_thermal_slowdown", 1200.0), "found: GPU 1 of node-1 lowered its clocks in ");
    begins(&of("sw_power_cap", 1200.0), "silent");
    begins(&of("sw_thermal_slowdown", 1965.0), "silent");
}

#[test]
fn errors_that_the_driver_reports_are_told() {
    let of = |xid: Option<i32>, ecc: i64| {
        let breaks = move |agent: &mut Agent, second: i64, row: &mut gpu_metrics::Row| {
            if agent.identity.rank == Some(0) {
                row.xid = xid.filter(|_| second == 60);
                row.ecc_uncorrected = Some(if second < 60 { 0 } else { ecc });
            }
        };
        of_rule("gpu-errors", STEPS, |_| (), driver(breaks))
    };
    begins(&of(Some(79), 0), "found: GPU 0 of node-1: the driver reports Xid 79: it has fallen off the bus");
    begins(&of(Some(31), 0), "found: GPU 0 of node-1: the driver reports Xid 31");
    begins(&of(None, 2), "found: GPU 0 of node-1: 2 memory errors that ECC could not correct");
    begins(&of(None, 0), "silent");
}

/// Modules of these types, each with its share of the GPU's time (s a step), under such conditions.
fn modules(
    types: &'static [(&'static str, f64)],
    change: impl Fn(&mut Agent, &mut environment::Row),
) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let mut row = environment::Row {
            device: Some(agent.strings.id("cuda:0")),
            parameter_dtype: Some(agent.strings.id("float32")),
            autocast: Some(false),
            autocast_dtype: None,
            cudnn_benchmark: Some(false),
            float32_matmul_precision: Some(agent.strings.id("highest")),
            matmul_tf32: Some(false),
            ..agent.environment()
        };
        change(agent, &mut row);
        agent.send(store, [row]);
        let device = Some(agent.strings.id("cuda:0"));
        let shape = Some(agent.strings.id("[64, 3, 224, 224]"));
        let mut rows = Vec::new();
        for step in 0..STEPS {
            for (of, (kind, took)) in types.iter().enumerate() {
                let row = agent.trace(step, Some("net"), "forward", *took);
                let module_type = Some(agent.strings.id(kind));
                let input_shape = shape.filter(|_| of == 0);
                rows.push(torch_trace::Row { device, module_type, input_shape, depth: of.min(1) as i32, ..row });
            }
        }
        agent.send(store, rows);
    }
}

/// A GPU that has work nearly all the time, or waits for the host.
fn idle(seconds: f64) -> impl Fn(&mut steps::Row) {
    move |row| row.gpu_idle_max = Some(seconds)
}

const LAYERS: &[(&str, f64)] = &[("Net", 0.0001), ("Linear", 0.004), ("LayerNorm", 0.001)];
const CONVOLUTIONS: &[(&str, f64)] = &[("Net", 0.0001), ("Conv2d", 0.004), ("BatchNorm2d", 0.001)];

#[test]
fn matrices_that_are_multiplied_in_float32_are_told_where_the_gpu_is_busy() {
    let of = |seconds, change: &dyn Fn(&mut Agent, &mut environment::Row)| {
        of_rule("float32-matmul", STEPS, idle(seconds), modules(LAYERS, change))
    };
    let plain = |_: &mut Agent, _: &mut environment::Row| ();
    begins(
        &of(0.001, &plain),
        "found: every rank multiplies matrices in float32 on a NVIDIA H200, without its tensor cores: layers that do so are 78 %",
    );
    begins(&of(0.012, &plain), "silent");
    begins(&of(0.001, &|_, row| row.autocast = Some(true)), "silent");
    begins(&of(0.001, &|agent, row| row.float32_matmul_precision = Some(agent.strings.id("high"))), "silent");
    begins(&of(0.001, &|agent, row| row.gpu_models = Some(agent.strings.id("Tesla V100"))), "silent");
    // cuDNN computes with TF32 as torch comes.
    begins(&of_rule("float32-matmul", STEPS, idle(0.001), modules(CONVOLUTIONS, plain)), "silent");
}

#[test]
fn convolutions_of_one_size_without_cudnns_trials_are_told() {
    let of = |change: &dyn Fn(&mut Agent, &mut environment::Row)| {
        of_rule("cudnn-benchmark-off", STEPS, idle(0.001), modules(CONVOLUTIONS, change))
    };
    begins(&of(&|_, _| ()), "found: every rank: convolutions are 78 % of the GPU's time in modules");
    begins(&of(&|_, row| row.cudnn_benchmark = Some(true)), "silent");
    begins(&of(&|_, row| row.cudnn_deterministic = Some(true)), "silent");
    begins(&of_rule("cudnn-benchmark-off", STEPS, idle(0.001), modules(LAYERS, |_, _| ())), "silent");
}

#[test]
fn modules_that_mostly_read_and_write_are_told_where_they_are_a_quarter() {
    const LIGHT: &[(&str, f64)] = &[("Net", 0.0001), ("Linear", 0.004), ("LayerNorm", 0.002), ("GELU", 0.001)];
    let of = |types| of_rule("memory-bound-modules", STEPS, idle(0.001), modules(types, |_, _| ()));
    begins(&of(LIGHT), "found: every rank: 42 % of the GPU's time in modules is in those that compute little");
    begins(&of(LAYERS), "silent");
    begins(&of_rule("memory-bound-modules", STEPS, idle(0.012), modules(LIGHT, |_, _| ())), "silent");
}

#[test]
fn gradients_of_a_gpu_that_go_through_gloo_are_told() {
    let of = |device: &'static str, backend: &'static str| {
        let more = move |agent: &mut Agent, store: &Store| {
            let device = Some(agent.strings.id(device));
            let row = environment::Row { device, ..agent.environment() };
            agent.send(store, [row]);
            let row = nccl_trace::Row { backend: agent.strings.id(backend), ..agent.collective(0, 0, "all_reduce") };
            one_a_step(agent, store, row);
        };
        of_rule("gloo-for-gpu", STEPS, |_| (), more)
    };
    begins(&of("cuda:0", "gloo"), "found: every rank trains on a GPU and sends 1.05 MB a step with gloo");
    begins(&of("cuda:0", "nccl"), "silent");
    begins(&of("cpu", "gloo"), "silent");
}

#[test]
fn the_modules_that_keep_a_host_from_launching_faster_are_named() {
    let home = Home::empty();
    let slow = |agent: &mut Agent, store: &Store| {
        driver(|_, _, row| row.utilization = Some(20.0))(agent, store);
        let [part, device] = ["optimizer", "cuda:0"].map(|text| agent.strings.id(text));
        let row = sync_points::Row { waited: 0.0001, part: Some(part), device, ..agent.sync_point() };
        agent.send(store, [10, 20, 30].map(|step| sync_points::Row { step, ..row }));
        let mut rows = Vec::new();
        for step in 0..STEPS {
            for layer in 0..4 {
                for (name, took) in [("attn", 0.0008), ("mlp", 0.0001)] {
                    let name = format!("layers.{layer}.{name}");
                    let row = agent.trace(step, Some(&name), "forward", took);
                    rows.push(torch_trace::Row { duration: Some(0.00001), ..row });
                }
            }
        }
        agent.send(store, rows);
    };
    record(&home, "gpt@1", STEPS, idle(0.012), slow);
    let all = said(&home, ["gpt", "diagnose", "--json", "--rule", "host-bound"]);
    says(&all, "host-bound", "found: every rank: no kernel ran in 80 % of the time");
    assert!(all["host-bound"].contains("; 89 % of the host's time in modules is in layers.*.attn"), "{all:?}");
}
