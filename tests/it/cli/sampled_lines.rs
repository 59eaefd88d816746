//! How `probe diagnose` uses samples of the stack: the line of a finding, and a lock that another thread holds.

use probe_proto::tables::{environment, stack_samples, steps};
use probe_store::Store;
use serde_json::Value;

use super::diagnosed_runs::{STEPS, begins, nothing, of_rule, record};
use crate::cli::support::Home;
use crate::sql::data::Agent;

/// A sample in every `every`th step, 5 ms after its beginning, of which `change` makes something.
fn sampled(every: i64, change: impl Fn(&mut Agent, &mut stack_samples::Row)) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let row = |agent: &mut Agent, step: i64| {
            let mut row = agent.stack_sample(step, step as f64 + 0.005);
            change(agent, &mut row);
            row
        };
        let rows: Vec<_> = (0..STEPS).filter(|step| step % every == 0).map(|step| row(agent, step)).collect();
        agent.send(store, rows);
    }
}

fn busy(row: &mut steps::Row) {
    row.other_time = 0.02;
}

/// The finding of a rule in such a run, and the reasons why rules are not decided.
fn found(
    rule: &str,
    change: impl Fn(&mut steps::Row),
    more: impl Fn(&mut Agent, &Store),
) -> (Value, Vec<(String, String)>) {
    let home = Home::empty();
    record(&home, "gpt@1", STEPS, change, more);
    let answer: Value = serde_json::from_str(&home.stdout(["gpt", "diagnose", "--json", "--rule", rule])).unwrap();
    let text = |of: &Value, key: &str| of[key].as_str().unwrap().to_owned();
    let open = answer["not_decided"].as_array().unwrap().iter().map(|of| (text(of, "rule"), text(of, "why")));
    (answer["findings"][0].clone(), open.collect())
}

#[test]
fn work_between_the_parts_is_named_by_the_line_that_has_most_samples() {
    let (finding, open) = found("work-between-parts", busy, sampled(2, |_, _| ()));
    assert_eq!((&finding["subject"]["line"], open.len()), (&"train.py:9".into(), 0), "{finding:#}");
    let says = finding["says"].as_str().unwrap();
    assert!(says.ends_with("; 100 % of that time is at train.py:9 in write_log (sampled)"), "{says}");
    assert_eq!((&finding["sampled"]["samples"], &finding["sampled"]["share"]), (&120.into(), &1.0.into()));
    // Samples in several lines of one function name the function.
    let several = |_: &mut Agent, row: &mut stack_samples::Row| row.line = Some(9 + (row.step % 6) as i32 / 2);
    let (finding, _) = found("work-between-parts", busy, sampled(2, several));
    assert!(
        finding["says"].as_str().unwrap().contains("100 % of that time is in write_log, as at train.py:"),
        "{finding:#}"
    );
    // Both ranks, and every other step of each: 120 samples. A library that is called there is told too.
    let saves =
        |agent: &mut Agent, row: &mut stack_samples::Row| row.library_function = Some(agent.strings.id("dumps"));
    let (finding, _) = found("work-between-parts", busy, sampled(2, saves));
    assert!(finding["says"].as_str().unwrap().ends_with("in write_log, mostly within dumps (sampled)"), "{finding:#}");
}

#[test]
fn a_line_is_not_decided_where_samples_are_few_or_disagree() {
    let why = |more: &dyn Fn(&mut Agent, &Store)| {
        let (finding, open) = found("work-between-parts", busy, more);
        assert_eq!((&finding["rule"], &finding["subject"]["line"]), (&"work-between-parts".into(), &Value::Null));
        assert!(finding["sampled"].is_null());
        assert_eq!(open[0].0, "work-between-parts");
        open[0].1.clone()
    };
    let few = "the line: 0 samples of the stack in 0 steps are too few: it takes 10 in 3";
    assert_eq!(why(&nothing), few);
    assert_eq!(why(&sampled(40, |_, _| ())), few.replace("0 samples", "6 samples").replace("0 steps", "3 steps"));
    // A function a sample.
    let spread = |agent: &mut Agent, row: &mut stack_samples::Row| {
        row.function = Some(agent.strings.id(&format!("f{}", row.step)));
        row.line = Some(row.step as i32);
    };
    assert_eq!(
        why(&sampled(2, spread)),
        "the line: no line, and no 3 functions together, have half of 120 samples with 97.5 % confidence"
    );
    // Samples of a stack that shows nothing of what is between the parts.
    let elsewhere = |agent: &mut Agent, row: &mut stack_samples::Row| {
        if row.step % 5 != 0 {
            row.part = agent.strings.id("forward");
        }
    };
    let why = why(&sampled(1, elsewhere));
    assert_eq!(
        why,
        "the line: 48 samples are in other, where its time lets expect 135: the stacks do not show the part"
    );
}

#[test]
fn a_stall_is_named_by_the_samples_of_the_long_steps() {
    let stalls = |row: &mut steps::Row| {
        if row.step % 20 == 0 {
            row.other_time = 0.2;
        }
    };
    // Other lines run in the steps between: they say nothing of the stall.
    let several = |agent: &mut Agent, store: &Store| {
        let samples = |agent: &mut Agent, step: i64| {
            let rows = [0.05, 0.1, 0.15].map(|at| agent.stack_sample(step, step as f64 + at));
            rows.map(|row| stack_samples::Row { line: Some(if step % 20 == 0 { 44 } else { 9 }), ..row })
        };
        let rows: Vec<_> = (0..STEPS).flat_map(|step| samples(agent, step)).collect();
        agent.send(store, rows);
    };
    let (finding, open) = found("periodic-stall", stalls, several);
    assert_eq!((&finding["subject"]["line"], open.len()), (&"train.py:44".into(), 0), "{finding:#} {open:?}");
}

#[test]
fn a_lock_that_another_thread_holds_is_told_from_one_that_is_free_and_from_too_few_samples() {
    let held = |every: i64| {
        move |agent: &mut Agent, row: &mut stack_samples::Row| {
            if row.step % every == 0 {
                (row.running, row.gil, row.gil_elsewhere) = (false, false, true);
                row.gil_thread = Some(agent.strings.id("Pump"));
                row.gil_function = Some(agent.strings.id("pump"));
                (row.gil_file, row.gil_line) = (Some(agent.strings.id("pump.py")), Some(5));
            }
        }
    };
    let answer = |more: &dyn Fn(&mut Agent, &Store)| of_rule("gil-held-elsewhere", STEPS, busy, more);
    begins(
        &answer(&sampled(1, held(2))),
        "found: every rank: while the main thread was not running, Pump held the GIL in 50 % of 120 samples, mostly at \
         pump.py:5 in pump (sampled)",
    );
    begins(&answer(&sampled(1, held(10))), "silent");
    // Few samples are enough where all of them say so.
    begins(&answer(&sampled(10, held(10))), "found: every rank: while the main thread was not running, Pump held");
    begins(&answer(&sampled(20, held(20))), "open: 6 rows of python.stack_samples in these steps are too few");
    // A main thread that runs waits for no lock: an operator has let it go.
    let runs = |agent: &mut Agent, row: &mut stack_samples::Row| {
        held(1)(agent, row);
        row.running = true;
    };
    begins(&answer(&sampled(1, runs)), "silent");
    // What a thread waits for is not known where it may be a device: that is a note, in however many parts.
    let parts = |agent: &mut Agent, row: &mut stack_samples::Row| {
        held(2)(agent, row);
        row.part = agent.strings.id(["forward", "backward", "other", "backward"][row.step as usize % 4]);
    };
    let (finding, _) = found("gil-held-elsewhere", busy, sampled(1, parts));
    assert_eq!(finding["severity"], "note", "{finding:#}");
    // The program runs on the host, so the time in which its thread is blocked is measured: more than half of a step here. That
    // it runs in most samples says nothing then, and the few others decide.
    let blocked = |others: i64| {
        let device = move |agent: &mut Agent, store: &Store| {
            let row = environment::Row { device: Some(agent.strings.id("cpu")), ..agent.environment() };
            agent.send(store, [row]);
            let idle = move |agent: &mut Agent, row: &mut stack_samples::Row| {
                held(12)(agent, row);
                row.running = row.step % 12 != 0 && row.step % 12 != others;
            };
            sampled(1, idle)(agent, store);
        };
        answer(&device)
    };
    begins(
        &blocked(0),
        "found: every rank: while the main thread was not running, Pump held the GIL in 8 % of 120 samples",
    );
    begins(&blocked(3), "silent");
}
