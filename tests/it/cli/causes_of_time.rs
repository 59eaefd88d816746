//! `probe diagnose` about what changes while a run trains: a loss that rises, a step that is slower from some step on, calls without a
//! backward pass, and loaders and starts that take long.

use probe_proto::table::Time;
use probe_proto::tables::{environment, process_metrics, steps};
use probe_store::Store;
use serde_json::Value;

use super::diagnose_loaders::batches_that_take;
use super::diagnosed_runs::{STEPS, advises, begins, each_second, logs, nothing, of_rule, of_rules, record, says};
use crate::cli::support::Home;
use crate::sql::data::Agent;

fn diverges(step: f64) -> f64 {
    if step < 60.0 { 4.0 - step / 20.0 } else { 1.05_f64.powf(step - 60.0) }
}

#[test]
fn a_loss_that_rises_is_told_from_one_that_falls_and_from_one_that_varies() {
    let of =
        |name, loss: &dyn Fn(f64) -> f64| of_rule("loss-rises", STEPS, |_| (), logs(name, |step| loss(step as f64)));
    begins(&of("train/loss", &diverges), "found: every rank: train/loss rises: it was 1.");
    begins(&of("loss", &|step| 4.0 / (1.0 + step / 20.0)), "silent");
    begins(&of("loss", &|step| 2.0 + (step * 1.7).sin()), "silent");
    begins(&of("value_loss", &diverges), "silent");
    let at_once = |step: f64| if step < 3.0 { 2.0 + step } else { 300.0 };
    begins(
        &of("loss", &at_once),
        "found: every rank: loss rises: it was 2 at its lowest (around step 0), 2 in the beginning, and is 300 now",
    );
    begins(&of("loss", &|step| if step < 1.0 { 2.0 } else { 6.0 }), "silent");
    for rule in ["loss-rises", "loss-spikes"] {
        let few = of_rule(rule, 60, |_| (), logs("loss", |step| diverges(step as f64)));
        begins(&few, "open: 60 values of loss are too few: the rule needs 96");
    }
}

#[test]
fn a_loss_that_jumps_is_told_from_one_that_falls_and_from_one_that_varies() {
    let of = |name, loss: &dyn Fn(i64) -> f64| of_rule("loss-spikes", STEPS, |_| (), logs(name, loss));
    let jumps = |step: i64| if step % 30 == 29 { 12.0 } else { 4.0 / (1.0 + step as f64 / 50.0) };
    begins(&of("loss", &jumps), "found: every rank: loss jumps in 3 of 88 values, to ");
    begins(&of("loss", &|step| 4.0 / (1.0 + step as f64 / 50.0)), "silent");
    // Of single samples: most have hardly any.
    begins(&of("loss", &|step| if step % 5 == 0 { 3.0 } else { 0.1 }), "silent");
    begins(&of("value_loss", &jumps), "silent");
}

#[test]
fn a_part_that_is_slower_from_some_step_on_is_told_from_one_that_drifts_and_from_a_busy_machine() {
    let of = |change: &dyn Fn(&mut steps::Row)| of_rule("slower-since", 240, change, nothing);
    begins(
        &of(&|row| {
            if row.step >= 150 {
                row.other_time += 0.006
            }
        }),
        "found: every rank: since step 1",
    );
    begins(&of(&|_| ()), "silent");
    begins(&of(&|row| row.other_time += 0.00005 * row.step as f64), "silent");
    // Neighbours have the processors since then.
    let busy = |row: &mut steps::Row| {
        if row.step >= 150 {
            row.other_time += 0.006;
            row.run_delay = Some(0.006);
        }
    };
    begins(&of(&busy), "silent");
    // Layers that were frozen train since then.
    let trained = |thaws: bool| {
        let modules = move |agent: &mut Agent, store: &Store| {
            let rows: Vec<_> = (0..240)
                .flat_map(|step| {
                    let body = (!thaws || step >= 150).then_some("body");
                    body.into_iter().chain(["head"]).map(move |module| (step, module))
                })
                .map(|(step, module)| agent.trace(step, Some(module), "backward", 0.001))
                .collect();
            agent.send(store, rows);
        };
        let longer = |row: &mut steps::Row| row.backward_time += if row.step >= 150 { 0.006 } else { 0.0 };
        of_rule("slower-since", 240, longer, modules)
    };
    begins(&trained(true), "silent");
    begins(&trained(false), "found: every rank: since step 1");
    // The machine is slower since then.
    let slowed = |row: &mut steps::Row| {
        if row.step >= 150 {
            for part in [&mut row.forward_time, &mut row.backward_time, &mut row.optimizer_time, &mut row.other_time] {
                *part *= 1.4;
            }
        }
    };
    begins(&of(&slowed), "silent");
    // It was slow for a while, and is not any more.
    let for_a_while = |row: &mut steps::Row| {
        if (80..160).contains(&row.step) {
            row.other_time += 0.006;
        }
    };
    begins(&of(&for_a_while), "silent");
    let phase_of = |change: &dyn Fn(&mut steps::Row)| of_rule("slow-for-a-while", 240, change, nothing);
    let found = phase_of(&for_a_while);
    begins(&found, "found: every rank: from step ");
    assert!(found.contains("a step took 22.0 ms, before that 16.0 ms and after it 16.0 ms"), "{found}");
    // What comes after it takes as long: it is a part of a change.
    let for_good = |row: &mut steps::Row| {
        row.other_time += match row.step {
            80..160 => 0.016,
            160.. => 0.010,
            _ => 0.0,
        }
    };
    begins(&phase_of(&for_good), "silent");
    // Validation and checkpoints have parts of their own.
    let saves = |row: &mut steps::Row| {
        if (80..160).contains(&row.step) {
            row.checkpoint_time = Some(0.006);
        }
    };
    begins(&phase_of(&saves), "silent");
    begins(&phase_of(&|_| ()), "silent");
    begins(&phase_of(&busy), "silent");
    begins(&phase_of(&|row| row.other_time += if row.step >= 150 { 0.006 } else { 0.0 }), "silent");
    begins(
        &phase_of(&|row| {
            for_a_while(row);
            row.run_delay = (80..160).contains(&row.step).then_some(0.006);
        }),
        "silent",
    );
}

#[test]
fn an_optimizer_that_takes_most_of_a_step_is_told_from_one_of_a_small_model_and_from_a_device() {
    let of = |seconds: f64, device: &'static str, parameters: i64| {
        let more = move |agent: &mut Agent, store: &Store| {
            let device = Some(agent.strings.id(device));
            let row = environment::Row { device, trainable_parameters: Some(parameters), ..agent.environment() };
            agent.send(store, [row]);
        };
        of_rule("optimizer-bound", STEPS, move |row| row.optimizer_time = seconds, more)
    };
    begins(
        &of(0.03, "cpu", 4_800_000),
        "found: every rank: the optimizer takes 67 % of the steps (30.0 ms of 45.0 ms): in each, it reads and writes all 4.80 million",
    );
    begins(&of(0.01, "cpu", 4_800_000), "silent");
    begins(&of(0.03, "cpu", 5_000), "silent");
    begins(&of(0.03, "cuda:0", 4_800_000), "silent");
}

#[test]
fn calls_of_the_model_without_a_backward_pass_are_told_from_gradient_accumulation() {
    let of = |every: i64, back: f64| {
        let more = move |row: &mut steps::Row| {
            if row.step % every == every - 1 {
                row.micro_steps = 24;
                row.forward_time += 0.02;
                row.backward_time += back;
            }
        };
        of_rule("calls-without-backward", STEPS, more, nothing)
    };
    begins(&of(5, 0.0), "found: every rank calls the model 20 times more in 2");
    begins(&of(5, 0.02), "silent");
    begins(&of(STEPS - 1, 0.0), "silent");
}

#[test]
fn a_loader_that_runs_dry_now_and_then_is_told_from_one_that_is_too_slow() {
    // How many batches are ready where the loop waits, and how long the one that it waits for takes to load.
    let of_batches = |every: i64, ready: i32, fetch: f64| {
        let dry = move |step: i64| step % every == 0;
        let batches = move |agent: &mut Agent, store: &Store| {
            let ready = |step| if dry(step) { ready } else { 7 };
            let wait = |step| if dry(step) { 0.03 } else { 0.0002 };
            batches_that_take(agent, store, ready, wait, |step| if dry(step) { fetch } else { 0.001 });
        };
        let waits = move |row: &mut steps::Row| row.data_time = if dry(row.step) { 0.03 } else { 0.0003 };
        of_rule("bursts-of-batches", STEPS, waits, batches)
    };
    let of = |every: i64| of_batches(every, 0, 0.05);
    begins(&of(7), "found: every rank: the loader keeps up in 8");
    advises(&of(7), "prefetch_factor=8");
    // Batches come in order: the other worker's are ready.
    begins(&of_batches(7, 4, 0.05), "found: every rank: the loader keeps up in 8");
    // No batch takes long, so the workers were late for another reason; one takes so long that no number of batches hides it.
    begins(&of_batches(7, 0, 0.001), "silent");
    begins(&of_batches(7, 0, 5.0), "silent");
    begins(&of(2), "silent");
    begins(&of(STEPS), "silent");
}

#[test]
fn workers_that_have_no_processor_are_told_where_they_themselves_are_too_many() {
    let of = |workers: i32, percent: f64, delay: f64| {
        let more = move |agent: &mut Agent, store: &Store| {
            let row = environment::Row { cpu_cores: Some(4), ..agent.environment() };
            agent.send(store, [row]);
            let busy = |_, row: &mut process_metrics::Row| {
                row.data_workers = Some(workers);
                row.data_workers_percent = Some(percent * f64::from(workers));
                row.data_workers_run_delay = Some(delay * f64::from(workers));
            };
            each_second(busy)(agent, store);
        };
        let crowded = |row: &mut steps::Row| row.run_delay = Some(0.3 * row.duration);
        of_rules("workers-beyond-cores,waits-for-a-processor", STEPS, crowded, more)
    };
    let (crowd, waits) = ("workers-beyond-cores", "waits-for-a-processor");
    let found = of(8, 40.0, 60.0);
    says(&found, crowd, "found: 16 data workers on 4 processors: each was ready and had none for 60 % of the time");
    // It is why training has none.
    says(&found, waits, "silent: workers-beyond-cores explains it");
    // At any time as many of them wait as there are processors.
    says(&of(8, 14.0, 27.0), crowd, "found: 16 data workers on 4 processors");
    says(&of(8, 14.0, 23.0), crowd, "silent");
    says(&of(2, 40.0, 60.0), crowd, "silent");
    // Neighbours have the processors.
    says(&of(8, 2.0, 60.0), crowd, "silent");
    says(&of(8, 2.0, 60.0), waits, "found");
}

#[test]
fn a_run_that_takes_long_to_start_is_told() {
    let of = |seconds: i64| {
        let late = move |row: &mut steps::Row| {
            if row.step >= 2 {
                row.ts = Time(row.ts.0 + seconds * 1_000_000_000);
            }
        };
        of_rule("slow-start", STEPS, late, nothing)
    };
    begins(&of(900), "found: every rank: the tenth step ended 15");
    begins(&of(0), "silent");
}

#[test]
fn what_stands_out_by_little_promises_all_that_is_not_expected() {
    let home = Home::empty();
    let between = |row: &mut steps::Row| {
        (row.data_time, row.optimizer_time, row.comm_time, row.run_delay) = (0.0, 0.0, 0.0, None);
        (row.forward_time, row.backward_time, row.other_time) = (0.004, 0.006, 0.0055);
    };
    record(&home, "gpt@1", STEPS, between, nothing);
    let answer = home.stdout(["gpt", "diagnose", "--json", "--rule", "work-between-parts"]);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let finding = &answer["findings"][0];
    // It is 2.25 ms above the most that is usual with four micro-steps (15 % of a step), and 5 ms above what healthy programs take (32 %).
    assert_eq!(finding["severity"], "note", "{answer}");
    assert!((finding["saving"]["ms"].as_f64().unwrap() - 5.0).abs() < 0.01, "{answer}");
    assert!((finding["ref_ms"].as_f64().unwrap() - 0.5).abs() < 0.01, "{answer}");
}
