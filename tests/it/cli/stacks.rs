//! Stacks as people and programs get them, of eight ranks of which one is elsewhere. Tests in tests/e2e read real
//! processes.

use probe_proto::v1::{Collective, HangAnswer, RankState};
use probe_proto::v1::{NativeThreads, ProcessStacks, StackFrame, StackMethod, StacksAnswer, StacksCall, ThreadStack};

use crate::cli::live::Live;
use crate::cli::support::check;

const PACKAGES: &str = "/opt/venv/lib/python3.12/site-packages/";

fn frame(function: &str, file: &str, line: u32, source: &str) -> StackFrame {
    let user_code = !file.starts_with(PACKAGES) && !file.starts_with("/usr/lib/python3.12/");
    let (function, file, source) = (function.to_owned(), file.to_owned(), source.to_owned());
    StackFrame { function, file, line: Some(line), user_code, source }
}

fn rank(rank: i32) -> ProcessStacks {
    let odd = rank == 5;
    let frames = if odd {
        vec![
            frame("tokenize", "/home/me/data.py", 31, "ids = slow(text)"),
            frame("<module>", "/home/me/train.py", 90, ""),
        ]
    } else {
        vec![
            frame("all_reduce", &format!("{PACKAGES}torch/distributed/distributed_c10d.py"), 2843, "work.wait()"),
            frame("train", "/home/me/train.py", 71, "dist.all_reduce(grad)"),
            frame("<module>", "/home/me/train.py", 88, ""),
        ]
    };
    let main = ThreadStack {
        name: "MainThread".into(),
        os_thread: Some(100 + rank as u32),
        main: true,
        gil: odd,
        running: odd,
        waits_for: if odd { String::new() } else { "collective all_reduce".into() },
        moving: odd,
        samples: 1,
        frames,
    };
    let pool = |number: u32| ThreadStack {
        name: format!("ThreadPoolExecutor-0_{number}"),
        os_thread: Some(200 + number),
        waits_for: "queue get".into(),
        samples: 1,
        frames: vec![frame("_worker", "/usr/lib/python3.12/concurrent/futures/thread.py", 90, "")],
        ..ThreadStack::default()
    };
    ProcessStacks {
        host: "node-1".into(),
        pid: 100 + rank as u32,
        rank: Some(rank),
        method: StackMethod::Memory.into(),
        python: "3.12.1".into(),
        threads: if rank == 0 { vec![main, pool(0), pool(1)] } else { vec![main] },
        native: vec![NativeThreads { name: "pt_nccl_watchdg".into(), count: 2, running: u32::from(rank == 0) }],
        samples: 1,
        ..ProcessStacks::default()
    }
}

/// Ranks 0 to 6, and one that could not be read.
pub(crate) fn answer(call: &StacksCall) -> StacksAnswer {
    let mut processes: Vec<ProcessStacks> = (0..7).map(rank).collect();
    processes.push(ProcessStacks {
        rank: Some(7),
        pid: 107,
        problem: "it runs on node-2, and this collector on node-1, and the agent in the process does not say either: no answer".into(),
        hint: "a collector on that node reads its memory".into(),
        ..ProcessStacks::default()
    });
    processes.retain(|process| call.rank.is_none() || call.rank == process.rank);
    if call.duration_s > 0.0 {
        for (process, threads) in processes.iter_mut().zip([30, 10, 20, 20, 20, 20, 20]) {
            (process.samples, process.missed) = (threads, 2);
            process.threads.iter_mut().for_each(|thread| thread.samples = threads);
        }
    }
    StacksAnswer { capture: 3, unix_ns: crate::sql::data::START, processes, ..StacksAnswer::default() }
}

/// Rank 1 of two is missing.
pub(crate) fn hang() -> HangAnswer {
    let rank = |rank: i32, operation: &str, at: StackFrame, waits_for: &str| RankState {
        host: "node-1".into(),
        pid: 100 + rank as u32,
        rank: Some(rank),
        step: 30,
        step_ago_s: Some(14.25),
        step_s: Some(0.05),
        record_ago_s: Some(14.0),
        operation: operation.into(),
        frame: Some(at),
        waits_for: waits_for.into(),
        ..RankState::default()
    };
    HangAnswer {
        verdict: "rank 1 has not entered all_reduce (number 120 of group 0, 256 B): rank 1 is in load (/home/me/data.py:31), waiting: read; rank 0 has waited in it for 14.1 s".into(),
        why: "not entered".into(),
        ranks: vec![
            rank(0, "all_reduce 120 of 0", frame("train", "/home/me/train.py", 62, ""), "collective all_reduce"),
            rank(1, "", frame("load", "/home/me/data.py", 31, ""), "read"),
        ],
        collective: Some(Collective {
            group: "0".into(),
            size: 2,
            seq: 120,
            operation_type: "all_reduce".into(),
            bytes: 256,
            waited_s: 14.1,
            entered: vec![0],
            missing: vec![1],
        }),
        capture: 3,
        unix_ns: crate::sql::data::START,
    }
}

#[test]
fn verdicts() {
    let live = Live::start();
    check!(live.home, "hang", live.home.probe(["gpt", "hang"]));
    check!(live.home, "hang_csv", live.home.probe(["gpt", "hang", "--format", "csv"]));
}

#[test]
fn pages_and_rows() {
    let live = Live::start();
    let run = |words: &[&str]| {
        let mut command = live.home.command(words.iter().copied());
        command.env("TZ", "UTC").output().unwrap()
    };
    check!(live.home, "stack", run(&["gpt", "stack"]));
    check!(live.home, "stack_of_one_csv", run(&["gpt", "stack", "--rank", "5", "--format", "csv"]));
    check!(live.home, "stack_of_none", run(&["gpt", "stack", "--rank", "7"]));
    check!(live.home, "stack_sampled", run(&["gpt", "stack", "--duration", "10s"]));
    check!(live.home, "stack_watch_json", run(&["gpt", "stack", "--watch", "--format", "json"]));
}
