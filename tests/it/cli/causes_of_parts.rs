//! Causes that `probe diagnose` finds in one part of a step, beside programs that do the same and mean it.

use probe_proto::table::Time;
use probe_proto::tables::{data_trace, environment, memory, spans, stack_samples, steps};
use probe_store::Store;

use super::causes::{counts, layer_of};
use super::diagnosed_runs::{STEPS, advises, begins, nothing, of_rule, of_rules, says};
use crate::sql::data::{Agent, START};

#[test]
fn trainings_that_take_turns_are_told_from_stalls() {
    // In each fourth step, forward and backward take 20 ms longer, and a further module may be called.
    let change = |row: &mut steps::Row| {
        if row.step % 4 == 0 {
            (row.forward_time, row.backward_time) = (row.forward_time + 0.02, row.backward_time + 0.02);
        }
    };
    let of = |turns: bool| {
        let more = move |agent: &mut Agent, store: &Store| {
            let rows: Vec<_> = (0..STEPS)
                .flat_map(|step| {
                    let further = (turns && step % 4 == 0).then_some("layers.1");
                    ["layers.0"].into_iter().chain(further).map(move |module| (step, module))
                })
                .map(|(step, module)| agent.trace(step, Some(module), "forward", 0.001))
                .collect();
            agent.send(store, rows);
        };
        of_rule("periodic-stall", STEPS, change, more)
    };
    begins(&of(false), "found: every rank: every 4 steps, backward takes 19.9 ms longer");
    begins(&of(true), "silent");
}

/// Batches of a loader without workers that take 6 ms, and a sample of the stack in each step.
fn loads(function: &'static str, sampler: &'static str) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let sampler = Some(agent.strings.id(sampler));
        let row = environment::Row { cpu_cores: Some(8), sampler, ..agent.environment() };
        agent.send(store, [row]);
        let rows: Vec<_> = (0..STEPS).map(|step| agent.batch_handed(step)).collect();
        let row = |(step, row)| data_trace::Row { step, num_workers: Some(0), wait: 0.006, ..row };
        agent.send(store, (0..STEPS).zip(rows).map(row));
        let (function, part) = (Some(agent.strings.id(function)), agent.strings.id("data"));
        let rows: Vec<_> = (0..STEPS)
            .map(|step| stack_samples::Row { function, part, ..agent.stack_sample(step, step as f64 + 0.005) })
            .collect();
        agent.send(store, rows);
    }
}

#[test]
fn a_sampler_is_told_from_a_data_set_and_promised_to_no_worker() {
    let of = |function, sampler| {
        let change = |row: &mut steps::Row| row.data_time = 0.006;
        of_rules("loads-in-loop,slow-sampler", STEPS, change, loads(function, sampler))
    };
    let said = of("Balanced.__iter__", "Balanced");
    says(&said, "slow-sampler", "found: every rank: the training thread runs the loader's sampler (Balanced.__iter__)");
    says(&said, "loads-in-loop", "silent");
    let found = "found: every rank: batches are made on the training thread";
    // The loop of that name may be an iterable dataset's, or that of what is around the loader.
    for (function, sampler) in [
        ("Text.__getitem__", "RandomSampler"),
        ("Text.__iter__", "_InfiniteConstantSampler"),
        ("Prefetcher.__iter__", "RandomSampler"),
    ] {
        let said = of(function, sampler);
        says(&said, "slow-sampler", "silent");
        says(&said, "loads-in-loop", found);
    }
}

#[test]
fn denormal_numbers_on_the_way_back_are_told_from_a_backward_that_is_twice_as_long() {
    let of = |dtype, forward, backward, cpu: f64| {
        let change = |row: &mut steps::Row| row.cpu_time = Some(cpu);
        of_rule("denormal-in-backward", STEPS, change, layer_of(dtype, forward, backward, 1))
    };
    begins(
        &of("float32", 0.0005, 0.005, 0.016),
        "found: every rank: the backward of layers.1 (Linear) takes 5.0 ms of computing and its forward 0.5 ms",
    );
    begins(&of("float16", 0.0005, 0.005, 0.016), "silent");
    begins(&of("float32", 0.0025, 0.005, 0.016), "silent");
    // What a call costs is more on the way back.
    begins(&of("float32", 0.00005, 0.0004, 0.016), "silent");
    // The thread waits, and does not compute.
    begins(&of("float32", 0.0005, 0.005, 0.004), "silent");
}

#[test]
fn an_optimizer_of_many_small_operations_is_told_from_one_of_few_and_of_large_ones() {
    let of = |optimizer: &'static str, calls: (i64, f64)| {
        let change = |row: &mut steps::Row| row.optimizer_time = 0.02;
        let more = move |agent: &mut Agent, store: &Store| {
            let optimizer = Some(agent.strings.id(optimizer));
            let row = environment::Row { optimizer, ..agent.environment() };
            agent.send(store, [row]);
            counts("aten::mul", "optimizer", calls)(agent, store);
        };
        of_rule("small-operations-in-optimizer", STEPS, change, more)
    };
    let found = "found: every rank: the optimizer calls 3000 operators in each step, of 2.50 microseconds each";
    begins(&of("Lamb", (3000, 2.5e-6)), found);
    begins(&of("Lamb", (200, 2.5e-6)), "silent");
    begins(&of("Lamb", (600, 3e-5)), "silent");
    // Those of torch do so on the host.
    begins(&of("AdamW", (3000, 2.5e-6)), "silent");
}

#[test]
fn padding_is_named_unless_the_model_leaves_it_out() {
    let of = |share: f64, operator: &'static str| {
        let more = move |agent: &mut Agent, store: &Store| {
            let rows: Vec<_> = (0..STEPS).map(|step| agent.batch_handed(step)).collect();
            let row = |(step, row)| data_trace::Row { step, padding: (step % 8 == 0).then_some(share), ..row };
            agent.send(store, (0..STEPS).zip(rows).map(row));
            counts(operator, "forward", (1, 1e-5))(agent, store);
        };
        of_rule("padding", STEPS, |_| (), more)
    };
    begins(
        &of(0.6, "aten::mm"),
        "found: every rank: 60 % of an average batch of Tokens is padding, which the model computes like the rest (",
    );
    begins(&of(0.05, "aten::mm"), "silent");
    begins(&of(0.6, "aten::_pack_padded_sequence"), "silent");
}

#[test]
fn checkpoints_that_are_waited_for_are_told_from_short_and_from_single_ones() {
    let of = |every: i64, seconds: f64| {
        let saves = move |row: &mut steps::Row| {
            if row.step % every == every - 1 {
                row.checkpoint_time = Some(seconds);
            }
        };
        of_rules("checkpoint-stalls,periodic-stall", STEPS, saves, nothing)
    };
    let said = of(20, 0.2);
    says(&said, "checkpoint-stalls", "found: every rank waits while checkpoints are saved: 6 of them in these steps");
    says(&said, "periodic-stall", "silent");
    says(&of(20, 0.002), "checkpoint-stalls", "silent: it would save 0.6 %");
    let two = of(60, 0.2);
    says(&two, "checkpoint-stalls", "silent: times is at least 2.00 with 95 % confidence, and the rule starts at 3");
    // Older agents do not say what saves.
    let unknown = |row: &mut steps::Row| row.checkpoint_time = None;
    begins(
        &of_rule("checkpoint-stalls", STEPS, unknown, nothing),
        "open: python.steps.checkpoint_time is not recorded in these steps",
    );
}

/// A model that computes activations again in backward for so long (s), in a process that needs so much of 8000 MB.
/// Modules are recorded in each `every`th step.
fn recomputes(seconds: f64, most: f64, every: usize) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let device = Some(agent.strings.id("cpu"));
        let row = environment::Row { device, machine_memory: Some(8000.0), ..agent.environment() };
        agent.send(store, [row]);
        let memory: Vec<_> =
            (0..STEPS).map(|step| memory::Row { max_rss: Some(most), ..agent.memory(step, "cpu") }).collect();
        agent.send(store, memory);
        let modules = ["layers.0", "layers.1"];
        let rows: Vec<_> = (0..STEPS)
            .step_by(every)
            .flat_map(|step| modules.map(|module| agent.trace(step, Some(module), "recompute", seconds / 2.0)))
            .collect();
        agent.send(store, rows);
    }
}

#[test]
fn activations_that_are_computed_again_are_told_where_memory_is_free() {
    let of = |seconds, most| of_rule("recompute-not-needed", STEPS, |_| (), recomputes(seconds, most, 1));
    let said = of(0.003, 2000.0);
    begins(
        &said,
        "found: every rank computes activations again in backward (activation checkpointing), with 75 % of the machine's memory free",
    );
    advises(&said, "checkpoint fewer modules");
    // It is needed where memory is short, and a twentieth of a step is no reason to change it.
    begins(&of(0.003, 6000.0), "silent: no sign of it");
    begins(&of(0.0005, 2000.0), "silent: it would save 3.1 % [3.1, 3.1]; a note takes 5 %");
    let few = of_rule("recompute-not-needed", STEPS, |_| (), recomputes(0.003, 2000.0, 12));
    begins(&few, "open: 10 rows are too few: the rule needs 20");
}

#[test]
fn work_between_parts_is_in_the_range_that_the_program_names() {
    // A range of 8 ms, so many seconds after each `every`th step begins. A call of the model takes 1 ms from the beginning on.
    let of = |other: f64, after: f64, every: usize, thread: i64| {
        let more = move |agent: &mut Agent, store: &Store| {
            let (name, kind) = (agent.strings.id("histograms"), agent.strings.id("span"));
            let range = |step: i64| spans::Row {
                step: Some(step),
                ts: Time(START + step * 1_000_000_000 + (after * 1e9) as i64),
                duration: 0.008,
                name,
                kind,
                depth: 0,
                parent: None,
                thread,
            };
            agent.send(store, (0..STEPS).step_by(every).map(range));
            let calls: Vec<_> = (0..STEPS).map(|step| agent.trace(step, Some("GPT"), "forward", 0.001)).collect();
            agent.send(store, calls);
        };
        of_rules("span-between-parts,work-between-parts", STEPS, move |row| row.other_time = other, more)
    };
    let said = of(0.009, 0.002, 1, 4000);
    let found = "found: every rank spends 8.0 ms of a step in the range 'histograms' of the program, outside of data";
    says(&said, "span-between-parts", found);
    says(&said, "work-between-parts", "silent: span-between-parts explains it");
    let others = [
        // As usual.
        of(0.0005, 0.002, 1, 4000),
        // Around the call, and within it.
        of(0.009, -0.001, 1, 4000),
        of(0.009, 0.0005, 1, 4000),
        of(0.009, 0.002, 20, 4000),
        // On a thread that does not train.
        of(0.009, 0.002, 1, 5000),
    ];
    for said in &others {
        says(said, "span-between-parts", "silent");
    }
    says(&others[1], "work-between-parts", "found");
    let none = of_rule("span-between-parts", STEPS, |row| row.other_time = 0.009, |_, _| ());
    begins(&none, "silent");
}
