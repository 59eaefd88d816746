//! `probe diagnose` about what changes while a run trains: a loss that rises, a step that is slower from some step on, calls without a
//! backward pass, and loaders and starts that take long.

use probe_proto::table::Time;
use probe_proto::tables::{data_trace, environment, metrics, process_metrics, steps};
use probe_store::Store;

use super::diagnose::{STEPS, begins, nothing, of_rule};
use crate::sql::data::{Agent, START};

fn diverges(step: f64) -> f64 {
    if step < 60.0 { 4.0 - step / 20.0 } else { 1.05_f64.powf(step - 60.0) }
}

#[test]
fn a_loss_that_rises_is_told_from_one_that_falls_and_from_one_that_varies() {
    let of = |name: &'static str, loss: &'static dyn Fn(f64) -> f64| {
        let logs = move |agent: &mut Agent, store: &Store| {
            let name = agent.strings.id(name);
            let row = |step: i64| metrics::Row {
                step,
                ts: Time(START + step * 1_000_000_000),
                name,
                value: Some(loss(step as f64)),
                reason: None,
            };
            agent.send(store, (0..STEPS).map(row));
        };
        of_rule("loss-rises", STEPS, |_| (), logs)
    };
    begins(&of("train/loss", &diverges), "found: every rank: train/loss rises: it was 1.");
    begins(&of("loss", &|step| 4.0 / (1.0 + step / 20.0)), "silent");
    begins(&of("loss", &|step| 2.0 + (step * 1.7).sin()), "silent");
    begins(&of("value_loss", &diverges), "silent");
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
    // It was slow for a while, and is not any more.
    begins(
        &of(&|row| {
            if (80..160).contains(&row.step) {
                row.other_time += 0.006
            }
        }),
        "silent",
    );
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
    let of = |every: i64| {
        let batches = move |agent: &mut Agent, store: &Store| {
            let rows: Vec<data_trace::Row> = (0..STEPS).map(|step| agent.batch_handed(step)).collect();
            let row = |(step, row): (i64, data_trace::Row)| {
                let dry = step % every == 0;
                data_trace::Row {
                    step,
                    batch_index: Some(step),
                    num_workers: Some(2),
                    prefetch_factor: Some(2),
                    queue_depth: Some(if dry { 0 } else { 3 }),
                    tasks_outstanding: Some(4),
                    wait: if dry { 0.03 } else { 0.0002 },
                    ..row
                }
            };
            agent.send(store, (0..STEPS).zip(rows).map(row));
        };
        let waits = move |row: &mut steps::Row| row.data_time = if row.step % every == 0 { 0.03 } else { 0.0003 };
        of_rule("bursts-of-batches", STEPS, waits, batches)
    };
    begins(&of(7), "found: every rank: the loader keeps up in 8");
    begins(&of(2), "silent");
    begins(&of(STEPS), "silent");
}

#[test]
fn workers_that_have_no_processor_are_told_where_they_themselves_are_too_many() {
    let of = |workers: i32, percent: f64| {
        let more = move |agent: &mut Agent, store: &Store| {
            let row = environment::Row { cpu_cores: Some(4), ..agent.environment() };
            agent.send(store, [row]);
            let row = |agent: &mut Agent, step| process_metrics::Row {
                step,
                data_workers: Some(workers),
                data_workers_percent: Some(percent * f64::from(workers)),
                data_workers_run_delay: Some(60.0 * f64::from(workers)),
                ..agent.metrics(step)
            };
            let rows: Vec<_> = (0..STEPS).map(|step| row(agent, step)).collect();
            agent.send(store, rows);
        };
        of_rule("workers-beyond-cores", STEPS, |_| (), more)
    };
    begins(&of(8, 40.0), "found: 16 data workers on 4 processors: each was ready and had none for 60 % of the time");
    begins(&of(2, 40.0), "silent");
    // Neighbours have the processors.
    begins(&of(8, 2.0), "silent");
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
