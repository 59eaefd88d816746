//! `probe diagnose` about memory: what grows, what is full, what is in pieces, and which rank needs more than the others.

use probe_proto::tables::{environment, gpu_metrics, memory, process_metrics, steps, torch_trace};
use probe_store::Store;

use super::diagnosed_runs::{STEPS, begins, each_second, of_rule, record_ranks, said, says};
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
        "found: every rank: what tensors hold on the GPU grows all the time: 500 to 555 MB, 0.50 MB a step; \
         at that rate the 1000 MB of the GPU are full after 881 more steps (less than a minute) if nobody else needs any; do: ",
    );
    begins(&of(&|_| 500.0), "silent");
    begins(&of(&|step| 500.0 + 60.0 * (1.0 - (-step as f64 / 20.0).exp())), "silent");
}

/// An environment whose control group and machine have so much memory.
fn limited(agent: &mut Agent, store: &Store, memory_limit: Option<f64>, machine_memory: Option<f64>) {
    let row = environment::Row { memory_limit, machine_memory, ..agent.environment() };
    agent.send(store, [row]);
}

#[test]
fn host_memory_that_grows_is_full_at_some_step_where_its_limit_is_known() {
    let of = |limit: Option<f64>, machine: Option<f64>| {
        let grows = move |agent: &mut Agent, store: &Store| {
            limited(agent, store, limit, machine);
            let row = |step: i64| memory::Row { rss: Some(2000.0 + 10.0 * step as f64), ..agent.memory(step, "cpu") };
            let rows: Vec<_> = (0..STEPS).map(row).collect();
            agent.send(store, rows);
        };
        of_rule("host-leak", STEPS, |row| row.other_time = 1.0, grows)
    };
    // Both ranks grow, on the same host: to 6360 MB so far.
    let found = "found: every rank: memory grows all the time: 2000 to 3090 MB, 10 MB a step";
    begins(
        &of(Some(10_000.0), Some(64_000.0)),
        &format!(
            "{found}; at that rate the 10000 MB of its control group are full after 182 more steps (4 minutes) if nobody else needs any; do: "
        ),
    );
    begins(
        &of(None, Some(64_000.0)),
        &format!(
            "{found}; at that rate the 64000 MB of the machine are full after 2882 more steps (49 minutes) if nobody else needs any; do: "
        ),
    );
    begins(&of(None, None), &format!("{found}; do: "));
    // In a year.
    begins(&of(None, Some(6e8)), &format!("{found}; do: "));
}

#[test]
fn host_memory_that_grows_while_inputs_vary_is_no_leak_before_many_steps() {
    let of = |length: fn(i64) -> i64| {
        let grows = move |agent: &mut Agent, store: &Store| {
            let row = |step: i64| memory::Row { rss: Some(2000.0 + 10.0 * step as f64), ..agent.memory(step, "cpu") };
            let rows: Vec<_> = (0..STEPS).map(row).collect();
            agent.send(store, rows);
            let root = |step: i64| {
                let input_shape = Some(agent.strings.id(&format!("[32, {}]", length(step))));
                torch_trace::Row { input_shape, ..agent.trace(step, Some("GPT"), "forward", 0.001) }
            };
            let roots: Vec<_> = (0..STEPS).map(root).collect();
            agent.send(store, roots);
        };
        of_rule("host-leak", STEPS, as_it_is, grows)
    };
    begins(&of(|step| 100 + step * 37 % 101), "silent: inputs vary in size");
    begins(&of(|_| 100), "found: every rank: memory grows all the time: 2000 to 3090 MB, 10 MB a step");
}

#[test]
fn a_control_group_that_processes_fill_is_told_from_one_that_cached_files_fill() {
    let of = |used: f64, rss: f64, reads: f64, limit: Option<f64>| {
        let more = move |agent: &mut Agent, store: &Store| {
            limited(agent, store, limit, Some(64_000.0));
            let full = |_: i64, row: &mut process_metrics::Row| {
                (row.cgroup_memory, row.rss, row.disk_read_bytes) = (Some(used), Some(rss), Some(reads));
            };
            each_second(full)(agent, store);
        };
        of_rule("host-memory-full", STEPS, as_it_is, more)
    };
    begins(
        &of(9700.0, 4700.0, 0.0, Some(10_000.0)),
        "found: every rank: its control group uses 9700 of the 10000 MB that it may have, 9400 of them in the training processes",
    );
    begins(&of(9700.0, 2000.0, 0.0, Some(10_000.0)), "silent");
    // Mapped files that are read again and again.
    begins(&of(9700.0, 4700.0, 5e7, Some(10_000.0)), "silent");
    begins(&of(9000.0, 4450.0, 0.0, Some(10_000.0)), "silent");
    begins(&of(9700.0, 4700.0, 0.0, None), "silent");
    // Ranks in a control group each.
    begins(&of(9700.0, 9400.0, 0.0, Some(10_000.0)), "found: every rank: its control group uses 9700 of");
    begins(&of(9700.0, 6000.0, 0.0, Some(10_000.0)), "silent");
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
