//! Causes that `probe diagnose` names by something else than the time that they take, and similar situations that are none.

use probe_proto::tables::{environment, nccl_trace, operator_counts, steps, sync_points, torch_trace};
use probe_store::Store;
use serde_json::Value;

use super::diagnosed_runs::{STEPS, advises, begins, nothing, of_rule, record_ranks, said, says};
use crate::cli::support::Home;
use crate::sql::data::Agent;

/// A layer of float32 whose forward and backward take so long in each step (s), computed with so many threads.
fn layer(forward: f64, backward: f64, threads: i32) -> impl Fn(&mut Agent, &Store) {
    layer_of("float32", forward, backward, threads)
}

/// The same, of parameters of this type.
pub(super) fn layer_of(dtype: &'static str, forward: f64, backward: f64, threads: i32) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let (device, parameter_dtype) = (Some(agent.strings.id("cpu")), Some(agent.strings.id(dtype)));
        let (torch_threads, autocast) = (Some(threads), Some(false));
        let row = environment::Row { device, parameter_dtype, torch_threads, autocast, ..agent.environment() };
        agent.send(store, [row]);
        let stages = [("forward", forward), ("backward", backward)];
        let rows: Vec<_> = (0..STEPS)
            .flat_map(|step| stages.map(|(stage, took)| agent.trace(step, Some("layers.1"), stage, took)))
            .collect();
        agent.send(store, rows);
    }
}

#[test]
fn denormal_numbers_are_told_from_a_layer_that_is_large_and_from_a_thread_that_waits() {
    let of = |cpu: f64, delay: f64, more: &dyn Fn(&mut Agent, &Store)| {
        let change = move |row: &mut steps::Row| (row.cpu_time, row.run_delay) = (Some(cpu), Some(delay));
        of_rule("denormal-numbers", STEPS, change, more)
    };
    begins(
        &of(0.015, 0.0, &layer(0.004, 0.0002, 1)),
        "found: every rank: the forward of layers.1 (Linear) takes 3.8 ms of computing and its backward 0.2 ms",
    );
    begins(&of(0.015, 0.0, &layer(0.004, 0.004, 1)), "silent");
    // The thread waits for a lock or a processor in that layer, and computes no longer than backward.
    begins(&of(0.001, 0.0, &layer(0.004, 0.0002, 1)), "silent");
    // Threads that compute together wait for the one of them whose processor a neighbour has.
    begins(&of(0.015, 0.004, &layer(0.004, 0.0002, 4)), "silent");
    begins(&of(0.015, 0.0, &layer(0.004, 0.0002, 4)), "found");
}

#[test]
fn a_rank_with_more_samples_is_told_from_one_that_is_slow() {
    // The second rank takes three times as long for forward and backward, and the first one waits for it.
    let of = |samples: i64, lengths: [i32; 2]| {
        let second = move |rank: i32, row: &mut steps::Row| {
            row.samples = Some(if rank == 1 { samples } else { 64 });
            if rank == 1 {
                row.forward_time *= 3.0;
                row.backward_time *= 3.0;
            } else {
                row.comm_time += 0.026;
            }
        };
        let sequences = move |agent: &mut Agent, store: &Store| {
            let length = lengths[usize::from(agent.identity.rank == Some(1))];
            let shape = Some(agent.strings.id(&format!("[64, {length}]")));
            let rows: Vec<_> = (0..STEPS)
                .map(|step| torch_trace::Row {
                    depth: 0,
                    input_shape: shape,
                    ..agent.trace(step, Some("Net"), "forward", 0.01)
                })
                .collect();
            agent.send(store, rows);
        };
        let home = Home::empty();
        record_ranks(&home, "gpt@1", STEPS, second, sequences);
        said(&home, ["gpt", "diagnose", "--json", "--rule", "rank-*"])
    };
    let more = of(192, [32, 32]);
    says(
        &more,
        "rank-has-more-data",
        "found: rank 1 trains with 192 samples in a step, and the ranks have 128 on average",
    );
    says(&more, "rank-slow", "silent");
    let longer = of(64, [32, 96]);
    says(
        &longer,
        "rank-has-more-data",
        "found: rank 1 trains with 6144 elements of inputs in a step, and the ranks have 4096 on average",
    );
    says(&longer, "rank-slow", "silent");
    let slow = of(64, [32, 32]);
    says(&slow, "rank-has-more-data", "silent");
    says(&slow, "rank-slow", "found: rank 1 takes longer than the others for ");
}

#[test]
fn what_a_rank_with_more_samples_would_save_is_the_same_where_it_waits_for_a_processor() {
    let saves = |delay: f64| {
        let second = move |rank: i32, row: &mut steps::Row| {
            row.samples = Some(if rank == 1 { 192 } else { 64 });
            row.run_delay = Some(delay);
            if rank == 1 {
                row.forward_time *= 3.0;
                row.backward_time *= 3.0;
            } else {
                row.comm_time += 0.026;
            }
        };
        let home = Home::empty();
        record_ranks(&home, "gpt@1", STEPS, second, nothing);
        let answer: Value =
            serde_json::from_str(&home.stdout(["gpt", "diagnose", "--json", "--rule", "rank-has-more-data"])).unwrap();
        answer["findings"][0]["saving"]["percent"].as_f64().unwrap()
    };
    let saved = saves(0.0);
    assert!(saved > 10.0, "{saved}");
    assert_eq!(saves(0.02), saved);
}

#[test]
fn reads_of_tensors_are_known_from_two_steps_where_both_have_many() {
    let of = |counts: &'static [i32]| {
        let watched = move |agent: &mut Agent, store: &Store| {
            let (part, file) = (Some(agent.strings.id("other")), Some(agent.strings.id("train.py")));
            let read = agent.sync_point();
            let rows = counts.iter().zip([10, 74]).map(|(count, step)| sync_points::Row {
                step,
                count: *count,
                waited: 0.004,
                part,
                file,
                line: Some(12),
                ..read
            });
            agent.send(store, rows);
        };
        of_rule("reads-of-tensors", STEPS, |row| row.other_time = 0.006, watched)
    };
    begins(
        &of(&[500, 500]),
        "found: every rank reads 500 values of tensors one by one in each step, in the loop's own code (other)",
    );
    // What is read now and then is not known of one step.
    begins(&of(&[3, 500]), "silent");
    begins(&of(&[500]), "silent");
}

#[test]
fn batches_that_are_too_small_are_told_from_modules_that_have_something_to_do() {
    let of = |samples: i64, took: f64| {
        let modules = move |agent: &mut Agent, store: &Store| {
            let shape = Some(agent.strings.id("[1, 256]"));
            let rows: Vec<_> = (0..STEPS)
                .flat_map(|step| {
                    ["Net", "layers.1"].map(|module| {
                        let row = agent.trace(step, Some(module), "forward", took);
                        torch_trace::Row { input_shape: shape, ..row }
                    })
                })
                .collect();
            agent.send(store, rows);
        };
        let small = |row: &mut steps::Row| {
            row.micro_steps = 1;
            row.samples = Some(samples);
        };
        of_rule("small-batches", STEPS, small, modules)
    };
    begins(&of(1, 0.00003), "found: every rank: the model is called with batches of 1, and its modules take 30 ");
    begins(&of(1, 0.003), "silent");
    begins(&of(32, 0.00003), "silent");
}

#[test]
fn one_backward_pass_for_each_loss_is_told_from_one_for_each_call() {
    let of = |forward: usize, backward: usize| {
        let modules = move |agent: &mut Agent, store: &Store| {
            let mut rows = Vec::new();
            for step in 0..STEPS {
                for module in ["layers.0", "layers.1"] {
                    rows.extend((0..forward).map(|_| agent.trace(step, Some(module), "forward", 0.001)));
                    rows.extend((0..backward).map(|_| agent.trace(step, Some(module), "backward", 0.002)));
                }
            }
            agent.send(store, rows);
        };
        of_rule("several-backward-passes", STEPS, |row| row.backward_time = 0.012, modules)
    };
    begins(&of(1, 3), "found: every rank runs the backward pass of 2 modules 3 times for each call of them");
    begins(&of(3, 3), "silent");
    begins(&of(2, 1), "silent");
}

/// The answer of `rule` where watched steps call so many operators of so many seconds each in a part, and where rank 0 is the slow
/// one (rank 1 has compiled something).
fn counted(rule: &str, part: &'static str, calls: (i64, f64), change: impl Fn(&mut steps::Row)) -> String {
    counted_of("aten::select", rule, part, calls, change)
}

/// The same, where the operator that is called most often is `operator`.
fn counted_of(
    operator: &'static str,
    rule: &str,
    part: &'static str,
    calls: (i64, f64),
    change: impl Fn(&mut steps::Row),
) -> String {
    counted_with(rule, change, counts(operator, part, calls))
}

/// Counts of two watched steps, in which a part calls so many operators of so many seconds each.
pub(super) fn counts(
    operator: &'static str,
    part: &'static str,
    (calls, each): (i64, f64),
) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let [row, _] = agent.operator_counts();
        let (operator, part) = (Some(agent.strings.id(operator)), agent.strings.id(part));
        let rows = [10, 74].map(|step| operator_counts::Row {
            step,
            operator,
            part,
            count: calls,
            outermost: calls,
            duration: calls as f64 * each,
            ..row
        });
        agent.send(store, rows);
    }
}

/// The same, where agents send what `counts` sends.
fn counted_with(rule: &str, change: impl Fn(&mut steps::Row), counts: impl Fn(&mut Agent, &Store)) -> String {
    let home = Home::empty();
    let first = move |rank: i32, row: &mut steps::Row| {
        let mut changed = *row;
        change(&mut changed);
        if rank == 0 {
            *row = changed;
        } else {
            // The other one waits for it.
            let own = |row: &steps::Row| row.forward_time + row.backward_time + row.other_time;
            row.comm_time += own(&changed) - own(row);
        }
    };
    record_ranks(&home, "gpt@1", STEPS, first, counts);
    said(&home, ["gpt", "diagnose", "--json", "--rule", rule]).remove(rule).unwrap_or_default()
}

#[test]
fn many_small_operations_are_told_from_few_and_from_large_ones() {
    let of = |calls: (i64, f64), forward_time: f64| {
        counted("many-small-operations", "forward", calls, move |row| row.forward_time = forward_time)
    };
    begins(
        &of((2000, 3e-6), 0.012),
        "found: every rank: the forward pass calls 2000 operators in each step, of 3 microseconds each, most often aten::select",
    );
    begins(&of((2000, 3e-5), 0.07), "silent");
    begins(&of((100, 3e-6), 0.012), "silent");
}

#[test]
fn small_operations_cost_their_backward_passes_too() {
    let small = |row: &mut steps::Row| (row.forward_time, row.backward_time) = (0.008, 0.02);
    let of = |backward: (i64, f64)| {
        let counts = move |agent: &mut Agent, store: &Store| {
            counts("aten::select", "forward", (2000, 3e-6))(agent, store);
            counts("SelectBackward0", "backward", backward)(agent, store);
        };
        counted_with("many-small-operations", small, counts)
    };
    let found = "found: every rank: the forward pass calls 2000 operators in each step, of 3 microseconds each, most often \
                 aten::select: most of that is what a call costs, whatever it computes";
    begins(&of((2000, 6e-6)), &format!("{found}, and the backward pass through them likewise ("));
    begins(&of((50, 3e-4)), &format!("{found} ("));
}

#[test]
fn many_small_operations_between_parts_are_told_from_few_and_from_large_ones() {
    let of = |calls: (i64, f64), other_time: f64| {
        counted("small-operations-between-parts", "other", calls, move |row| row.other_time = other_time)
    };
    begins(
        &of((1000, 5e-6), 0.012),
        "found: rank 0 calls 1000 operators in each step outside of data, forward, backward and optimizer, of 5 microseconds \
         each, most often aten::select",
    );
    for (operator, remedy) in [
        ("aten::item", "compute on whole tensors and read the result once"),
        ("aten::select", "compute on whole tensors instead of looping over their rows"),
        ("aten::mul_", "do it for all parameters at once"),
    ] {
        let rule = "small-operations-between-parts";
        let said = counted_of(operator, rule, "other", (1000, 5e-6), |row| row.other_time = 0.012);
        advises(&said, remedy);
    }
    begins(&of((200, 5e-5), 0.012), "silent");
    begins(&of((40, 5e-6), 0.012), "silent");
}

#[test]
fn python_is_what_operators_do_not_take() {
    let forward = |calls: (i64, f64)| counted("python-in-forward", "forward", calls, |row| row.forward_time = 0.02);
    begins(&forward((100, 2e-5)), "found: rank 0 spends 16.7 ms of a step in forward and in no operator of torch's");
    begins(&forward((100, 1.9e-4)), "silent");
    // While the thread waits for a processor half of the time, half of what is between operators is not its own.
    let waits = |row: &mut steps::Row| (row.forward_time, row.run_delay) = (0.02, Some(0.0155));
    begins(&counted("python-in-forward", "forward", (100, 2e-5), waits), "found: rank 0 spends 8.");
    begins(&counted("python-in-forward", "forward", (100, 1.6e-4), waits), "silent");
    // What calls of operators cost is no work of the program's.
    begins(&forward((1000, 5e-6)), "silent");
    // A forward pass may wait for other ranks: for buffers, or for parameters.
    let waits = |wrapper: Option<&'static str>, operation: &'static str| {
        let send = move |agent: &mut Agent, store: &Store| {
            counts("aten::select", "forward", (100, 2e-5))(agent, store);
            let wrapper = wrapper.map(|name| agent.strings.id(name));
            let row = environment::Row { wrapper, ..agent.environment() };
            agent.send(store, [row]);
            let row = nccl_trace::Row { duration_ms: Some(17.0), ..agent.collective(0, 0, operation) };
            agent.send(store, [10, 74].map(|step| nccl_trace::Row { step, seq: step, ..row }));
        };
        counted_with("python-in-forward", |row| row.forward_time = 0.02, send)
    };
    begins(&waits(Some("DistributedDataParallel"), "broadcast"), "silent");
    begins(&waits(Some("DistributedDataParallel"), "all_reduce"), "found: rank 0 spends 16.7 ms");
    begins(&waits(None, "all_gather_into_tensor"), "silent");
    let other = |calls: (i64, f64)| counted("python-between-parts", "other", calls, |row| row.other_time = 0.01);
    begins(
        &other((10, 2e-5)),
        "found: rank 0 spends 9.7 ms of a step outside of data, forward, backward and optimizer",
    );
    begins(&other((10, 9e-4)), "silent");
}
