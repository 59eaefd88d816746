//! `probe diagnose` about ranks: that they train the same model under the same conditions, and what they wait for together.

use std::collections::BTreeMap;

use probe_proto::tables::{environment, nccl_trace, steps, torch_trace};
use probe_store::Store;

use super::diagnose_collectives::one_a_step;
use super::diagnosed_runs::{STEPS, begins, logs, of_rule, record_ranks, said, says};
use crate::cli::support::Home;
use crate::sql::data::Agent;

#[test]
fn a_network_that_every_rank_waits_for_is_told_from_one_slow_rank() {
    let of = |waits: [f64; 2], backend: &'static str| {
        let home = Home::empty();
        let sends = move |agent: &mut Agent, store: &Store| {
            let row = nccl_trace::Row { backend: agent.strings.id(backend), ..agent.collective(0, 0, "all_reduce") };
            one_a_step(agent, store, row);
        };
        record_ranks(&home, "gpt@1", STEPS, |rank, row| row.comm_time = waits[rank as usize], sends);
        let words = ["gpt", "diagnose", "--json", "--rule", "communication-bound"];
        said(&home, words).remove("communication-bound").unwrap_or_default()
    };
    begins(&of([0.03, 0.03], "nccl"), "found: every rank waits for communication in 66 % of a step");
    begins(&of([0.03, 0.002], "nccl"), "silent");
    // Where the host computes what is sent, it has no time for anything else.
    begins(&of([0.03, 0.03], "gloo"), "silent");
}

#[test]
fn a_rank_that_gets_more_of_an_all_to_all_is_told() {
    let of = |bytes: i64| {
        let sends = move |agent: &mut Agent, store: &Store| {
            let more = agent.identity.rank == Some(1);
            let row = agent.collective(0, 0, "all_to_all_single");
            let row = nccl_trace::Row { bytes: if more { bytes } else { 1 << 20 }, ..row };
            one_a_step(agent, store, row);
        };
        of_rule("uneven-all-to-all", STEPS, |_| (), sends)
    };
    begins(&of(3 << 20), "found: rank 1: sends or receives 1.50 times as much by all_to_all");
    begins(&of(1 << 20), "silent");
}

#[test]
fn replicas_whose_gradients_have_different_norms_are_told() {
    let of = |norm: f64, wrapper: Option<&'static str>| {
        let more = move |agent: &mut Agent, store: &Store| {
            let wrapper = wrapper.map(|name| agent.strings.id(name));
            let row = environment::Row { wrapper, ..agent.environment() };
            agent.send(store, [row]);
            let differs = agent.identity.rank == Some(1);
            let of_step = |step: i64| if differs && step >= 40 { norm } else { 1.0 } / (1.0 + step as f64);
            logs("torch.clip_grad_norm_", of_step)(agent, store);
        };
        of_rule("gradient-norms-differ", STEPS, |_| (), more)
    };
    let wrapped = Some("DistributedDataParallel");
    begins(&of(1.2, wrapped), "found: the norm of the gradients differs between ranks in ");
    begins(&of(1.0, wrapped), "silent");
    // Ranks that train models of their own.
    begins(&of(1.2, None), "silent");
}

#[test]
fn conditions_that_differ_between_ranks_are_told_with_their_values() {
    let of = |threads: i32| {
        let more = move |agent: &mut Agent, store: &Store| {
            let second = agent.identity.rank == Some(1);
            let row = environment::Row { torch_threads: Some(if second { threads } else { 8 }), ..agent.environment() };
            agent.send(store, [row]);
        };
        of_rule("ranks-differ", STEPS, |_| (), more)
    };
    begins(&of(1), "found: torch_threads differs between ranks: 8 (rank 0), 1 (rank 1)");
    begins(&of(8), "silent");
}

#[test]
fn an_operation_that_stalled_is_told_with_the_rank_that_came_last() {
    let of = |longest: f64| {
        let more = move |agent: &mut Agent, store: &Store| {
            let last = agent.identity.rank == Some(1);
            let row = agent.collective(0, 0, "all_reduce");
            let row = |step: i64| {
                let took = if step != 70 {
                    2.0
                } else if last {
                    3.0
                } else {
                    longest
                };
                nccl_trace::Row { step, seq: step, duration_ms: Some(took), ..row }
            };
            agent.send(store, (0..STEPS).map(row));
        };
        of_rule("stalled-collective", STEPS, |_| (), more)
    };
    begins(
        &of(4000.0),
        "found: 1 of 120 all_reduce took a second or more, a hundred times as long as usual, first in step 70: rank 1 came last",
    );
    begins(&of(400.0), "silent");
}

/// What the modules of a rank take (s) in a step.
type ModuleTimes = fn(rank: i32, step: i64, module: i64) -> f64;

/// Two ranks with four layers, whose forward passes take as long as `times` returns, and backward passes 2 ms.
fn of_modules(times: ModuleTimes, length: i32, collective: &'static str) -> BTreeMap<String, String> {
    let home = Home::empty();
    let forward = |rank: i32, step: i64| (0..4).map(|module| times(rank, step, module)).sum::<f64>();
    let change = |rank: i32, row: &mut steps::Row| {
        (row.forward_time, row.backward_time) = (forward(rank, row.step), 0.008);
        row.comm_time = 0.001 + (forward(1 - rank, row.step) - row.forward_time).max(0.0);
    };
    let more = |agent: &mut Agent, store: &Store| {
        let rank = agent.identity.rank.unwrap_or_default();
        let input_shape = Some(agent.strings.id(&format!("[64, {}]", if rank == 1 { length } else { 32 })));
        for step in 0..STEPS {
            let root = torch_trace::Row { input_shape, ..agent.trace(step, Some("GPT"), "forward", 0.0001) };
            let mut rows = vec![root];
            for module in 0..4 {
                let name = format!("layers.{module}");
                rows.push(agent.trace(step, Some(&name), "forward", times(rank, step, module)));
                rows.push(agent.trace(step, Some(&name), "backward", 0.002));
            }
            agent.send(store, rows);
        }
        let row = agent.collective(0, 0, collective);
        one_a_step(agent, store, row);
    };
    record_ranks(&home, "gpt@1", STEPS, change, more);
    said(&home, ["gpt", "diagnose", "--json", "--rule", "module-slow-on-rank,rank-slow"])
}

#[test]
fn the_module_in_which_a_rank_is_slow_is_told_from_ranks_that_are_slower_altogether() {
    let one: ModuleTimes = |rank, _, module| if rank == 1 && module == 2 { 0.011 } else { 0.001 };
    let said = of_modules(one, 32, "all_reduce");
    says(
        &said,
        "module-slow-on-rank",
        "found: rank 1 takes 11.0 ms for module layers.2 in the forward pass of a step, where the others take 1.0 ms",
    );
    says(&said, "rank-slow", "silent: module-slow-on-rank explains it");
    // Experts that get more tokens, and inputs that are larger.
    says(&of_modules(one, 32, "all_to_all_single"), "module-slow-on-rank", "silent");
    says(&of_modules(one, 64, "all_reduce"), "module-slow-on-rank", "silent");
    let even: ModuleTimes = |_, _, _| 0.001;
    says(&of_modules(even, 32, "all_reduce"), "module-slow-on-rank", "silent");
    let all: ModuleTimes = |rank, _, _| if rank == 1 { 0.004 } else { 0.001 };
    let said = of_modules(all, 32, "all_reduce");
    says(&said, "module-slow-on-rank", "silent");
    says(&said, "rank-slow", "found: rank 1 takes longer than the others for forward");
    // The other rank waits as long, within its next layer.
    let waits: ModuleTimes = |rank, _, module| if module == 3 - i64::from(rank) { 0.011 } else { 0.001 };
    says(&of_modules(waits, 32, "all_reduce"), "module-slow-on-rank", "silent");
    // In most steps, but not in nearly every one.
    let often: ModuleTimes = |rank, step, module| if rank == 1 && module == 2 && step % 5 > 0 { 0.011 } else { 0.001 };
    says(&of_modules(often, 32, "all_reduce"), "module-slow-on-rank", "silent");
}

fn waits_for_nothing(row: &mut steps::Row) {
    row.comm_time = 0.0;
}

#[test]
fn ranks_with_the_longest_input_by_turns_are_told_from_ranks_that_are_slow_by_turns() {
    let is_long = |step: i64, rank: i32| (step * 7 + i64::from(rank) * 3) % 5 < 2;
    let of = |lengths: [i32; 2]| {
        let home = Home::empty();
        let varies = move |rank: i32, row: &mut steps::Row| {
            for (of, factor) in [(rank, 1.0), (1 - rank, 0.0)] {
                if is_long(row.step, of) {
                    row.forward_time += factor * 0.01;
                    row.comm_time += (1.0 - factor) * 0.01;
                }
            }
            if is_long(row.step, 0) && is_long(row.step, 1) {
                row.comm_time -= 0.01;
            }
        };
        let shapes = move |agent: &mut Agent, store: &Store| {
            let ids = lengths.map(|length| Some(agent.strings.id(&format!("[64, {length}]"))));
            let rank = agent.identity.rank.unwrap_or_default();
            let rows: Vec<_> = (0..STEPS)
                .map(|step| torch_trace::Row {
                    depth: 0,
                    input_shape: ids[usize::from(is_long(step, rank))],
                    ..agent.trace(step, Some("Net"), "forward", 0.01)
                })
                .collect();
            agent.send(store, rows);
        };
        record_ranks(&home, "gpt@1", STEPS, varies, shapes);
        said(&home, ["gpt", "diagnose", "--json", "--rule", "uneven-inputs,rank-*"])
    };
    let uneven = of([32, 96]);
    says(&uneven, "uneven-inputs", "found: the ranks take turns in having the largest input of a step: it is ");
    says(&uneven, "rank-slow", "silent");
    says(&of([32, 32]), "uneven-inputs", "silent");
}

#[test]
fn the_slowest_stage_of_a_pipeline_and_its_bubble_are_told() {
    let of = |slower: f64, micro_steps: i32, operations: &'static [&'static str]| {
        let home = Home::empty();
        let stages = move |rank: i32, row: &mut steps::Row| {
            row.micro_steps = micro_steps;
            row.comm_time = 0.003;
            *(if rank == 1 { &mut row.backward_time } else { &mut row.comm_time }) += slower;
        };
        let sends = move |agent: &mut Agent, store: &Store| {
            for operation in operations {
                let row = agent.collective(0, 0, operation);
                one_a_step(agent, store, row);
            }
        };
        record_ranks(&home, "gpt@1", STEPS, stages, sends);
        said(&home, ["gpt", "diagnose", "--json", "--rule", "uneven-stages,pipeline-bubble,rank-slow"])
    };
    let pipeline = of(0.01, 2, &["send", "recv"]);
    says(
        &pipeline,
        "uneven-stages",
        "found: rank 1 has the slowest stage of the pipeline: its forward and backward passes compute for 23.0 ms in a step, \
         those of an average stage for 18.0 ms",
    );
    says(&pipeline, "pipeline-bubble", "found: a step has 2 micro batches for 2 stages of a pipeline");
    says(&pipeline, "rank-slow", "silent");
    let even = of(0.0, 8, &["send", "recv"]);
    says(&even, "uneven-stages", "silent");
    says(&even, "pipeline-bubble", "silent");
    // Ranks that only send are no stages: those get gradients back.
    says(&of(0.01, 1, &["send"]), "pipeline-bubble", "silent");
    let replicas = of(0.01, 2, &["all_reduce"]);
    says(&replicas, "uneven-stages", "silent");
    says(&replicas, "pipeline-bubble", "silent");
    says(&replicas, "rank-slow", "found");
}

#[test]
fn one_thread_on_a_large_machine_is_told() {
    let of = |cores: i32, threads: i32| {
        let more = move |agent: &mut Agent, store: &Store| {
            let device = Some(agent.strings.id("cpu"));
            let row = agent.environment();
            let row = environment::Row {
                device,
                cpu_cores: Some(cores),
                torch_threads: Some(threads),
                num_workers: Some(2),
                ..row
            };
            agent.send(store, [row]);
        };
        of_rule("one-thread", STEPS, waits_for_nothing, more)
    };
    begins(&of(64, 1), "found: every rank computes with one thread, and its machine has 64 processors for 2 of them");
    begins(&of(64, 8), "silent");
    begins(&of(8, 1), "silent");
}
