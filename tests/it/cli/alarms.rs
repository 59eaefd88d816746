//! Situations that look like a cause and are none: `probe diagnose` is silent about them, and reports the causes beside them.

use probe_proto::tables::{data_trace, environment, memory, operator_counts, stack_samples, steps, torch_trace};
use probe_store::Store;
use serde_json::Value;

use super::diagnosed_runs::{STEPS, begins, compiles, nothing, of_rule, record, said, says};
use crate::cli::support::Home;
use crate::sql::data::Agent;

/// Calls of the whole model in each step, with inputs of so many samples and so long.
fn calls(agent: &mut Agent, store: &Store, stage: &str, samples: i64, length: impl Fn(i64) -> i64) {
    let row = |agent: &mut Agent, step: i64| {
        let input_shape = Some(agent.strings.id(&format!("[{samples}, {}]", length(step))));
        torch_trace::Row { input_shape, ..agent.trace(step, Some("GPT"), stage, 0.001) }
    };
    let rows: Vec<_> = (0..STEPS).map(|step| row(agent, step)).collect();
    agent.send(store, rows);
}

#[test]
fn what_grows_with_the_inputs_is_neither_a_leak_nor_a_list_that_is_gone_through() {
    let grows = |length: fn(i64) -> i64| {
        move |agent: &mut Agent, store: &Store| {
            calls(agent, store, "forward", 32, length);
            let row = |step: i64| memory::Row { rss: Some(2000.0 + 10.0 * step as f64), ..agent.memory(step, "cpu") };
            let rows: Vec<_> = (0..STEPS).map(row).collect();
            agent.send(store, rows);
        }
    };
    let slower = |row: &mut steps::Row| row.cpu_time = Some(0.015 + 0.00005 * row.step as f64);
    begins(&of_rule("host-leak", STEPS, slower, grows(|_| 64)), "found: every rank: memory grows all the time");
    begins(&of_rule("host-leak", STEPS, slower, grows(|step| 64 + step)), "silent");
    let profiled = |agent: &mut Agent, store: &Store| {
        grows(|_| 64)(agent, store);
        let row = environment::Row { torch_profiler: Some(true), ..agent.environment() };
        agent.send(store, [row]);
    };
    begins(&of_rule("host-leak", STEPS, slower, profiled), "silent");
    begins(&of_rule("slower-and-slower", STEPS, slower, grows(|_| 64)), "found: every rank");
    begins(&of_rule("slower-and-slower", STEPS, slower, grows(|step| 64 + step)), "silent");
}

#[test]
fn a_policy_that_plays_is_told_from_validation_by_its_few_samples() {
    let validates = |row: &mut steps::Row| {
        if row.step % 10 == 0 {
            row.validation_time = Some(0.1);
            row.other_time += 0.1;
        }
    };
    let of = |samples: i64| {
        let answer = |agent: &mut Agent, store: &Store| {
            calls(agent, store, "forward", 64, |_| 4);
            calls(agent, store, "validation", samples, |_| 4);
        };
        ["validation-in-steps", "inference-in-steps"].map(|rule| of_rule(rule, STEPS, validates, answer))
    };
    let [validates_them, infers] = of(64);
    begins(&validates_them, "found: every rank validates 12 times");
    begins(&infers, "silent");
    let [validates_them, infers] = of(8);
    begins(&validates_them, "silent");
    begins(&infers, "found: every rank runs the model in evaluation mode on fewer samples than it trains with, in 12 ");
}

#[test]
fn a_layer_that_is_larger_is_told_from_one_that_does_something_else() {
    // Six blocks, of which the fourth takes so many times as long.
    let every = |forward: f64, backward: Option<f64>, others_each: i64| {
        move |agent: &mut Agent, store: &Store| {
            let kind = agent.strings.id("Block");
            let row = |agent: &mut Agent, step: i64, of: i64, (stage, times): (&str, f64)| {
                let took = if of == 3 { 0.0015 * times } else { 0.0015 };
                torch_trace::Row {
                    module_type: Some(kind),
                    ..agent.trace(step, Some(&format!("layers.{of}")), stage, took)
                }
            };
            let stages = [Some(("forward", forward)), backward.map(|times| ("backward", times))];
            let calls = (0..STEPS).flat_map(|step| {
                let called = move |of: &i64| *of == 3 || step % others_each == 0;
                (0..6)
                    .filter(called)
                    .flat_map(move |of| stages.into_iter().flatten().map(move |stage| (step, of, stage)))
            });
            let rows: Vec<_> = calls.map(|(step, of, stage)| row(agent, step, of, stage)).collect();
            agent.send(store, rows);
        }
    };
    let of = |forward, backward| of_rule("odd-sibling", STEPS, |_| (), every(forward, backward, 1));
    begins(&of(2.5, Some(1.0)), "found: module layers.3 takes 2.50 times as long in forward");
    begins(&of(2.0, Some(2.2)), "silent");
    begins(&of(1.8, Some(1.3)), "silent");
    begins(&of(8.0, Some(8.0)), "found: module layers.3 takes 8 times as long in ");
    // An expert that gets most of the tokens is called more often than its siblings.
    begins(&of_rule("odd-sibling", STEPS, |_| (), every(8.0, Some(8.0), 5)), "silent");
    // Where nothing learns, that it takes longer for both is not to be seen.
    begins(&of(2.5, None), "silent");
    begins(&of(8.0, None), "found: module layers.3 takes 8 times as long in forward");
}

#[test]
fn steps_in_which_a_policy_plays_are_told_from_stalls() {
    let of = |calls: i32| {
        let plays = |row: &mut steps::Row| {
            if row.step % 16 == 0 {
                row.other_time += 0.014;
                row.micro_steps = calls;
            }
        };
        of_rule("periodic-stall", STEPS, plays, |_, _| ())
    };
    begins(&of(4), "found: every rank: every 16 steps, the loop's own code (other) takes 14.0 ms longer");
    begins(&of(64), "silent");
}

/// Steps that take 80 ms longer, where all others take 16 ms, now and then.
#[test]
fn long_steps_now_and_then_are_told_from_waits_for_a_processor() {
    const LONG: [i64; 9] = [27, 39, 42, 61, 70, 73, 88, 97, 110];
    let of = |rule: &str, longer: fn(&mut steps::Row)| {
        let change = |row: &mut steps::Row| {
            if LONG.contains(&row.step) {
                longer(row)
            }
        };
        of_rule(rule, STEPS, change, |_, _| ())
    };
    let data = |row: &mut steps::Row| row.data_time += 0.08;
    let found = "found: every rank: in 9 of ";
    let said = of("irregular-stall", data);
    begins(&said, found);
    assert!(said.contains(" steps, between steps 27 and 110, data loading takes 80.0 ms longer"), "{said}");
    begins(&of("irregular-stall", |row| row.other_time += 0.08), found);
    begins(&of("periodic-stall", data), "silent");
    let waits = |row: &mut steps::Row| {
        row.other_time += 0.08;
        row.run_delay = Some(0.075);
    };
    begins(&of("irregular-stall", waits), "silent");
    let collects = |row: &mut steps::Row| {
        row.other_time += 0.08;
        row.gc_time = Some(0.075);
    };
    begins(&of("irregular-stall", collects), "silent");
    let plays = |row: &mut steps::Row| {
        row.other_time += 0.08;
        row.micro_steps += 20;
    };
    begins(&of("irregular-stall", plays), "silent");
    // It takes more than half a step longer, but not twice as long.
    begins(&of("irregular-stall", |row| row.other_time += 0.012), "silent");
    begins(
        &of("irregular-stall", |row| {
            if row.step < 50 {
                row.other_time += 0.08
            }
        }),
        "silent",
    );
}

/// The answer for a run with so many steps whose 70th step is changed.
fn of_long_step(steps: i64, change: impl Fn(&mut steps::Row), more: impl Fn(&mut Agent, &Store)) -> String {
    let long = |row: &mut steps::Row| {
        if row.step == 70 {
            change(row)
        }
    };
    of_rule("long-step", steps, long, more)
}

/// Half a second longer.
fn longer(row: &mut steps::Row) {
    row.other_time += 0.5;
}

#[test]
fn one_long_step_is_named_with_its_part_and_line() {
    let found = "found: every rank: step 70 took 500.0 ms longer than usual in the loop's own code (other): 21 % of the time of 120 steps; the thread that trains computed for 0 % of that; do: ";
    begins(&of_long_step(STEPS, longer, nothing), found);
    let sampled = |agent: &mut Agent, store: &Store| {
        let row = |agent: &mut Agent, of: i64| agent.stack_sample(69, 70.0 + 0.05 * of as f64);
        let rows: Vec<stack_samples::Row> = (0..20).map(|of| row(agent, of)).collect();
        agent.send(store, rows);
    };
    let said = of_long_step(STEPS, longer, sampled);
    assert!(said.contains(" of that; 100 % of that time is at train.py:9 in write_log (sampled); do: "), "{said}");
    let computes = |row: &mut steps::Row| (row.data_time, row.cpu_time) = (0.5005, Some(0.515));
    begins(
        &of_long_step(STEPS, computes, nothing),
        "found: every rank: step 70 took 500.0 ms longer than usual in data loading: 21 % of the time of 120 steps; the thread that trains computed for 100 % of",
    );
    let twice = |row: &mut steps::Row| {
        if [40, 70].contains(&row.step) {
            longer(row)
        }
    };
    begins(
        &of_rule("long-step", STEPS, twice, nothing),
        "found: every rank: steps 40, 70 took 1000.0 ms longer than usual in the loop's own code (other), together: 34 % of the time of 120 steps",
    );
}

#[test]
fn a_long_step_that_is_explained_otherwise_is_not_named() {
    let silent = |change: fn(&mut steps::Row)| begins(&of_long_step(STEPS, change, nothing), "silent");
    // Less than ten steps.
    silent(|row| row.other_time += 0.1);
    silent(|row| (row.other_time, row.run_delay) = (0.5, Some(0.45)));
    silent(|row| (row.other_time, row.gc_time) = (0.5, Some(0.45)));
    silent(|row| (row.other_time, row.micro_steps) = (0.5, row.micro_steps + 20));
    silent(|row| (row.other_time, row.captured) = (0.5, Some(true)));
    // A rank waits for others in backward.
    silent(|row| row.backward_time += 0.5);
    silent(|row| row.comm_time += 0.5);
    begins(&of_long_step(80, longer, nothing), "silent");
    let compiled = of_long_step(STEPS, longer, compiles(&[70], 1));
    begins(&compiled, "silent");
    let watched = |agent: &mut Agent, store: &Store| {
        let [row, _] = agent.operator_counts();
        agent.send(store, [operator_counts::Row { step: 70, ..row }]);
    };
    begins(&of_long_step(STEPS, longer, watched), "silent");
    let epochs = |agent: &mut Agent, store: &Store| {
        let row = agent.batch_handed(0);
        let row = |step: i64| data_trace::Row { step, batch_index: Some(step % 35), ..row };
        agent.send(store, (0..STEPS).map(row));
    };
    begins(&of_long_step(STEPS, longer, epochs), "silent");
    let in_steps = |long: &'static [i64]| {
        let change = |row: &mut steps::Row| {
            if long.contains(&row.step) {
                longer(row)
            }
        };
        of_rule("long-step", STEPS, change, nothing)
    };
    begins(&in_steps(&[]), "silent");
    begins(&in_steps(&[3]), "silent");
    // irregular-stall says those.
    begins(&in_steps(&[30, 47, 70, 101]), "silent");
    let unknown = of_rule("long-step", STEPS, |row| row.run_delay = None, nothing);
    begins(&unknown, "open: python.steps.run_delay is not recorded");
}

#[test]
fn a_long_step_is_a_note_unless_it_is_long_and_a_large_share() {
    let of = |seconds: f64| {
        let home = Home::empty();
        let long = |row: &mut steps::Row| row.other_time += if row.step == 70 { seconds } else { 0.0 };
        record(&home, "gpt@1", STEPS, long, nothing);
        let words = ["gpt", "diagnose", "--json", "--rule", "long-step"];
        let answer: Value = serde_json::from_str(&home.stdout(words)).unwrap();
        answer["findings"][0]["severity"].as_str().unwrap().to_owned()
    };
    assert_eq!(of(9.0), "note");
    assert_eq!(of(12.0), "warn");
}

#[test]
fn stalls_at_regular_distances_are_said_once() {
    let home = Home::empty();
    let stalls = |row: &mut steps::Row| {
        if row.step % 16 == 0 {
            row.other_time += 0.08
        }
    };
    record(&home, "gpt@1", STEPS, stalls, nothing);
    let said = said(&home, ["gpt", "diagnose", "--json", "--rule", "periodic-stall,irregular-stall"]);
    says(
        &said,
        "periodic-stall",
        "found: every rank: every 16 steps, the loop's own code (other) takes 80.0 ms longer",
    );
    says(&said, "irregular-stall", "silent: periodic-stall explains it");
}

#[test]
fn steps_with_more_calls_of_a_model_are_told_from_those_with_larger_inputs() {
    // Each eighth step calls the model for small batches, too, and each of these calls takes a while.
    let of = |small: i32| {
        let plays = move |row: &mut steps::Row| {
            if row.step % 8 == 0 {
                row.micro_steps = 1 + small;
            } else {
                row.micro_steps = 1;
            }
        };
        let shapes = move |agent: &mut Agent, store: &Store| {
            for step in 0..STEPS {
                let size = if step % 8 == 0 { 256 } else { 64 };
                let took = if step % 8 == 0 { 0.016 } else { 0.002 };
                let shape = Some(agent.strings.id(&format!("[{size}, 4]")));
                let root = torch_trace::Row { input_shape: shape, ..agent.trace(step, Some("Net"), "forward", 0.0001) };
                let inner = agent.trace(step, Some("layers.1"), "forward", took);
                agent.send(store, [root, inner]);
            }
        };
        of_rule("grows-beyond-input", STEPS, plays, shapes)
    };
    begins(&of(0), "found: every rank: the own time of Linear grows");
    begins(&of(64), "silent");
}

#[test]
fn conditions_are_worse_where_they_go_on_or_cost_time() {
    let of = |rule: &str, delay: f64, change: fn(&mut environment::Row, &mut Agent)| {
        let notes = |agent: &mut Agent, store: &Store| {
            let mut row = environment::Row { machine_cores: Some(4), cpu_cores: Some(4), ..agent.environment() };
            change(&mut row, agent);
            agent.send(store, [row]);
        };
        of_rule(rule, STEPS + 400, |row| row.run_delay = Some(delay), notes)
    };
    let double = of("double-precision", 0.0, |row, agent| row.parameter_dtype = Some(agent.strings.id("float64")));
    begins(&double, "found: every rank trains in double precision");
    let single = of("double-precision", 0.0, |row, agent| row.parameter_dtype = Some(agent.strings.id("float32")));
    begins(&single, "silent");
    let profiled = of("debug-switches", 0.0, |row, _| row.torch_profiler = Some(true));
    begins(&profiled, "found: every rank: a profiler of torch is on, since step 2, and records every operation");
    let late = of("debug-switches", 0.0, |row, _| (row.step, row.torch_profiler) = (500, Some(true)));
    begins(&late, "found: every rank: a profiler of torch is on, or was for a while");
    let crowded = of("threads-beyond-cores", 0.008, |row, _| row.torch_threads = Some(16));
    begins(&crowded, "found: every rank computes with 16 threads");
}
