//! How `probe diagnose` judges a thread that waits: for a processor, which the program does not cause, or for anything else.

use probe_proto::tables::{data_trace, environment, stack_samples, steps, torch_trace};
use probe_store::Store;

use super::diagnosed_runs::{STEPS, begins, nothing, of_rule, record, record_ranks, record_some, said, says};
use crate::cli::support::Home;
use crate::sql::data::Agent;

/// A run on processors with so many threads. Where `line` is given, the main thread is seen not to run there in every other
/// step.
fn on_host(threads: i32, line: Option<i32>) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let device = Some(agent.strings.id("cpu"));
        let row = environment::Row { device, torch_threads: Some(threads), ..agent.environment() };
        agent.send(store, [row]);
        let sample =
            |step: i64| stack_samples::Row { line, running: false, ..agent.stack_sample(step, step as f64 + 0.005) };
        let samples: Vec<_> = (0..STEPS).filter(|step| line.is_some() && step % 2 == 0).map(sample).collect();
        agent.send(store, samples);
    }
}

#[test]
fn a_thread_that_sleeps_is_told_from_one_that_has_no_processor() {
    let answer = |change: &dyn Fn(&mut steps::Row), more: &dyn Fn(&mut Agent, &Store)| {
        of_rule("thread-blocked", STEPS, change, more)
    };
    let sleeps = |row: &mut steps::Row| row.other_time = 0.0055;
    begins(
        &answer(&sleeps, &on_host(1, None)),
        "found: every rank: for 4.5 ms of each step the training thread neither",
    );
    let found = answer(&sleeps, &on_host(1, Some(9)));
    assert!(
        found.contains("in the loop's own code (other), mostly at train.py:9 in write_log (sampled); do: "),
        "{found}"
    );
    // Threads that compute together wait for one another, unless it is always the same line of the program.
    begins(&answer(&sleeps, &on_host(4, None)), "silent");
    begins(&answer(&sleeps, &on_host(4, Some(9))), "found: ");
    // A neighbour has the processor.
    let waits = |row: &mut steps::Row| (row.other_time, row.run_delay) = (0.0055, Some(0.0045));
    begins(&answer(&waits, &on_host(1, None)), "silent");
    // Batches and ranks are waited for, and other rules look at that.
    let loads = |row: &mut steps::Row| (row.data_time, row.comm_time) = (0.004, 0.004);
    begins(&answer(&loads, &on_host(1, None)), "silent");
    // One long wait is no wait in each step.
    let stalls = |row: &mut steps::Row| {
        if row.step % 20 == 0 {
            row.other_time = 0.5;
        }
    };
    begins(&answer(&stalls, &on_host(1, None)), "silent: it exceeds its reference in");
    // A device is waited for; and where the kernel does not count, it is not known.
    let device = |agent: &mut Agent, store: &Store| {
        let row = environment::Row { device: Some(agent.strings.id("cuda:0")), ..agent.environment() };
        agent.send(store, [row]);
    };
    begins(&answer(&sleeps, &device), "silent");
    let unknown = |row: &mut steps::Row| (row.other_time, row.run_delay) = (0.0055, None);
    begins(&answer(&unknown, &on_host(1, None)), "open: python.steps.run_delay is not recorded");
}

#[test]
fn a_rank_whose_neighbours_have_its_processor_is_not_the_slow_one() {
    // The second rank has a processor for half of its time, and takes as long for everything.
    let second = |delay: f64| {
        move |rank: i32, row: &mut steps::Row| {
            if rank == 1 {
                row.forward_time += 0.005;
                row.backward_time += 0.008;
                row.run_delay = Some(delay);
            } else {
                row.comm_time += 0.013;
            }
        }
    };
    let of = |delay: f64| {
        let home = Home::empty();
        record_ranks(&home, "gpt@1", STEPS, second(delay), nothing);
        said(&home, ["gpt", "diagnose", "--json", "--rule", "rank-slow,rank-without-processor,waits-*"])
    };
    let crowded = of(0.014);
    says(&crowded, "rank-slow", "silent");
    says(
        &crowded,
        "rank-without-processor",
        "found: rank 1 has a processor for 54 % of its own time in a step and the other ranks for 100 %",
    );
    says(&crowded, "waits-for-a-processor", "found: rank 1 was ready and had no processor in ");
    let slow = of(0.0);
    says(&slow, "rank-slow", "found: rank 1 takes longer than the others for ");
    says(&slow, "rank-without-processor", "silent");
}

#[test]
fn ranks_that_have_a_processor_for_as_long_as_one_another_do_not_wait_for_one_of_them() {
    // Neighbours take half of the time of one rank and then of the other.
    let turns = |rank: i32, row: &mut steps::Row| {
        let is_slow = row.step % 2 == i64::from(rank);
        row.run_delay = Some(if is_slow { 0.014 } else { 0.0 });
        if is_slow {
            row.forward_time += 0.014;
        } else {
            row.comm_time += 0.014;
        }
    };
    let home = Home::empty();
    record_ranks(&home, "gpt@1", STEPS, turns, nothing);
    let found = said(&home, ["gpt", "diagnose", "--json", "--rule", "rank-without-processor"]);
    says(&found, "rank-without-processor", "silent");
}

#[test]
fn how_long_ranks_wait_for_a_processor_is_said_of_all_of_them() {
    let waits = |rank: i32, row: &mut steps::Row| row.run_delay = Some(if rank == 0 { 0.004 } else { 0.008 });
    let home = Home::empty();
    record_ranks(&home, "gpt@1", STEPS, waits, nothing);
    let found = said(&home, ["gpt", "diagnose", "--json", "--rule", "waits-for-a-processor"]);
    says(&found, "waits-for-a-processor", "found: every rank was ready and had no processor in 25 to 50 % of the time");
}

#[test]
fn a_module_whose_hook_sleeps_is_one_finding() {
    let more = |agent: &mut Agent, store: &Store| {
        let (device, part) = (Some(agent.strings.id("cpu")), agent.strings.id("forward"));
        let row = environment::Row { device, torch_threads: Some(1), ..agent.environment() };
        agent.send(store, [row]);
        let samples: Vec<_> = (0..STEPS)
            .map(|step| stack_samples::Row {
                part,
                line: Some(9),
                running: false,
                ..agent.stack_sample(step, step as f64 + 0.002)
            })
            .collect();
        agent.send(store, samples);
        let kind = Some(agent.strings.id("Block"));
        let blocks = (0..STEPS).flat_map(|step| (0..6).map(move |block| (step, block)));
        let rows: Vec<_> = blocks
            .map(|(step, block)| {
                let took = if block == 3 { 0.0055 } else { 0.001 };
                let row = agent.trace(step, Some(&format!("layers.{block}")), "forward", took);
                torch_trace::Row { module_type: kind, ..row }
            })
            .collect();
        agent.send(store, rows);
    };
    let home = Home::empty();
    record_some(&home, "gpt@1", 1, STEPS, |_, row| row.forward_time = 0.0105, more);
    let found = said(&home, ["gpt", "diagnose", "--json", "--rule", "odd-sibling,thread-blocked"]);
    says(&found, "thread-blocked", "found: rank 0: for ");
    says(&found, "odd-sibling", "silent: thread-blocked explains it");
    let alone = said(&home, ["gpt", "diagnose", "--json", "--rule", "odd-sibling"]);
    says(&alone, "odd-sibling", "found: module layers.3 takes 5.50 times as long in forward");
}

#[test]
fn batches_that_are_made_in_the_loop_take_longer_where_neighbours_are() {
    let loads = |agent: &mut Agent, store: &Store| {
        let row = environment::Row { cpu_cores: Some(8), ..agent.environment() };
        agent.send(store, [row]);
        let rows: Vec<_> = (0..STEPS).map(|step| agent.batch_handed(step)).collect();
        let row = |(step, row)| data_trace::Row { step, num_workers: Some(0), wait: 0.006, ..row };
        agent.send(store, (0..STEPS).zip(rows).map(row));
    };
    let of = |delay: f64| {
        let change = |row: &mut steps::Row| (row.data_time, row.run_delay) = (0.006, Some(delay));
        of_rule("loads-in-loop", STEPS, change, loads)
    };
    begins(&of(0.0), "found: every rank: batches are made on the training thread");
    // Of 21 ms the thread had a processor for 5: its millisecond and a half for a hand-over would have been six.
    begins(&of(0.0165), "silent");
}

#[test]
fn what_a_thread_waits_for_comes_before_all_that_is_between_the_parts() {
    let home = Home::empty();
    let works_too = |row: &mut steps::Row| {
        (row.other_time, row.cpu_time) = (0.0165, row.cpu_time.map(|cpu| cpu + 0.0055));
    };
    record(&home, "gpt@1", STEPS, works_too, on_host(1, Some(9)));
    let page = home.stdout(["gpt", "diagnose", "--rule", "thread-blocked,work-between-parts"]);
    let line = |number: &str| page.lines().find(|line| line.starts_with(number)).unwrap_or_default();
    assert!(line("   1  ").contains("thread-blocked"), "{page}");
    assert!(line("   2  ").contains("work-between-parts"), "{page}");
}
