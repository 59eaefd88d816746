//! `probe diagnose` about memory: what grows, what is full, what is in pieces, and which rank needs more than the others.

use probe_proto::tables::{gpu_metrics, memory, steps};
use probe_store::Store;

use super::diagnosed_runs::{STEPS, begins, of_rule, record_ranks, said, says};
use crate::cli::support::Home;
use crate::sql::data::Agent;

fn as_it_is(_: &mut steps::Row) {}

/// A row of a device's memory at the end of each step.
fn on_device(change: impl Fn(&Agent, &mut memory::Row)) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let row = |agent: &mut Agent, step| {
            let mut row = memory::Row { retries: Some(0), ..agent.memory(step, "cuda:0") };
            change(agent, &mut row);
            row
        };
        let rows: Vec<_> = (0..STEPS).map(|step| row(agent, step)).collect();
        agent.send(store, rows);
        let gpu = agent.gpu(1);
        agent.send(store, [gpu_metrics::Row { memory_total: Some(1000.0), ..gpu }]);
    }
}

#[test]
fn device_memory_that_grows_is_told_from_memory_that_settles() {
    let of = |allocated: &'static dyn Fn(i64) -> f64| {
        let grows = on_device(move |_, row| row.allocated = Some(allocated(row.step)));
        of_rule("device-leak", STEPS, as_it_is, grows)
    };
    begins(
        &of(&|step| 500.0 + 0.5 * step as f64),
        "found: every rank: what tensors hold on the GPU grows all the time: 500 to 555 MB, 0.50 MB a step",
    );
    begins(&of(&|_| 500.0), "silent");
    begins(&of(&|step| 500.0 + 60.0 * (1.0 - (-step as f64 / 20.0).exp())), "silent");
}

#[test]
fn the_memory_of_workers_that_grows_is_told_from_that_of_new_ones() {
    let of = |own: f64, rss: &'static dyn Fn(i64) -> f64, children: &'static dyn Fn(i64) -> i32| {
        let more = move |agent: &mut Agent, store: &Store| {
            let row = |agent: &mut Agent, step| memory::Row {
                children: Some(children(step)),
                children_rss: Some(rss(step)),
                rss: Some(own),
                ..agent.memory(step, "cpu")
            };
            let rows: Vec<_> = (0..STEPS).map(|step| row(agent, step)).collect();
            agent.send(store, rows);
        };
        of_rule("workers-leak", STEPS, as_it_is, more)
    };
    begins(
        &of(200.0, &|step| 600.0 + 2.0 * step as f64, &|_| 2),
        "found: every rank: the memory of its 2 child processes grows all the time: ",
    );
    begins(&of(200.0, &|_| 600.0, &|_| 2), "silent");
    // Half of the time there are none.
    // Workers that read what the process has in memory.
    begins(&of(2000.0, &|step| 600.0 + 2.0 * step as f64, &|_| 2), "silent");
    begins(
        &of(200.0, &|step| if step % 2 == 0 { 0.0 } else { 600.0 }, &|step| if step % 2 == 0 { 0 } else { 2 }),
        "silent",
    );
}

#[test]
fn a_device_whose_memory_is_full_is_told() {
    let of = |rule: &str, peak: f64, reserved: f64, retries: i64| {
        let full = on_device(move |_, row| {
            row.max_allocated = Some(peak);
            row.max_reserved = Some(reserved);
            row.retries = Some(retries * i64::from(row.step >= 90));
        });
        of_rule(rule, STEPS, as_it_is, full)
    };
    begins(
        &of("device-memory-full", 940.0, 960.0, 0),
        "found: every rank: at the peak, tensors held 940 of the 1000 MB that the GPU has",
    );
    begins(
        &of("device-memory-full", 700.0, 960.0, 3),
        "found: every rank: torch's allocator had no GPU memory left 3 times in",
    );
    begins(&of("device-memory-full", 700.0, 960.0, 0), "silent");
    begins(
        &of("device-memory-fragmented", 500.0, 900.0, 0),
        "found: every rank: torch's allocator reserves 900 MB of GPU memory where tensors held 500 MB at the peak",
    );
    // There is room for more.
    begins(&of("device-memory-fragmented", 100.0, 300.0, 0), "silent");
    begins(&of("device-memory-fragmented", 800.0, 900.0, 2), "silent");
}

#[test]
fn a_rank_that_needs_more_memory_than_the_others_is_told() {
    let of = |peak: f64| {
        let home = Home::empty();
        let more = on_device(move |agent, row| {
            row.max_allocated = Some(if agent.identity.rank == Some(1) { peak } else { 500.0 });
        });
        record_ranks(&home, "gpt@1", STEPS, |_, _| (), more);
        said(&home, ["gpt", "diagnose", "--json", "--rule", "uneven-memory"])
    };
    says(&of(900.0), "uneven-memory", "found: rank 1 needs 900 MB of GPU memory at its peak");
    says(&of(520.0), "uneven-memory", "silent");
}
