//! The rules of `probe diagnose`: the finding of each where its cause is present, and its silence where it is absent or unknown.

use std::collections::BTreeMap;

use probe_proto::table::Time;
use probe_proto::tables::{copies, environment, process_metrics, steps, sync_points};
use probe_store::Store;

use super::diagnosed_runs::{
    STEPS, advises, begins, compiles, each_second, garbage_collections, logs, nothing, of_rule, of_rules, record,
    recording_cost, said, says,
};
use crate::cli::support::Home;
use crate::sql::data::{Agent, START};

#[test]
fn a_run_in_which_nothing_is_wrong_has_no_finding() {
    let home = Home::empty();
    record(&home, "gpt@1", STEPS, |_| (), nothing);
    let said = said(&home, ["gpt", "diagnose", "--json"]);
    assert!(said.values().all(|of| !of.starts_with("found")), "{said:#?}");
    for rule in ["garbage-collection", "slower-and-slower", "waits-for-a-processor"] {
        says(&said, rule, "silent");
    }
}

#[test]
fn garbage_collections_of_all_parts_are_one_finding() {
    begins(
        &of_rule("garbage-collection", STEPS, |_| (), garbage_collections),
        "found: every rank collects garbage 240 times",
    );
    // A layer that was off says nothing, and that is not silence.
    let said = of_rules("garbage-collection", STEPS, |row| row.gc_time = None, nothing);
    says(&said, "garbage-collection", "open: python.steps.gc_time is not recorded");
}

#[test]
fn steps_that_take_more_and_more_of_a_processor_are_told_from_steps_that_wait() {
    let slower = |row: &mut steps::Row| row.cpu_time = Some(0.015 + 0.00005 * row.step as f64);
    begins(&of_rule("slower-and-slower", STEPS, slower, nothing), "found: every rank: a step takes more and more");
    begins(&of_rule("slower-and-slower", 50, slower, nothing), "open: ");
    // The part that grows is named, and what backward goes through has a remedy of its own.
    let history = |row: &mut steps::Row| {
        slower(row);
        row.backward_time += 0.00005 * row.step as f64;
    };
    let said = of_rule("slower-and-slower", STEPS, history, nothing);
    begins(&said, "found: every rank: a step takes more and more processor time, most of it in backward: ");
    advises(&said, "detach() what is kept");
    // A neighbour comes: the steps take longer, and no more of a processor.
    let waits = |row: &mut steps::Row| {
        let delay = if row.step > 40 { 0.008 } else { 0.0 };
        row.run_delay = Some(delay);
        row.forward_time += delay;
    };
    let said = of_rules("slower-and-slower,waits-for-a-processor", STEPS, waits, nothing);
    says(&said, "slower-and-slower", "silent");
    says(&said, "waits-for-a-processor", "found: every rank was ready and had no processor");
    let said = of_rules(
        "slower-and-slower,waits-for-a-processor",
        STEPS,
        |row| (row.cpu_time, row.run_delay) = (None, None),
        nothing,
    );
    says(&said, "slower-and-slower", "open");
    says(&said, "waits-for-a-processor", "open");
}

/// Steps with a millisecond of parts and so many between them, of which a thread gets an eighth of a processor.
fn crowded(between: f64) -> impl Fn(&mut steps::Row) {
    move |row| {
        (row.data_time, row.optimizer_time, row.comm_time) = (0.0, 0.0, 0.0);
        (row.forward_time, row.backward_time, row.other_time) = (8.0 * 0.0004, 8.0 * 0.0006, 8.0 * between);
        row.run_delay = Some(7.0 * (0.001 + between));
    }
}

#[test]
fn a_loop_that_waits_for_a_processor_does_nothing_between_the_parts() {
    begins(&of_rule("work-between-parts", STEPS, crowded(0.0006), nothing), "silent");
    begins(&of_rule("work-between-parts", STEPS, crowded(0.003), nothing), "found");
    // Where the kernel does not count the wait, a millisecond is one.
    let unknown = |row: &mut steps::Row| {
        crowded(0.0006)(row);
        row.run_delay = None;
    };
    begins(&of_rule("work-between-parts", STEPS, unknown, nothing), "found");
}

#[test]
fn a_processor_quota_that_is_used_up_is_told_from_one_that_is_not() {
    let throttled = |percent: f64| each_second(move |_, row| row.throttled = Some(percent));
    let says_of = |of: &dyn Fn(&mut Agent, &Store), expected| {
        begins(&of_rule("processor-quota", STEPS, |_| (), of), expected);
    };
    says_of(&throttled(30.0), "found: every rank: the processor quota of its control group was used up in 30 %");
    says_of(&throttled(1.0), "silent");
    // Without a quota, which is a healthy run's most usual state.
    says_of(&each_second(|_, _| ()), "open: process.metrics.throttled is not recorded");
}

#[test]
fn steps_that_are_slower_while_memory_comes_from_a_disk_are_told_from_page_faults_that_cost_nothing() {
    // 40 seconds; three steps in a second, and fewer in one with page faults where those cost time.
    let paging = |every: i64, then: i64| {
        move |agent: &mut Agent, store: &Store| {
            let mut step = 0;
            let mut row = |second: i64| {
                let pages = second % every == 0;
                step += if pages { then } else { 3 };
                let major_faults = Some(if pages { 500.0 } else { 0.0 });
                process_metrics::Row { step, major_faults, ..agent.metrics(second) }
            };
            let rows: Vec<_> = (0..40).map(&mut row).collect();
            agent.send(store, rows);
        }
    };
    let said = of_rules("paging", STEPS, |_| (), paging(3, 1));
    says(
        &said,
        "paging",
        "found: every rank waited for memory to be read from a disk: 500 page faults a second in 33 %",
    );
    begins(&of_rule("paging", STEPS, |_| (), paging(3, 3)), "silent");
    // Nothing to hold them against.
    begins(&of_rule("paging", STEPS, |_| (), paging(1, 1)), "silent");
}

#[test]
fn reads_and_copies_of_tensors_are_found_by_the_line_and_the_part_that_they_are_in() {
    let busy = |row: &mut steps::Row| row.other_time = 0.006;
    let watched = |part: &'static str| {
        move |agent: &mut Agent, store: &Store| {
            let (part, file) = (Some(agent.strings.id(part)), Some(agent.strings.id("train.py")));
            let read = agent.sync_point();
            let read = |step| sync_points::Row { step, count: 500, waited: 0.004, part, file, line: Some(12), ..read };
            agent.send(store, (0..4).map(|of| read(of * 20 + 9)));
            let [copy, _] = agent.copies();
            let copy = |step| copies::Row { step, duration: 0.004, bytes: 1 << 24, part, file, line: Some(34), ..copy };
            agent.send(store, (0..4).map(|of| copy(of * 20 + 9)));
        }
    };
    let said = of_rules("reads-of-tensors", STEPS, busy, watched("other"));
    says(
        &said,
        "reads-of-tensors",
        "found: every rank reads 500 values of tensors one by one in each step, in the loop's own code (other), at train.py:12",
    );
    let said = of_rules("reads-of-tensors", STEPS, |row| row.forward_time += 0.006, watched("forward"));
    says(
        &said,
        "reads-of-tensors",
        "found: every rank reads 500 values of tensors one by one in each step, in forward",
    );
    // In a part that takes no time worth a word there is nothing to save.
    let said = of_rules("copies-of-tensors,reads-of-tensors", STEPS, |row| row.other_time = 0.0001, watched("other"));
    says(&said, "reads-of-tensors", "silent");
    says(&said, "copies-of-tensors", "silent");
}

/// A machine with other programs is slower in most steps than in the few that are watched.
#[test]
fn reads_and_copies_are_the_share_of_the_part_that_they_are_in_watched_steps() {
    let home = Home::empty();
    let is_watched = |step: i64| step % 20 == 9;
    let busy = |row: &mut steps::Row| row.other_time = if is_watched(row.step) { 0.003 } else { 0.012 };
    for (name, copied, waited) in [("copies@1", 0.0027, 0.0), ("reads@1", 0.0, 0.0027)] {
        record(&home, name, STEPS, busy, |agent, store| {
            let (part, file) = (Some(agent.strings.id("other")), Some(agent.strings.id("train.py")));
            let ([copy, _], read) = (agent.copies(), agent.sync_point());
            let clone = agent.strings.id("clone");
            for step in (0..STEPS).filter(|step| is_watched(*step)) {
                // Two operations at one line.
                let row =
                    copies::Row { step, duration: copied / 2.0, bytes: 1 << 23, part, file, line: Some(34), ..copy };
                let rows = [row, copies::Row { operation: clone, ..row }];
                agent.send(store, rows.into_iter().filter(|_| copied > 0.0));
                let row = sync_points::Row { step, count: 500, waited, part, file, line: Some(12), ..read };
                agent.send(store, [row].into_iter().filter(|_| waited > 0.0));
            }
        });
    }
    for (run, rule) in [("copies", "copies-of-tensors"), ("reads", "reads-of-tensors")] {
        let rules = format!("{rule},work-between-parts");
        let said = said(&home, [run, "diagnose", "--json", "--rule", &rules]);
        says(&said, rule, "found");
        says(&said, "work-between-parts", &format!("silent: {rule} explains it"));
    }
}

#[test]
fn what_takes_time_in_one_part_explains_nothing_in_another() {
    let home = Home::empty();
    let busy = |row: &mut steps::Row| (row.forward_time, row.other_time) = (0.01, 0.009);
    record(&home, "gpt@1", STEPS, busy, |agent, store| {
        let (part, file) = (Some(agent.strings.id("forward")), Some(agent.strings.id("model.py")));
        let [copy, _] = agent.copies();
        let copy = |step| copies::Row { step, duration: 0.006, bytes: 1 << 24, part, file, line: Some(34), ..copy };
        agent.send(store, (0..4).map(|of| copy(of * 20 + 9)));
    });
    let said = said(&home, ["gpt", "diagnose", "--json", "--rule", "copies-of-tensors,work-between-parts"]);
    says(&said, "copies-of-tensors", "found");
    says(&said, "work-between-parts", "found");
}

/// A run whose conditions are the usual ones except for those that `change` edits.
fn under(change: impl Fn(&mut environment::Row, &mut Agent)) -> BTreeMap<String, String> {
    let notes = |agent: &mut Agent, store: &Store| {
        let mut row = environment::Row {
            ts: Time(START + 1_000_000_000_000),
            torch_threads: Some(1),
            machine_cores: Some(64),
            device: Some(agent.strings.id("cuda:0")),
            ..agent.environment()
        };
        change(&mut row, agent);
        agent.send(store, [row]);
    };
    let rules = "debug-switches,threads-beyond-cores,unused-parameters,optimizer-one-by-one,parameters-not-optimized,new-optimizer-each-step";
    of_rules(rules, STEPS, |row| row.optimizer_time = 0.004, notes)
}

#[test]
fn conditions_that_cost_time_are_told_from_those_that_do_not() {
    let said = under(|_, _| ());
    for rule in ["debug-switches", "threads-beyond-cores"] {
        says(&said, rule, "silent");
    }
    says(&said, "unused-parameters", "open: python.environment.find_unused_parameters is not recorded of these");
    says(&said, "optimizer-one-by-one", "open");
    let said = under(|row, agent| {
        row.anomaly_detection = Some(true);
        (row.find_unused_parameters, row.static_graph) = (Some(true), Some(false));
        (row.optimizer_foreach, row.optimizer_fused) = (Some(false), None);
        row.optimizer = Some(agent.strings.id("AdamW"));
        (row.torch_threads, row.cpu_quota) = (Some(64), Some(4.0));
        (row.trainable_parameters, row.unoptimized_parameters) = (Some(1_000_000), Some(5130));
        row.unoptimized_parameter = Some(agent.strings.id("fc.weight"));
        (row.optimizers_gone, row.optimizer_steps) = (Some(30), Some(31));
    });
    says(
        &said,
        "parameters-not-optimized",
        "found: every rank: 5130 parameters, fc.weight first, get gradients and are in no optimizer",
    );
    says(
        &said,
        "new-optimizer-each-step",
        "found: every rank made a new optimizer for 30 of 31 steps: each new AdamW starts without",
    );
    says(&said, "debug-switches", "found: every rank: anomaly detection is on");
    says(&said, "unused-parameters", "found: every rank: DistributedDataParallel walks the graph");
    says(&said, "optimizer-one-by-one", "found: every rank updates parameters one by one on a device");
    says(
        &said,
        "threads-beyond-cores",
        "found: every rank computes with 64 threads, 128 on its machine together, and 4 ",
    );
    let said = under(|row, _| {
        (row.find_unused_parameters, row.static_graph) = (Some(true), Some(true));
        (row.optimizer_foreach, row.optimizer_fused) = (Some(false), Some(true));
        // Two ranks of 32 threads have the 64 processors to themselves.
        row.torch_threads = Some(32);
        (row.trainable_parameters, row.unoptimized_parameters) = (Some(1_000_000), Some(0));
        (row.optimizers_gone, row.optimizer_steps) = (Some(16), Some(31));
    });
    for rule in [
        "unused-parameters",
        "optimizer-one-by-one",
        "threads-beyond-cores",
        "parameters-not-optimized",
        "new-optimizer-each-step",
    ] {
        says(&said, rule, "silent");
    }
}

#[test]
fn numbers_that_are_not_finite_and_steps_that_are_skipped_are_told() {
    let nan = |from: i64, to: i64| move |step: i64| if (from..to).contains(&step) { f64::NAN } else { 2.0 };
    let said = of_rules("not-finite", STEPS, |_| (), logs("train_loss", nan(90, STEPS)));
    says(
        &said,
        "not-finite",
        "found: every rank: train_loss is not finite in 30 of 120 values, first seen in step 90 (finite in step 89)",
    );
    let said = of_rules(
        "not-finite",
        STEPS,
        |_| (),
        logs("torch.clip_grad_norm_", |step| if step == 3 { f64::INFINITY } else { 1.0 }),
    );
    says(&said, "not-finite", "found: every rank: torch.clip_grad_norm_ is not finite in 1 of 120 values");
    // GradScaler skips that step, which is how it finds its scale.
    let skips = |agent: &mut Agent, store: &Store| {
        logs("torch.clip_grad_norm_", |step| if step == 30 { f64::INFINITY } else { 1.0 })(agent, store);
        logs("torch.amp.skipped_step", |step| f64::from(u8::from(step == 30)))(agent, store);
    };
    begins(&of_rule("not-finite", STEPS, |_| (), skips), "silent");
    begins(&of_rule("not-finite", STEPS, |_| (), logs("train_loss", nan(0, 0))), "silent");
    let every = |period: i64| logs("torch.amp.skipped_step", move |step| f64::from(u8::from(step % period == 0)));
    begins(&of_rule("skipped-steps", STEPS, |_| (), every(10)), "found: every rank: GradScaler skipped 10 % of");
    begins(&of_rule("skipped-steps", STEPS, |_| (), every(60)), "silent");
}

#[test]
fn compiling_again_and_again_is_told_from_compiling_at_the_beginning() {
    let slow = |steps: &'static [i64]| {
        move |row: &mut steps::Row| {
            if steps.contains(&row.step) {
                row.forward_time += 0.5;
            }
        }
    };
    let said = |steps, first| of_rule("compiles-again", STEPS, slow(steps), compiles(steps, first));
    let often: &[i64] = &[10, 30, 50, 70, 90, 110];
    let found = said(often, 1);
    begins(&found, "found: every rank compiles again and again: ");
    assert!(found.contains("of these steps, most of them of frame 3; do: "), "{found}");
    begins(
        &said(&[1, 3, 5, 7, 9, 11, 13, 15], 1),
        "silent: 8 recompilations in 8 of these steps, 4.0 s in all: it takes",
    );
    begins(
        &said(&[60, 110], 1),
        "silent: 2 recompilations in 2 of these steps, 1.0 s in all: it takes 4 such steps, and one of",
    );
    begins(&said(&[60], 1), "silent: 1 recompilation in 1 of these steps, 0.5 s");
    // The first compilation of each function is none again.
    let first = |agent: &mut Agent, store: &Store| often.chunks(1).for_each(|step| compiles(step, 0)(agent, store));
    begins(&of_rule("compiles-again", STEPS, slow(often), first), "silent: no sign of it");
    let off = of_rule("compiles-again", STEPS, |row| row.gc_time = None, nothing);
    begins(&off, "open: python.steps.gc_time is not recorded");
}

#[test]
fn recording_that_takes_more_than_it_may_is_a_finding() {
    let said_after = |cost: f64, count: usize| {
        let rows = move |agent: &mut Agent, store: &Store| {
            agent.send(store, (0..STEPS).step_by(2).take(count).map(|step| recording_cost(step, cost)));
        };
        of_rule("recording-too-costly", STEPS, |_| (), rows)
    };
    let said = |cost: f64| said_after(cost, STEPS as usize);
    begins(
        &said(0.0008),
        "found: every rank: recording takes 5 % of a step by its own reckoning; 1.0 % are allowed; do: probe config detail=auto",
    );
    begins(&said(0.0002), "silent");
    // Of a few seconds one interrupted hook may be most.
    begins(&said_after(0.0008, 4), "silent");
    begins(
        &of_rule("recording-too-costly", STEPS, |_| (), nothing),
        "open: probe.overhead.estimated_cost is not recorded",
    );
}
