//! The background thread against a collector that does what each test says.

#![allow(clippy::unwrap_used, unreachable_pub)]

mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use probe_agent_native::address::CollectorAddress;
use probe_agent_native::uplink::buffer::CAPACITY;
use probe_agent_native::uplink::commands::CommandKind;
use probe_agent_native::uplink::link::UplinkPhase;
use probe_agent_native::uplink::settings::{Identity, Settings};
use probe_proto::v1::agent_frame::Frame as Up;
use probe_proto::v1::collector_frame::Frame as Down;
use probe_proto::v1::{self, eval_reply::Reply};
use support::{Collector, DEADLINE, Rows, settings, start, start_at, until};

fn status(frame: Up) -> Option<v1::Status> {
    if let Up::Status(status) = frame { Some(status) } else { None }
}

fn ended(phase: &UplinkPhase) -> bool {
    matches!(phase, UplinkPhase::Ended)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_connection_gets_exactly_what_was_not_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let rows = Rows::default();
    let mut collector = Collector::listen(&socket);
    let link = start(&socket, &rows, CAPACITY);
    let (mut connection, hello) = collector.welcomed(0).await;
    assert_eq!((hello.protocol, hello.instance.as_str(), hello.rank), (probe_proto::PROTOCOL, "test", None));
    let steps_table = hello.tables.iter().position(|t| t.name == "python.steps").unwrap() as u32;
    let mut sent = Vec::new();
    for part in 0..4 {
        rows.put(part * 10..part * 10 + 10);
        let batch = connection.batch().await;
        assert_eq!((batch.table, batch.seq, batch.recorded), (steps_table, part as u64 + 1, part as u64 * 10 + 10));
        sent.push(connection.steps(&batch));
    }
    connection.say(Down::Ack(v1::Ack { seq: 2 })).await;
    // The answer to a message that was sent after the Ack: the agent has seen the Ack too.
    connection.say(Down::EvalGo(v1::EvalGo { id: 9 })).await;
    let commands = std::sync::Arc::clone(&link);
    let go = tokio::task::spawn_blocking(move || commands.commands.next(DEADLINE)).await.unwrap().unwrap();
    assert_eq!((go.kind, go.id), (CommandKind::Go, 9));
    drop(connection);
    drop(collector);

    // The same instance comes back; this collector has stored up to 2, and has the strings from the start.
    let mut collector = Collector::listen(&socket);
    let (mut connection, hello) = collector.welcomed(2).await;
    assert_eq!(hello.instance, "test");
    for (seq, steps) in [(3, &sent[2]), (4, &sent[3])] {
        let batch = connection.batch().await;
        assert_eq!((batch.seq, &connection.steps(&batch)), (seq, steps));
    }
    rows.put(40..50);
    let batch = connection.batch().await;
    assert_eq!((batch.seq, connection.steps(&batch)), (5, (40..50).collect()));
    link.request_stop(Duration::ZERO, "exit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_reads_nothing_costs_a_bounded_buffer_and_everything_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let rows = Rows::default();
    let capacity = 64 << 10;
    let mut collector = Collector::listen(&socket);
    let link = start(&socket, &rows, capacity);
    let (mut connection, _) = collector.welcomed(0).await;
    // Far more than the buffer and the socket take, drained while the collector does not read.
    let total = 400_000;
    for part in 0..40 {
        rows.put(part * total / 40..(part + 1) * total / 40);
        until("the drain", || rows.is_drained()).await;
    }
    let stored = std::cell::Cell::new(0);
    let mut dropped = 0;
    rows.put(total..total + 1);
    until("the drain", || rows.is_drained()).await;
    while stored.get() + dropped < total as u64 + 1 {
        match connection.frame().await.expect("the agent gave up") {
            Up::Batch(batch) => {
                stored.set(stored.get() + u64::from(batch.rows));
                connection.say(Down::Ack(v1::Ack { seq: batch.seq })).await;
            }
            Up::Status(status) => {
                dropped = status.drops.iter().map(|d| d.rows).sum();
                assert!(status.drops.iter().all(|d| d.reason == "send buffer full" && d.table == "python.steps"));
            }
            _ => {}
        }
    }
    assert_eq!(stored.get() + dropped, total as u64 + 1, "counted twice");
    assert!(dropped > 0 && stored.get() > 0, "{stored:?} stored, {dropped} dropped");
    link.request_stop(Duration::ZERO, "exit");
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_sends_the_last_rows_and_then_says_bye() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let rows = Rows::default();
    let mut collector = Collector::listen(&socket);
    let link = start(&socket, &rows, CAPACITY);
    let (mut connection, _) = collector.welcomed(0).await;
    rows.put_at_end(7..9);
    link.request_stop(DEADLINE, "exit");
    let batch = connection.batch().await;
    assert_eq!(connection.steps(&batch), [7, 8]);
    // Not before it is acknowledged.
    assert!(!ended(&link.phase()));
    connection.say(Down::Ack(v1::Ack { seq: batch.seq })).await;
    let bye = connection.find(|frame| if let Up::Bye(bye) = frame { Some(bye) } else { None }).await;
    assert_eq!((bye.reason.as_str(), bye.last_seq), ("exit", batch.seq));
    assert!(connection.frame().await.is_none(), "frames after Bye");
    drop(connection);
    assert!(tokio::task::spawn_blocking(move || link.wait_for(DEADLINE, ended)).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_keeps_its_deadline_when_the_collector_does_not_answer() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let rows = Rows::default();
    let mut collector = Collector::listen(&socket);
    let link = start(&socket, &rows, CAPACITY);
    let (_connection, _) = collector.welcomed(0).await;
    rows.put(0..10);
    let begun = Instant::now();
    link.request_stop(Duration::from_millis(300), "exit");
    assert!(tokio::task::spawn_blocking(move || link.wait_for(DEADLINE, ended)).await.unwrap());
    assert!(begun.elapsed() >= Duration::from_millis(300), "gave up on rows that could still be acknowledged");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_stop_does_not_wait() {
    let directory = tempfile::tempdir().unwrap();
    let rows = Rows::default();
    let link = start(&directory.path().join("none"), &rows, CAPACITY);
    rows.put(0..10);
    until("the drain", || rows.is_drained()).await;
    let begun = Instant::now();
    link.request_stop(DEADLINE, "exit");
    assert!(tokio::task::spawn_blocking(move || link.wait_for(DEADLINE, ended)).await.unwrap());
    assert!(begun.elapsed() < DEADLINE / 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_tried_again_after_its_delay() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let mut collector = Collector::listen(&socket);
    let link = start(&socket, &Rows::default(), CAPACITY);
    let first = collector.connection().await;
    let begun = Instant::now();
    let refused = v1::Refused { message: "too much".into(), retry: true, retry_after_ms: 700 };
    first.say(Down::Refused(refused)).await;
    drop(first);
    collector.welcomed(0).await;
    assert!(begun.elapsed() >= Duration::from_millis(700));
    link.request_stop(Duration::ZERO, "exit");
}

fn token_in(directory: &Path) -> PathBuf {
    let token = directory.join("token");
    std::fs::write(&token, "a-token-of-thirty-two-letters-ab\n").unwrap();
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    token
}

/// The program may change its environment while the background thread would read it.
#[tokio::test(flavor = "multi_thread")]
async fn the_pin_is_the_one_of_the_settings_and_not_of_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    assert!(std::env::var_os("PROBE_TLS_PIN").is_none());
    let (_collector, address) = Collector::listen_tcp().await;
    let settings =
        Settings { token_file: Some(token_in(directory.path())), tls_pin: Some("no pin".into()), ..settings() };
    let link = start_at(CollectorAddress::Tcp(address), &Rows::default(), CAPACITY, settings);
    let is_named =
        |phase: &UplinkPhase| matches!(phase, UplinkPhase::Connecting(Some(why)) if why.contains("PROBE_TLS_PIN"));
    assert!(link.wait_for(DEADLINE, is_named), "{:?}", link.phase());
    link.request_stop(Duration::ZERO, "exit");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_carries_the_token() {
    let directory = tempfile::tempdir().unwrap();
    let token = token_in(directory.path());
    let (mut collector, address) = Collector::listen_tcp().await;
    let link = start_at(
        CollectorAddress::Tcp(address),
        &Rows::default(),
        CAPACITY,
        Settings { token_file: Some(token), ..settings() },
    );
    let mut connection = collector.connection().await;
    assert_eq!(connection.authorization.as_deref(), Some("Bearer a-token-of-thirty-two-letters-ab"));
    // A snippet over TCP never reaches Python: this process does not allow such snippets.
    assert!(matches!(connection.frame().await, Some(Up::Hello(hello)) if !hello.eval_over_tcp));
    connection.say(Down::Welcome(v1::Welcome { run: "gpt@1".into(), ..Default::default() })).await;
    connection.say(Down::EvalDecide(v1::EvalDecide { id: 3, code: "1".into(), ..Default::default() })).await;
    connection.say(Down::EvalArm(v1::EvalArm { id: 4, code: "1".into(), ..Default::default() })).await;
    for id in [3, 4] {
        let reply = connection.find(|frame| if let Up::Eval(reply) = frame { Some(reply) } else { None }).await;
        let Some(Reply::Done(done)) = reply.reply else { panic!("{reply:?}") };
        assert_eq!((reply.id, done.outcome()), (id, v1::Outcome::Refused));
        assert!(done.error.contains("PROBE_EVAL=tcp"), "{}", done.error);
    }
    assert!(link.commands.next(Duration::ZERO).is_none());
    link.request_stop(Duration::ZERO, "exit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snippet_that_somebody_sent_over_tcp_is_refused_on_a_socket_too() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let mut collector = Collector::listen(&socket);
    let link = start(&socket, &Rows::default(), CAPACITY);
    let (mut connection, _) = collector.welcomed(0).await;
    let decide = v1::EvalDecide { id: 3, code: "1".into(), over_tcp: true, ..Default::default() };
    connection.say(Down::EvalDecide(decide)).await;
    let reply = connection.find(|frame| if let Up::Eval(reply) = frame { Some(reply) } else { None }).await;
    assert!(matches!(reply.reply, Some(Reply::Done(done)) if done.outcome() == v1::Outcome::Refused));
    link.request_stop(Duration::ZERO, "exit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_learned_later_is_a_new_hello_before_later_rows() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let rows = Rows::default();
    let mut collector = Collector::listen(&socket);
    let link = start(&socket, &rows, CAPACITY);
    let (mut connection, _) = collector.welcomed(0).await;
    let identity = Identity { rank: Some(1), local_rank: Some(1), world_size: Some(2) };
    link.identify(identity);
    link.identify(identity);
    rows.put(0..3);
    let mut hellos = Vec::new();
    loop {
        match connection.frame().await.unwrap() {
            Up::Hello(hello) => hellos.push((hello.rank, hello.local_rank, hello.world_size)),
            Up::Batch(_) => break,
            _ => {}
        }
    }
    assert_eq!(hellos, [(Some(1), Some(1), Some(2))]);
    link.request_stop(Duration::ZERO, "exit");
}

#[tokio::test(flavor = "multi_thread")]
async fn snippets_go_to_python_and_their_output_comes_back_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let mut collector = Collector::listen(&socket);
    let link = start(&socket, &Rows::default(), CAPACITY);
    let (mut connection, _) = collector.welcomed(0).await;
    let decide = v1::EvalDecide {
        id: 3,
        code: "print(1)".into(),
        at: v1::At::Now as i32,
        timeout_s: 2.5,
        max_output: 100,
        scope: Some(v1::EvalScope {
            session: "mine".into(),
            end_session: true,
            frame: Some(2),
            asked_s: 9.0,
            ..Default::default()
        }),
        over_tcp: false,
    };
    connection.say(Down::EvalDecide(decide)).await;
    let python = std::sync::Arc::clone(&link);
    let command = tokio::task::spawn_blocking(move || python.commands.next(DEADLINE)).await.unwrap().unwrap();
    let snippet = command.snippet.unwrap();
    assert_eq!((command.kind, command.id, snippet.at.0), (CommandKind::Decide, 3, v1::At::Now));
    assert_eq!((snippet.code.as_str(), snippet.max_output, snippet.frame), ("print(1)", 100, Some(2)));
    // The time that it waited for Python is counted, so that Python can subtract it from the timeout.
    assert!(snippet.timeout_s == 2.5 && snippet.waited_s > 0.0 && snippet.asked_s == 9.0);
    assert_eq!((snippet.session.as_str(), snippet.end_session), ("mine", true));
    // A snippet that Python has not taken is withdrawn without Python.
    let arm = v1::EvalArm { id: 4, code: "print(2)".into(), timeout_s: 100.0, ..Default::default() };
    connection.say(Down::EvalArm(arm)).await;
    connection.say(Down::EvalCancel(v1::EvalCancel { id: 4, reason: "late".into() })).await;
    let reply = connection.find(|frame| if let Up::Eval(reply) = frame { Some(reply) } else { None }).await;
    let Some(Reply::Done(taken_back)) = reply.reply else { panic!("{reply:?}") };
    assert_eq!((reply.id, taken_back.outcome(), taken_back.error.as_str()), (4, v1::Outcome::Cancelled, "late"));
    let output =
        |text: &'static str| Reply::Output(v1::Output { stderr: false, data: Bytes::from_static(text.as_bytes()) });
    let done = Reply::Done(v1::Done { outcome: v1::Outcome::Ok as i32, step: 4, ..Default::default() });
    for reply in [output("1"), output("\n"), done.clone()] {
        assert!(link.commands.reply(command.connection, 3, reply));
        link.wake();
    }
    let mut printed = Vec::new();
    loop {
        let reply = connection.find(|frame| if let Up::Eval(reply) = frame { Some(reply) } else { None }).await;
        assert_eq!(reply.id, 3);
        match reply.reply.unwrap() {
            Reply::Output(output) => printed.extend_from_slice(&output.data),
            last => break assert_eq!(last, done),
        }
    }
    assert_eq!(printed, b"1\n");
    // The connection breaks: Python is told, and its further replies are dropped.
    drop(connection);
    drop(collector);
    let python = std::sync::Arc::clone(&link);
    let command = tokio::task::spawn_blocking(move || python.commands.next(DEADLINE)).await.unwrap().unwrap();
    assert_eq!(command.kind, CommandKind::Disconnected);
    assert!(!link.commands.reply(command.connection, 3, output("late")));
    link.request_stop(Duration::ZERO, "exit");
}

/// Both are in one test, because they read state of the whole process.
#[tokio::test(flavor = "multi_thread")]
async fn settings_are_reported_when_they_change_and_a_refused_version_stops_for_good() {
    use probe_agent_native::shared::ENABLED;
    use std::sync::atomic::Ordering;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let mut collector = Collector::listen(&socket);
    let link = start(&socket, &Rows::default(), CAPACITY);
    let (mut connection, _) = collector.welcomed(0).await;
    let first = connection.find(status).await;
    assert_eq!(first.config["detail"], "auto");
    let values = [("detail".to_owned(), "off".to_owned())].into();
    connection.say(Down::Configure(v1::Configure { values, ..v1::Configure::default() })).await;
    let changed = connection.find(|frame| status(frame).filter(|s| s.config["detail"] == "off")).await;
    assert!(changed.unix_ns > 0);
    let values = [("detail".to_owned(), "some".to_owned())].into();
    connection.say(Down::Configure(v1::Configure { values, ..v1::Configure::default() })).await;
    let problem = connection.find(|frame| status(frame).map(|s| s.problem).filter(|p| p.contains("refused:"))).await;
    assert!(problem.contains("detail cannot be 'some'"), "{problem}");

    ENABLED.store(true, Ordering::Relaxed);
    let refused = v1::Refused { message: "protocol 2 is needed".into(), ..Default::default() };
    connection.say(Down::Refused(refused)).await;
    let waiting = std::sync::Arc::clone(&link);
    let refused = move || waiting.wait_for(DEADLINE, |phase| matches!(phase, UplinkPhase::Refused(_)));
    assert!(tokio::task::spawn_blocking(refused).await.unwrap());
    assert!(!ENABLED.load(Ordering::Relaxed), "recording goes on for nobody");
}
