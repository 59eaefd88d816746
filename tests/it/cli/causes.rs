//! Causes that `probe diagnose` names by something else than the time that they take, and similar situations that are none.

use probe_proto::tables::{environment, steps, sync_points, torch_trace};
use probe_store::Store;

use super::diagnose::{STEPS, begins, nothing, of_rule, record_ranks, said, says};
use crate::cli::support::Home;
use crate::sql::data::Agent;

/// A layer whose forward and backward take so long in each step (s), computed with so many threads.
fn layer(forward: f64, backward: f64, threads: i32) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let device = Some(agent.strings.id("cpu"));
        let row = environment::Row { device, torch_threads: Some(threads), ..agent.environment() };
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
    let of = |samples: i64| {
        let second = move |rank: i32, row: &mut steps::Row| {
            row.samples = Some(if rank == 1 { samples } else { 64 });
            if rank == 1 {
                row.forward_time *= 3.0;
                row.backward_time *= 3.0;
            } else {
                row.comm_time += 0.026;
            }
        };
        let home = Home::empty();
        record_ranks(&home, "gpt@1", STEPS, second, nothing);
        said(&home, ["gpt", "diagnose", "--json", "--rule", "rank-*"])
    };
    let more = of(192);
    says(
        &more,
        "rank-has-more-data",
        "found: rank 1 trains with 192 samples in a step, and the ranks have 128 in the mean",
    );
    says(&more, "rank-slow", "silent");
    let slow = of(64);
    says(&slow, "rank-has-more-data", "silent");
    says(&slow, "rank-slow", "found: rank 1 takes longer than the others for ");
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
    begins(&of(&[500, 500]), "found: every rank reads 500 values of tensors one by one in each step, in other");
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
