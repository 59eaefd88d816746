//! Which rank the others waited for in a collective, of runs that have ended: by the rows that their agents recorded.

use probe_proto::table::Time;
use probe_proto::tables::nccl_trace;
use probe_store::Store;

use crate::cli::support::Home;
use crate::sql::data::{self, Agent, START};

/// A run of two ranks that has ended. `issued` has the operations of a rank: number, name, element type, bytes and status.
fn recorded(issued: impl Fn(i32) -> Vec<(i64, &'static str, &'static str, i64, &'static str)>) -> Home {
    let (home, store) = (Home::empty(), Store::new(1 << 20));
    for rank in 0..2 {
        let mut agent = Agent::new(rank);
        let rows: Vec<_> = issued(rank)
            .into_iter()
            .map(|(seq, name, element_type, bytes, status)| {
                let dtype = Some(agent.strings.id(element_type));
                let status = agent.strings.id(status);
                // Long before the processes were heard of for the last time.
                let ts = Time(START + (seq - 20) * 1_000_000_000);
                nccl_trace::Row { bytes, dtype, status, ts, ..agent.collective(seq, seq, name) }
            })
            .collect();
        agent.send(&store, rows);
    }
    store.write(&home.record("gpt@1", |_| ()), &data::system()).unwrap();
    home
}

#[track_caller]
fn said(home: &Home, wanted: &str) {
    let hang = home.stdout(["gpt", "hang"]);
    assert!(hang.starts_with(&format!("gpt@1: {wanted}\n")), "{hang}");
    let crash = home.stdout(["gpt", "crash"]);
    assert!(crash.contains(&format!("\nIn collectives: {wanted}.\n")), "{crash}");
}

#[test]
fn a_rank_that_has_not_entered_what_another_waits_in_is_named() {
    let home = recorded(|rank| {
        let done = (0..6).map(|seq| (seq, "all_reduce", "float32", 64, "completed"));
        let waits = (rank == 0).then_some((6, "all_reduce", "float32", 128, "pending"));
        done.chain(waits).collect()
    });
    said(&home, "rank 1 has not entered all_reduce (number 6 of group default_pg, float32, 128 B); rank 0 has");
    let rows = home.stdout(["gpt", "hang", "--format", "csv"]);
    assert!(rows.contains("0,entered") && rows.contains("1,missing"), "{rows}");
}

#[test]
fn operations_that_differ_are_named_also_where_one_has_completed() {
    let of = |second: (&'static str, &'static str, i64, &'static str)| {
        let home = recorded(move |rank| {
            let (name, element_type, bytes, status) =
                if rank == 1 { second } else { ("all_reduce", "float32", 64, "failed") };
            vec![(0, "all_reduce", "float32", 64, "completed"), (1, name, element_type, bytes, status)]
        });
        home.stdout(["gpt", "hang"])
    };
    for (second, named) in [
        (("broadcast", "float32", 64, "completed"), "broadcast (float32, 64 B)"),
        (("all_reduce", "float32", 32, "pending"), "all_reduce (float32, 32 B)"),
        (("all_reduce", "int32", 64, "completed"), "all_reduce (int32, 64 B)"),
    ] {
        let wanted = format!(
            "gpt@1: ranks are in different operations as number 1 of group default_pg: rank 0 in all_reduce (float32, 64 B), \
             rank 1 in {named}\n"
        );
        let hang = of(second);
        assert!(hang.starts_with(&wanted), "{hang}");
    }
    let alike = of(("all_reduce", "float32", 64, "failed"));
    assert!(alike.contains("was entered by ranks 0, 1, all ranks of the group, and had not finished"), "{alike}");
}

#[test]
fn ranks_that_end_between_two_operations_accuse_nobody() {
    let home =
        recorded(|rank| (0..5 + i64::from(rank)).map(|seq| (seq, "all_reduce", "float32", 64, "completed")).collect());
    let hang = home.stdout(["gpt", "hang"]);
    assert!(hang.starts_with("gpt@1: no rank waited in a collective when its recording ended\n"), "{hang}");
    assert!(!home.stdout(["gpt", "crash"]).contains("In collectives"));
}

#[test]
fn operations_whose_end_is_not_seen_count_where_a_rank_has_not_entered_them_or_they_differ() {
    // Both ranks were heard of long after their operations.
    let of = |second: Option<i64>| {
        let home = recorded(move |rank| {
            let bytes = if rank == 0 { Some(64) } else { second };
            let last = bytes.map(|bytes| (1, "all_reduce", "float32", bytes, "issued"));
            std::iter::once((0, "all_reduce", "float32", 64, "issued")).chain(last).collect()
        });
        home.stdout(["gpt", "hang"])
    };
    let (alike, other, missing) = (of(Some(64)), of(Some(32)), of(None));
    assert!(alike.starts_with("gpt@1: no rank waited in a collective when its recording ended\n"), "{alike}");
    assert!(other.starts_with("gpt@1: ranks are in different operations as number 1 of group default_pg"), "{other}");
    assert!(missing.starts_with("gpt@1: rank 1 has not entered all_reduce (number 1 of group default_pg"), "{missing}");
}

#[test]
fn groups_with_messages_are_not_compared() {
    // Rank 0 has sent more messages than rank 1 has received.
    let home = recorded(|rank| {
        let messages = if rank == 0 { 4 } else { 2 };
        let done = (0..messages).map(|seq| (seq, "send", "float32", 64, "completed"));
        done.chain([(messages, "all_reduce", "float32", 64, "pending")]).collect()
    });
    let hang = home.stdout(["gpt", "hang"]);
    assert!(hang.starts_with("gpt@1: no rank waited in a collective"), "{hang}");
}
