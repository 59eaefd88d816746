//! How accounts are folded and worded. That they are told of real processes is tested in tests/e2e.

use super::account::{CrashAccount, CrashedProcess, LastCollective, LastInterval, MemoryReadings, RaisedException};
use super::kept::KeptByModules;
use super::page;

const START: i64 = 1_767_225_600_000_000_000;

fn account(rank: i64) -> CrashedProcess {
    CrashedProcess {
        host: "node-1".into(),
        pid: 100 + rank,
        rank: Some(rank),
        state: "lost".into(),
        ended: Some(START + rank),
        signal: Some("SIGTERM".into()),
        last_seen: START,
        steps: 30,
        last_step: Some(START - 12_500_000_000),
        module: Some(LastInterval { module: "layers.3.mlp".into(), stage: "backward".into(), step: 29, inside: false }),
        collective: Some(LastCollective {
            operation_type: "all_reduce".into(),
            group: "0".into(),
            seq: 120,
            bytes: 1_071_144,
            status: "pending".into(),
            step: 30,
        }),
        ..CrashedProcess::default()
    }
}

fn failed(rank: i64) -> CrashedProcess {
    let raised = RaisedException {
        ts: START - 1_000_000_000,
        exception: "ValueError".into(),
        message: "a batch of 7".into(),
        traceback:
            "Traceback (most recent call last):\n  File \"train.py\", line 3, in load\nValueError: a batch of 7\n"
                .into(),
        uncaught: true,
        thread: None,
        main: true,
        module: None,
        stage: None,
        location: Some("load (train.py:3)".into()),
        memory: None,
    };
    CrashedProcess {
        state: "ended".into(),
        ended: Some(START - 1),
        signal: None,
        exit_status: Some(1),
        exceptions: vec![raised],
        memory: vec![MemoryReadings {
            device: "cpu".into(),
            first: Some(812.4),
            before: None,
            last: Some(1412.0),
            peak: Some(1500.0),
        }],
        metrics: vec![("loss".into(), Some(2.312_345), 29), ("lr".into(), Some(0.001), 29), ("x".into(), None, 28)],
        kept: Some(KeptByModules {
            step: 64,
            most: vec![("layers.3.mlp".into(), 412.5), ("head".into(), 96.0)],
            since: Some(0),
            grew: vec![("head".into(), 31.0)],
        }),
        ..account(rank)
    }
}

#[test]
fn a_signal_after_an_exception_does_not_hide_it() {
    let both = CrashedProcess { signal: Some("SIGALRM".into()), ..failed(5) };
    let crash = CrashAccount { accounts: vec![both], ..CrashAccount::default() };
    let headline = "gpt: rank 5 was ended by SIGALRM, with an uncaught ValueError, after 30 steps\n";
    assert!(page(&crash, "gpt", None).starts_with(headline), "{}", page(&crash, "gpt", None));
}

#[test]
fn ranks_that_ended_alike_are_one_and_the_first_is_the_headline() {
    let accounts = vec![failed(5), account(0), account(1), account(2), account(7)];
    let crash = CrashAccount { accounts, ..CrashAccount::default() };
    let page = page(&crash, "gpt", None);
    assert!(
        page.starts_with(
            "gpt: rank 5 ended with exit status 1 by ValueError after 30 steps; 4 more ended badly after that\n"
        ),
        "{page}"
    );
    assert!(
        page.contains("\nranks 0-2, 7, all alike; the figures are of the first: process 100 on node-1\n"),
        "{page}"
    );
    assert_eq!(page.matches("all_reduce 120 of group 0, 1071.1 kB, in step 30: has not finished").count(), 2, "{page}");
    assert!(page.contains("\n  memory       cpu: 812 MB at first, 1.41 GB at last, at most 1.50 GB\n"), "{page}");
    assert!(page.contains("\n  metrics      loss 2.312 (step 29), lr 0.001 (step 29), x NULL (step 28)\n"), "{page}");
    assert!(page.contains("\n  kept by      layers.3.mlp 412 MB, head 96 MB (step 64)\n"), "{page}");
    assert!(page.contains("\n  grew         head +31 MB (step 64, since step 0)\n"), "{page}");
    assert!(page.contains("\n    File \"train.py\", line 3, in load\n"), "{page}");
    assert!(page.contains("\n  steps        30; the last was over 12.5 s before\n"), "{page}");
}

#[test]
fn a_thread_that_an_exception_ended_before_is_named() {
    let mut account = failed(5);
    let shown = account.exceptions[0].clone();
    let feed = RaisedException {
        ts: START - 61_000_000_000,
        message: "corrupt shard 3".into(),
        main: false,
        thread: Some("Thread-1 (feed)".into()),
        location: Some("feed (train.py:9)".into()),
        ..shown
    };
    account.exceptions.push(feed);
    let page = page(&CrashAccount { accounts: vec![account], ..CrashAccount::default() }, "gpt", None);
    let line = "\n  thread       ValueError: corrupt shard 3 ended thread Thread-1 (feed) 61.0 s before, at feed (train.py:9)\n";
    assert!(page.contains(line), "{page}");
    assert!(page.contains("\n  exception    ValueError: "), "{page}");
}

#[test]
fn other_steps_or_another_end_are_another_account() {
    let mut later = account(1);
    later.steps = 31;
    let unknown = CrashedProcess { signal: None, ..account(2) };
    let crash = CrashAccount { accounts: vec![account(0), later, unknown], ..CrashAccount::default() };
    let page = page(&crash, "gpt", None);
    assert!(!page.contains("the command"), "{page}");
    assert!(page.contains("\nrank 0: ") && page.contains("\nrank 1: ") && page.contains("\nrank 2: "), "{page}");
    assert!(page.contains("not known how, without a goodbye"), "{page}");
}

#[test]
fn lines_fit_and_lose_no_word() {
    let crash = CrashAccount { accounts: vec![failed(5)], ..CrashAccount::default() };
    let whole = page(&crash, "gpt", None);
    for width in [40, 80, 120] {
        let wrapped = page(&crash, "gpt", Some(width));
        assert!(wrapped.lines().all(|line| line.chars().count() <= width), "{wrapped}");
        assert!(wrapped.split_whitespace().eq(whole.split_whitespace()), "{wrapped}");
    }
}

#[test]
fn a_command_that_ended_well_all_the_same_is_named() {
    let crash =
        |status| CrashAccount { accounts: vec![failed(5)], command_status: Some(status), ..CrashAccount::default() };
    let page = |status| page(&crash(status), "gpt", None);
    let headline = "gpt: rank 5 ended with exit status 1 by ValueError after 30 steps";
    assert!(page(0).starts_with(&format!("{headline}; the command went on and ended with status 0\n")), "{}", page(0));
    assert!(page(1).starts_with(&format!("{headline}\n")), "{}", page(1));
}

#[test]
fn where_nothing_crashed_that_is_said() {
    let text = |well, live| page(&CrashAccount { well, live, ..CrashAccount::default() }, "gpt", None);
    assert_eq!(text(0, 0), "gpt: no process has connected, so none crashed\n");
    assert_eq!(text(2, 2), "gpt: nothing crashed; 2 processes are live\n");
    assert_eq!(text(1, 0), "gpt: nothing crashed; 1 process ended well\n");
    assert_eq!(text(3, 1), "gpt: nothing crashed; 1 process is live, and 2 ended well\n");
}
