//! `probe diagnose` of runs whose hosts are containers, in which processes have the same ids.

use std::sync::Arc;

use probe_store::{ProcessIdentity, Store};
use serde_json::Value;

use super::diagnose_loaders::batches;
use super::diagnosed_runs::{STEPS, steps_of_agent};
use crate::cli::support::Home;
use crate::sql::data::Agent;

/// The diagnosis of two ranks on a host each, with these process ids. The loader of rank 1 does not keep up, and rank 0 waits for it.
fn diagnosis(pids: [i32; 2]) -> Value {
    let (home, store) = (Home::empty(), Store::new(1 << 30));
    for (rank, (host, pid)) in (0..).zip([("one", pids[0]), ("two", pids[1])]) {
        let mut agent = Agent::new(rank);
        agent.identity = Arc::new(ProcessIdentity { host: host.into(), pid, ..(*agent.identity).clone() });
        steps_of_agent(&mut agent, &store, STEPS, |row| match rank {
            0 => row.comm_time += 0.01,
            _ => row.data_time += 0.01,
        });
        let (ready, wait) = if rank == 0 { (8, 0.0) } else { (1, 0.01) };
        batches(&mut agent, &store, |_| ready, |_| wait);
    }
    store.write(&home.record("gpt@1", |_| ()), &[]).unwrap();
    let mut answer: Value = serde_json::from_str(&home.stdout(["gpt", "diagnose", "--json"])).unwrap();
    for finding in answer["findings"].as_array_mut().unwrap() {
        // It has the ids.
        finding.as_object_mut().unwrap().remove("sql");
    }
    answer
}

#[test]
fn processes_with_the_same_id_on_two_hosts_are_told_apart() {
    let (same, different) = (diagnosis([7, 7]), diagnosis([7, 8]));
    let found: Vec<&str> =
        different["findings"].as_array().unwrap().iter().filter_map(|of| of["rule"].as_str()).collect();
    assert!(found.contains(&"loader-starved"), "{found:?}");
    assert_eq!(same, different);
}
