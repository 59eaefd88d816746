//! `probe import` of Flight Recorder dumps, and the page of `probe hang` about them.

use std::io::Write;

use probe_store::Store;
use serde_json::{Value, json};

use crate::cli::support::Home;

/// Dumps that torch 2.15 wrote on three ranks of gloo, of which the last one did not come to the fourth all_reduce.
const GLOO: [&[u8]; 3] = [
    include_bytes!("flight_recorder/dump_rank_0"),
    include_bytes!("flight_recorder/dump_rank_1"),
    include_bytes!("flight_recorder/dump_rank_2"),
];

const CREATED: i64 = 1_767_225_600_000_000_000;

fn said(output: std::process::Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A dump in JSON as NCCL's recorder writes it: groups 0 of all ranks and 7 of all but the first; `issued` are the collectives
/// of group 7 that are not finished, and `before` is the last that is.
fn nccl(rank: i64, issued: &[i64], before: i64) -> Value {
    let entry = |seq: &i64| {
        json!({
            "record_id": seq, "pg_id": 3, "process_group": ["7", "EXPERTS"], "collective_seq_id": seq, "p2p_seq_id": 0,
            "profiling_name": "nccl:all_to_all", "time_created_ns": CREATED + 1000 * seq + rank, "input_sizes": [[8, 2]],
            "input_dtypes": ["BFloat16"], "output_sizes": [[8, 2]], "output_dtypes": ["BFloat16"], "state": "started",
            "time_discovered_started_ns": CREATED, "time_discovered_completed_ns": 0, "retired": false, "is_p2p": false,
        })
    };
    let last = issued.last().copied().unwrap_or(before);
    json!({
        "version": "2.10",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
            "7": {"name": "7", "desc": "EXPERTS", "ranks": "[1, 2, 3]"},
        },
        "pg_status": {
            "0": {"last_enqueued_collective": "5", "last_started_collective": "5", "last_completed_collective": "5"},
            "3": {
                "last_enqueued_collective": last.to_string(), "last_started_collective": "-1",
                "last_completed_collective": before.to_string(),
            },
        },
        "entries": issued.iter().map(entry).collect::<Vec<_>>(),
    })
}

#[test]
fn a_directory_of_dumps_of_torch_says_who_has_not_entered() {
    let home = Home::empty();
    let dumps = home.path().join("dumps");
    std::fs::create_dir(&dumps).unwrap();
    for (rank, dump) in GLOO.iter().enumerate() {
        std::fs::write(dumps.join(format!("nccl_trace_rank_{rank}")), dump).unwrap();
    }
    std::fs::write(dumps.join("train.log"), "step 3").unwrap();
    let output = home.probe(["import", "--name", "stuck", dumps.to_str().unwrap()]);
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    said(output);
    assert!(told.contains("3 traces with 13 events became run stuck@1: 13 collective operations"), "{told}");
    assert!(told.contains("left out: train.log has no known format"), "{told}");
    let page = said(home.probe(["stuck", "hang"]));
    insta::assert_snapshot!(page, @r"
    stuck@1: rank 2 has not entered all_reduce (number 4 of group 0 (default_pg), Float [7]); ranks 0, 1 have

    Groups in which a rank is missing or does something else, the oldest operation first:

    group           operation   number  entered  not entered
    0 (default_pg)  all_reduce  4       0, 1     2
    ");
    let rows = said(home.probe(["stuck", "hang", "--format", "csv"]));
    let who: Vec<&str> = rows.lines().skip(1).map(|row| row.rsplit_once("Z,").unwrap().1).collect();
    assert_eq!(who, ["0,entered", "1,entered", "2,missing"]);
    let groups = said(home.probe([
        "stuck",
        "query",
        "SELECT rank, group_name, last_seq, last_enqueued, last_completed, pending FROM python.process_groups ORDER BY rank, group_name",
        "--format",
        "csv",
    ]));
    let groups: Vec<&str> = groups.lines().skip(1).collect();
    assert_eq!(groups, ["0,0,4,5,2,1", "1,0,4,5,3,1", "1,1,1,1,1,0", "2,0,3,3,3,0", "2,1,1,1,1,0"]);
    let captures = said(home.probe([
        "stuck",
        "query",
        "SELECT capture, rank, rank_source, tool, events, left_out, clock, versions FROM python.captures ORDER BY rank LIMIT 1",
        "--format",
        "ndjson",
    ]));
    assert_eq!(
        serde_json::from_str::<Value>(&captures).unwrap(),
        json!({
            "capture": "nccl_trace_rank_0", "rank": 0, "rank_source": "name", "tool": "flight-recorder", "events": 4,
            "left_out": 0, "clock": "unix", "versions": "{\"dump\":\"2.10\"}",
        })
    );
}

#[test]
fn a_rank_without_operations_is_judged_by_its_status_and_one_without_a_dump_is_not() {
    let home = Home::empty();
    let dumps = home.path().join("dumps");
    std::fs::create_dir(&dumps).unwrap();
    // Rank 2 has issued 8 and finished it. Its dump has no operation left, so that only the order in which groups were made says
    // which group the status is of. Rank 3 left no dump.
    for (rank, issued, before) in [(0, &[][..], 0), (1, &[8, 9], 7), (2, &[], 8)] {
        let mut dump = nccl(rank, issued, before);
        if rank == 0 {
            dump["pg_config"].as_object_mut().unwrap().remove("7");
            dump["pg_status"].as_object_mut().unwrap().remove("3");
        }
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(dump.to_string().as_bytes()).unwrap();
        std::fs::write(dumps.join(format!("fr{rank}.json.gz")), packed.finish().unwrap()).unwrap();
    }
    said(home.probe(["import", "--name", "stuck", dumps.to_str().unwrap()]));
    let page = said(home.probe(["stuck", "hang"]));
    let first = page.lines().next().unwrap();
    assert_eq!(
        first,
        "stuck@1: rank 2 has not entered all_to_all (number 9 of group 7 (EXPERTS), BFloat16 [8, 2]); rank 1 has; of rank 3 there is no dump"
    );
    let numbers = said(home.probe([
        "stuck",
        "query",
        "SELECT rank, group_name, number, group_size, ranks, last_seq, last_enqueued FROM python.process_groups WHERE rank = 2 ORDER BY group_name",
        "--format",
        "ndjson",
    ]));
    let numbers: Vec<Value> = numbers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(numbers[1]["number"], 3);
    assert_eq!(
        (&numbers[1]["ranks"], &numbers[1]["last_seq"], &numbers[1]["last_enqueued"]),
        (&json!("[1,2,3]"), &Value::Null, &json!(8))
    );
}

#[test]
fn a_dump_that_is_cut_is_read_in_part_and_its_rank_is_not_accused() {
    let home = Home::empty();
    let mut paths = Vec::new();
    for (rank, dump) in GLOO.iter().enumerate() {
        // The process of rank 2 was killed while it wrote its dump.
        let written = if rank == 2 { dump.len() * 3 / 4 } else { dump.len() };
        paths.push(home.path().join(format!("nccl_trace_rank_{rank}")));
        std::fs::write(&paths[rank], &dump[..written]).unwrap();
    }
    paths.push(home.path().join("nccl_trace_rank_3"));
    std::fs::write(&paths[3], "").unwrap();
    let [first, second, third, fourth] = [0, 1, 2, 3].map(|rank: usize| paths[rank].to_str().unwrap());
    let output = home.probe(["import", "--name", "stuck", first, second, third, fourth]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("nccl_trace_rank_3: it is empty") && told.contains("3 traces with"), "{told}");
    assert!(told.contains("nccl_trace_rank_2 was read in part: at byte "), "{told}");
    let page = said(home.probe(["stuck", "hang"]));
    assert_eq!(
        page.lines().next().unwrap(),
        "stuck@1: all_reduce (number 4 of group 0 (default_pg), Float [7]) was entered by ranks 0, 1 and had not finished; of \
         rank 2 there is only a part of the dump, and any of them may be missing"
    );
    assert!(page.contains("in an operation that all ranks with a whole dump had entered: 0"), "{page}");
    let rows = said(home.probe(["stuck", "hang", "--format", "csv"]));
    assert!(rows.lines().last().unwrap().ends_with(",2,part of a dump"), "{rows}");
}

#[test]
fn a_pickle_with_code_is_refused_and_leaves_nothing() {
    let home = Home::empty();
    let file = home.path().join("pg_config_0");
    let mut dump = b"\x80\x02}X\x09\x00\x00\x00pg_configcposix\nsystem\nX\x04\x00\x00\x00true\x85Rs.".to_vec();
    std::fs::write(&file, &dump).unwrap();
    let output = home.probe(["import", "--name", "evil", file.to_str().unwrap()]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("at byte 17 of its pickle: GLOBAL imports or calls code that the file names; only plain data is read (posix.system)"),
        "{told}"
    );
    assert!(!home.directories().runs().join("evil@1").exists());
    // A pickle that does not look like a dump is imported as one only where the user asks for that.
    dump = b"\x80\x02]q\x00.".to_vec();
    std::fs::write(&file, &dump).unwrap();
    let told = home.probe(["import", file.to_str().unwrap()]).stderr;
    assert!(String::from_utf8_lossy(&told).contains("its format is not known"));
    let told = home.probe(["import", "--format", "flight-recorder", file.to_str().unwrap()]).stderr;
    assert!(String::from_utf8_lossy(&told).contains("as a Flight Recorder dump"));
}

#[test]
fn a_run_without_dumps_is_judged_by_its_rows_and_one_without_ranks_is_not() {
    let home = Home::recorded();
    assert_eq!(home.stdout(["gpt", "hang"]), "gpt@1: no rank waited in a collective when its recording ended\n");
    Store::new(1 << 20).write(&home.record("alone@1", |_| ()), &[]).unwrap();
    let output = home.probe(["alone", "hang"]);
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("this run has ended"), "{said}");
}
