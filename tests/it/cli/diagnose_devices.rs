//! What `probe diagnose` makes of programs that train on a GPU: the host's time is hidden while the GPU has work.

use probe_proto::tables::{gpu_metrics, memory, steps, sync_points};
use probe_store::Store;

use super::diagnosed_runs::{STEPS, begins, nothing, of_rule, record, said, says};
use crate::cli::support::Home;
use crate::sql::data::Agent;

/// A loop that is in `other` for 15 ms of each step, whose GPU may have nothing to do for so long (s). One of three steps is timed.
fn reads_its_loss(idle: f64) -> impl Fn(&mut steps::Row) {
    move |row| {
        row.other_time = 0.015;
        row.gpu_idle_max = (row.step % 3 == 0).then_some(idle);
    }
}

#[test]
fn work_of_the_host_costs_what_the_gpu_does_not_hide() {
    let of = |idle| of_rule("work-between-parts", STEPS, reads_its_loss(idle), nothing);
    // The loop waits there for the GPU, which is busy all the time.
    let hidden = "silent: the GPU has work in at least 97 % of a step, which hides what the host does meanwhile";
    begins(&of(0.001), hidden);
    begins(&of(0.03), "found");
    // Without times of a GPU nothing is known of it.
    begins(&of_rule("work-between-parts", STEPS, |row| row.other_time = 0.015, nothing), "found");
    // A stall makes its step longer, whatever the GPU had to do in the others.
    let stalls = |row: &mut steps::Row| {
        reads_its_loss(0.001)(row);
        if row.step % 10 == 9 {
            row.other_time = 0.3;
            row.gpu_idle_max = None;
        }
    };
    begins(
        &of_rule("periodic-stall", STEPS, stalls, nothing),
        "found: every rank: every 10 steps, the loop's own code (other) takes 285.0 ms longer",
    );
}

#[test]
fn the_page_says_how_much_of_a_step_the_gpu_has_work() {
    let home = Home::empty();
    record(&home, "gpt@1", STEPS, reads_its_loss(0.001), nothing);
    let page = home.stdout(["gpt", "diagnose"]);
    let line = "each GPU has work in at least 97 % of a step, which hides what the host does meanwhile";
    assert!(page.contains("verdict: nothing stands out\n") && page.contains(line), "{page}");
    let json: serde_json::Value = serde_json::from_str(&home.stdout(["gpt", "diagnose", "--json"])).unwrap();
    assert_eq!(json["gpu_busy_percent"].as_f64().unwrap().round(), 97.0);
    let suspected = home.stdout(["gpt", "diagnose", "--suspect", "gpu"]);
    let why = "it has work in at least 97 % of a step, so that less time of the host saves 3 % at most";
    assert!(suspected.contains("is it gpu? yes\n") && suspected.contains(why), "{suspected}");
    let home = Home::empty();
    record(&home, "gpt@1", STEPS, |_| (), nothing);
    let page = home.stdout(["gpt", "diagnose", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&page).unwrap();
    assert!(json["gpu_busy_percent"].is_null(), "{page}");
}

/// A GPU of which the driver says that kernels ran in so many percent of each second, and a loop that waits for it so often and so long
/// (s) in a part of the watched steps.
fn used(percent: f64, part: &'static str, count: i32, waited: f64) -> impl Fn(&mut Agent, &Store) {
    move |agent, store| {
        let row = |second| gpu_metrics::Row { utilization: Some(percent), ..agent.gpu(second) };
        let rows: Vec<_> = (0..STEPS).map(row).collect();
        agent.send(store, rows);
        let rows = sync_rows(agent, part, count, waited);
        agent.send(store, rows);
    }
}

#[test]
fn a_host_that_launches_too_slowly_is_told_from_one_that_does_something_else() {
    let idle = |row: &mut steps::Row| row.gpu_idle_max = Some(0.012);
    let of = |percent: f64| of_rule("host-bound", STEPS, idle, used(percent, "optimizer", 1, 0.0001));
    begins(
        &of(20.0),
        "found: every rank: no kernel ran in 80 % of the time, and only 12 % of a step is outside of forward",
    );
    begins(&of(90.0), "silent");
    // It is outside of forward, backward and optimizer, which other rules are about.
    let elsewhere = |row: &mut steps::Row| (row.other_time, row.gpu_idle_max) = (0.08, Some(0.08));
    begins(&of_rule("host-bound", STEPS, elsewhere, used(20.0, "optimizer", 1, 0.0001)), "silent");
    // Somebody else's kernels may not run either: the process's own stream always had some.
    begins(
        &of_rule("host-bound", STEPS, |row| row.gpu_idle_max = Some(0.0), used(20.0, "optimizer", 1, 0.0001)),
        "silent",
    );
    // It reads values of tensors within its modules, and waits for each.
    let home = Home::empty();
    record(&home, "gpt@1", STEPS, idle, used(20.0, "forward", 24, 0.01));
    let all = said(&home, ["gpt", "diagnose", "--json", "--rule", "host-bound,waits-for-device"]);
    says(&all, "host-bound", "silent");
    says(
        &all,
        "waits-for-device",
        "found: every rank waits for the GPU 24 times in each step at model.py:7 (item, in forward)",
    );
}

/// Reads of values on a GPU, at one line.
fn sync_rows(agent: &mut Agent, part: &str, count: i32, waited: f64) -> Vec<sync_points::Row> {
    let [part, file, device] = [part, "model.py", "cuda:0"].map(|text| agent.strings.id(text));
    let read = agent.sync_point();
    let row = |step| sync_points::Row {
        step,
        count,
        waited,
        device,
        part: Some(part),
        file: Some(file),
        line: Some(7),
        ..read
    };
    [10, 74].map(row).to_vec()
}

#[test]
fn some_reads_of_a_gpu_are_no_finding() {
    let few = |agent: &mut Agent, store: &Store| {
        let rows = sync_rows(agent, "other", 3, 0.01);
        agent.send(store, rows);
    };
    begins(&of_rule("waits-for-device", STEPS, |_| (), few), "silent");
}

#[test]
fn memory_that_goes_back_to_the_driver_in_each_step_is_told() {
    let of = |each: i64| {
        let more = move |agent: &mut Agent, store: &Store| {
            let row = |step| memory::Row {
                device_allocs: Some(40 + each * step),
                device_frees: Some(each * step),
                ..agent.memory(step, "cuda:0")
            };
            let rows: Vec<_> = (0..STEPS).map(row).collect();
            agent.send(store, rows);
        };
        of_rule("device-memory-churn", STEPS, |_| (), more)
    };
    begins(
        &of(5),
        "found: every rank: torch's allocator gives GPU memory back and asks the driver for it again 5 times a step",
    );
    begins(&of(0), "silent");
    begins(&of_rule("device-memory-churn", STEPS, |_| (), nothing), "open");
}
