//! The rules of `probe diagnose` about loaders with workers: which worker is behind, and whether the loader is the cause at all.

use probe_proto::table::Time;
use probe_proto::tables::{data_trace, process_metrics, steps};
use probe_store::Store;

use super::diagnosed_runs::{STEPS, advises, begins, of_rule, of_rules, says};
use crate::sql::data::{Agent, START};

/// Batches of two workers that each load four ahead. `ready` of 8 are there when the loop asks, and it waits `wait` (s).
pub(super) fn batches(agent: &mut Agent, store: &Store, ready: impl Fn(i64) -> i32, wait: impl Fn(i64) -> f64) {
    batches_that_take(agent, store, ready, wait, |step| if step % 2 == 0 { 0.021 } else { 0.02 });
}

/// The same, where a worker takes `fetch` seconds to load one.
pub(super) fn batches_that_take(
    agent: &mut Agent,
    store: &Store,
    ready: impl Fn(i64) -> i32,
    wait: impl Fn(i64) -> f64,
    fetch: impl Fn(i64) -> f64,
) {
    let rows: Vec<data_trace::Row> = (0..STEPS).map(|step| agent.batch_handed(step)).collect();
    let row = |(step, row): (i64, data_trace::Row)| data_trace::Row {
        step,
        batch_index: Some(step),
        num_workers: Some(2),
        prefetch_factor: Some(4),
        queue_depth: Some(ready(step)),
        tasks_outstanding: Some(8),
        wait: wait(step),
        fetch_time: (step > 0).then(|| fetch(step)),
        ..row
    };
    agent.send(store, (0..STEPS).zip(rows).map(row));
}

/// The processor time that each of two workers takes (%), and the time that it is ready without a processor (%).
fn workers(agent: &mut Agent, store: &Store, percent: f64, delay: f64) {
    let rows: Vec<process_metrics::Row> = (0..STEPS).map(|second| agent.metrics(second)).collect();
    let row = |row| process_metrics::Row {
        data_workers: Some(2),
        data_workers_percent: Some(2.0 * percent),
        data_workers_run_delay: Some(2.0 * delay),
        data_workers_disk_read_bytes: Some(5e6),
        ..row
    };
    agent.send(store, rows.into_iter().map(row));
}

#[test]
fn a_loader_that_does_not_keep_up_is_told_from_waits_that_are_not_its_own() {
    let said = |ready: i32, percent: f64, delay: f64| {
        let batches = move |agent: &mut Agent, store: &Store| {
            batches(agent, store, |_| ready, |_| 0.01);
            workers(agent, store, percent, delay);
        };
        of_rule("loader-starved", STEPS, |row| row.data_time = 0.01, batches)
    };
    let found = "found: every rank: the loader does not keep up: when a batch was asked for, 12 % of those requested from its 2 workers were ready";
    begins(
        &said(1, 95.0, 0.0),
        &format!("{found}; each worker used 95 % of a processor; together they read 5 MB/s from disks"),
    );
    begins(&said(1, 5.0, 0.0), &format!("{found}; each worker used 5 % of a processor;"));
    assert!(
        said(1, 95.0, 0.0).contains("; it took a worker 20.5 ms to load a batch on average"),
        "{}",
        said(1, 95.0, 0.0)
    );
    advises(&said(1, 95.0, 0.0), "a faster __getitem__ or collate_fn, which keeps the workers busy all the time");
    advises(&said(1, 5.0, 0.0), "more workers (num_workers): they mostly wait");
    // The batches are there, and something else keeps the loop from them.
    begins(&said(7, 95.0, 0.0), "silent");
    // Its workers have nothing to do, and what takes long is to hand a batch over.
    begins(&said(8, 15.0, 2.0), "silent");
    // Neighbours have the processors that the workers want.
    begins(&said(1, 15.0, 80.0), "silent");
}

#[test]
fn a_loader_that_would_not_keep_up_without_neighbours_is_found_beside_them() {
    // Training computes for a fifth of the time, and waits for batches and for a processor in the rest.
    let said = |percent: f64| {
        let batches = move |agent: &mut Agent, store: &Store| {
            batches(agent, store, |_| 1, |_| 0.01);
            workers(agent, store, percent, 70.0);
        };
        let crowded = |row: &mut probe_proto::tables::steps::Row| {
            (row.data_time, row.run_delay, row.cpu_time) = (0.01, Some(0.011), Some(0.005));
        };
        of_rule("loader-starved", STEPS, crowded, batches)
    };
    begins(&said(30.0), "found: every rank: the loader does not keep up");
    advises(&said(30.0), "a faster __getitem__ or collate_fn, or more processors; not more workers");
    // Its workers compute for less than training does, so they would be in time.
    begins(&said(15.0), "silent");
}

#[test]
fn batches_that_are_there_and_not_sent_yet_are_told_from_a_loop_that_has_no_processor() {
    // Each second batch comes late, though nearly all are counted as ready.
    let said = |delay: f64| {
        let late = |step: i64| if step % 2 == 1 { 0.01 } else { 0.0005 };
        let batches = move |agent: &mut Agent, store: &Store| batches(agent, store, |_| 7, late);
        let waits = move |row: &mut probe_proto::tables::steps::Row| {
            row.data_time = late(row.step);
            row.run_delay = Some(if row.step % 2 == 1 { delay } else { 0.0 });
        };
        of_rule("loader-starved", STEPS, waits, batches)
    };
    begins(&said(0.0), "found: every rank: the loader does not keep up");
    begins(&said(0.009), "silent");
}

#[test]
fn a_batch_that_counts_and_is_never_sent_in_time_is_no_measure_of_one_that_is_there() {
    // Of two batches that are requested of one worker, one counts as ready, and each is waited for.
    let said = |ready: i32| {
        let batches = move |agent: &mut Agent, store: &Store| {
            let rows: Vec<data_trace::Row> = (0..STEPS).map(|step| agent.batch_handed(step)).collect();
            let row = |(step, row): (i64, data_trace::Row)| data_trace::Row {
                step,
                batch_index: Some(step),
                num_workers: Some(1),
                prefetch_factor: Some(2),
                queue_depth: Some(ready),
                tasks_outstanding: Some(2),
                wait: 0.015,
                ..row
            };
            agent.send(store, (0..STEPS).zip(rows).map(row));
        };
        of_rule("loader-starved", STEPS, |row| row.data_time = 0.015, batches)
    };
    begins(&said(1), "found: every rank: the loader does not keep up");
    // Both are there: handing them over takes so long.
    begins(&said(2), "silent");
}

#[test]
fn one_worker_that_is_slow_is_told_from_two_whose_turns_differ() {
    let said = |ready: i32| {
        let batches = move |agent: &mut Agent, store: &Store| {
            batches(agent, store, |_| ready, |step| if step % 2 == 1 { 0.02 } else { 0.0005 });
        };
        let waits =
            |row: &mut probe_proto::tables::steps::Row| row.data_time = if row.step % 2 == 1 { 0.02 } else { 0.0005 };
        of_rule("one-slow-worker", STEPS, waits, batches)
    };
    begins(&said(5), "found: every rank: worker 1 of 2 keeps the others waiting: ");
    // The loop has no processor for a moment now and then, when it is the other one's turn.
    let crowded = |agent: &mut Agent, store: &Store| {
        let wait = |step: i64| match step % 4 {
            0 => 0.0025,
            2 => 0.0005,
            _ => 0.02,
        };
        batches(agent, store, |_| 5, wait);
    };
    let waits =
        |row: &mut probe_proto::tables::steps::Row| row.data_time = if row.step % 2 == 1 { 0.02 } else { 0.0025 };
    begins(
        &of_rule("one-slow-worker", STEPS, waits, crowded),
        "found: every rank: worker 1 of 2 keeps the others waiting: ",
    );
    // Both have much to do: the one whose turn is first is waited for.
    begins(&said(1), "silent");
}

#[test]
fn the_worker_that_loaded_a_batch_counts_and_not_whose_turn_it_would_be() {
    // Batches in any order: by their index, the others would be the first worker's.
    let batches = |agent: &mut Agent, store: &Store| {
        let rows: Vec<data_trace::Row> = (0..STEPS).map(|step| agent.batch_handed(step)).collect();
        let row = |(step, row): (i64, data_trace::Row)| data_trace::Row {
            step,
            batch_index: Some(step),
            num_workers: Some(2),
            prefetch_factor: Some(4),
            queue_depth: Some(5),
            tasks_outstanding: Some(8),
            wait: if step % 2 == 1 { 0.02 } else { 0.0005 },
            worker: Some(if step % 2 == 1 { 0 } else { 1 }),
            fetch_time: Some(if step % 2 == 1 { 0.04 } else { 0.0015 }),
            ..row
        };
        agent.send(store, (0..STEPS).zip(rows).map(row));
    };
    let waits = |row: &mut steps::Row| row.data_time = if row.step % 2 == 1 { 0.02 } else { 0.0005 };
    let said = of_rule("one-slow-worker", STEPS, waits, batches);
    begins(&said, "found: every rank: worker 0 of 2 keeps the others waiting: ");
    assert!(said.contains("; it took 40.0 ms to load a batch on average, and the others 1.5 ms"), "{said}");
}

#[test]
fn workers_that_start_anew_each_epoch_are_told_from_those_that_stay() {
    let epochs = |row: &mut steps::Row| {
        if row.step % 20 == 0 {
            (row.data_time, row.other_time) = (0.05, 0.03);
        }
    };
    let batches = |stay: bool| {
        move |agent: &mut Agent, store: &Store| {
            let rows: Vec<data_trace::Row> = (0..STEPS).map(|step| agent.batch_handed(step)).collect();
            let row = |(step, row): (i64, data_trace::Row)| data_trace::Row {
                step,
                batch_index: Some(step % 20),
                num_workers: Some(2),
                persistent_workers: Some(stay),
                prefetch_factor: Some(2),
                queue_depth: Some(2),
                wait: 0.0005,
                ..row
            };
            agent.send(store, (0..STEPS).zip(rows).map(row));
        }
    };
    let said = of_rules("periodic-stall,workers-restart", STEPS, epochs, batches(false));
    says(&said, "workers-restart", "found: every rank restarted 2 workers 6 times");
    says(&said, "periodic-stall", "silent: workers-restart explains it");
    let said = of_rules("periodic-stall,workers-restart", STEPS, epochs, batches(true));
    says(&said, "workers-restart", "silent");
    says(&said, "periodic-stall", "found");
}

#[test]
fn workers_that_start_slowly_are_told_from_batches_that_take_long() {
    let batches = |first: f64, others: f64, stay: bool| {
        move |agent: &mut Agent, store: &Store| {
            let row = data_trace::Row { dataset: Some(agent.strings.id("Images")), ..agent.batch_handed(0) };
            let row = |step: i64| data_trace::Row {
                step,
                ts: Time(START + step * 1_000_000_000),
                batch_index: Some(step % 60),
                num_workers: Some(2),
                persistent_workers: Some(stay),
                wait: if step % 60 == 0 { first } else { others },
                ..row
            };
            agent.send(store, (0..STEPS).map(row));
        }
    };
    let said = |first, others, stay| of_rule("workers-start-slowly", STEPS, |_| (), batches(first, others, stay));
    let found = "found: every rank waited 20 s for the first batch of its 2 new workers";
    begins(&said(20.0, 0.001, false), &format!("{found} (2 times)"));
    // Workers that stay start once.
    begins(&said(20.0, 0.001, true), &format!("{found} (1 times)"));
    begins(&said(5.0, 0.001, false), "silent");
    // A batch takes two seconds of a worker: that it takes 20 with two of them is another rule's.
    begins(&said(20.0, 1.5, false), "silent");
}
