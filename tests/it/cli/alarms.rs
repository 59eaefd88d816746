//! What looks like a cause and is none: `probe diagnose` is silent of it, and speaks of what is one.

use probe_proto::tables::{environment, memory, steps, torch_trace};
use probe_store::Store;

use super::diagnose::{STEPS, begins, of_rule};
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
        of_rule("validation-in-steps", STEPS, validates, answer)
    };
    begins(&of(64), "found: every rank validates 12 times");
    begins(&of(8), "silent");
}

#[test]
fn a_layer_that_is_larger_is_told_from_one_that_does_something_else() {
    // Six blocks, of which the fourth takes so many times as long.
    let blocks = |forward: f64, backward: f64| {
        move |agent: &mut Agent, store: &Store| {
            let kind = agent.strings.id("Block");
            let row = |agent: &mut Agent, step: i64, of: i64, (stage, times): (&str, f64)| {
                let took = if of == 3 { 0.0015 * times } else { 0.0015 };
                torch_trace::Row {
                    module_type: Some(kind),
                    ..agent.trace(step, Some(&format!("layers.{of}")), stage, took)
                }
            };
            let stages = [("forward", forward), ("backward", backward)];
            let places = (0..STEPS).flat_map(|step| (0..6).flat_map(move |of| stages.map(|stage| (step, of, stage))));
            let rows: Vec<_> = places.map(|(step, of, stage)| row(agent, step, of, stage)).collect();
            agent.send(store, rows);
        }
    };
    let of = |forward, backward| of_rule("odd-sibling", STEPS, |_| (), blocks(forward, backward));
    begins(&of(2.0, 1.0), "found: layers.3 takes 2 times as long in forward");
    begins(&of(2.0, 2.2), "silent");
    begins(&of(8.0, 8.0), "found: layers.3 takes 8 times as long in ");
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
    begins(&late, "found: every rank: a profiler of torch is on, or was at one look");
    let crowded = of("threads-beyond-cores", 0.008, |row, _| row.torch_threads = Some(16));
    begins(&crowded, "found: every rank computes with 16 threads");
}
