//! Snippets: where they are placed, how ranks come to the same boundary, and every way in which they can end.

use std::collections::HashMap;

use bytes::Bytes;
use probe_common::error::{Error, ErrorKind};
use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::eval_event::Event;
use probe_proto::v1::eval_reply::Reply;
use probe_proto::v1::{self, At, Done, EvalCall, EvalEvent, Finished, Outcome};
use tonic::{Status, Streaming};

use crate::collector::support::{Bench, FakeAgent, soon};

mod between_steps;

/// The deadline of a snippet (s), later than a test waits for anything: none ends by it.
const DEADLINE_S: f64 = 100.0;

fn call(code: &str, at: At) -> EvalCall {
    EvalCall { code: code.into(), at: at as i32, timeout_s: DEADLINE_S, ..Default::default() }
}

async fn ask(bench: &Bench, call: EvalCall) -> Result<Streaming<EvalEvent>, Status> {
    Ok(soon(bench.control().await.eval(call)).await?.into_inner())
}

/// All events up to the last one, with the output joined by rank.
struct Heard {
    placement: Option<v1::Placement>,
    output: HashMap<Option<i32>, String>,
    ranks_done: Vec<Option<i32>>,
    /// How often an agent was named because it had said nothing for five seconds, as may happen on a busy machine.
    notices: usize,
    finished: Finished,
}

async fn hear(mut events: Streaming<EvalEvent>) -> Heard {
    let (mut placement, mut output, mut ranks_done) = (None, HashMap::<_, String>::new(), Vec::new());
    let mut notices = 0;
    loop {
        match soon(events.message()).await.unwrap().expect("Finished is the last event").event.unwrap() {
            Event::Placement(said) => assert!(placement.replace(said).is_none(), "placed once"),
            Event::Output(said) => {
                output.entry(said.rank).or_default().push_str(std::str::from_utf8(&said.output.unwrap().data).unwrap());
            }
            Event::RankDone(done) => ranks_done.push(done.rank),
            Event::Notice(notice) => {
                let is_silence =
                    ["has said nothing for ", "has held the GIL for "].iter().any(|of| notice.text.contains(of));
                assert!(is_silence, "{notice:?}");
                notices += 1;
            }
            Event::Finished(finished) => {
                assert!(soon(events.message()).await.unwrap().is_none());
                return Heard { placement, output, ranks_done, notices, finished };
            }
        }
    }
}

fn output(text: &str) -> Reply {
    Reply::Output(v1::Output { stderr: false, data: Bytes::copy_from_slice(text.as_bytes()) })
}

fn placed(at: At) -> Reply {
    Reply::Placed(v1::Placed { at: at as i32, why: "because".into() })
}

fn done(outcome: Outcome, error: &str) -> Reply {
    Reply::Done(Done {
        outcome: outcome as i32,
        error: error.into(),
        seconds: 0.5,
        training_waited_s: 0.25,
        step: 9,
        ..Default::default()
    })
}

async fn decide(agent: &mut FakeAgent) -> v1::EvalDecide {
    match agent.next().await {
        Frame::EvalDecide(decide) => decide,
        other => panic!("not EvalDecide: {other:?}"),
    }
}

async fn arm(agent: &mut FakeAgent) -> v1::EvalArm {
    match agent.next().await {
        Frame::EvalArm(arm) => arm,
        other => panic!("not EvalArm: {other:?}"),
    }
}

/// The message that the training thread waits after `step` steps by its own count, where torch's number of the default group is
/// `sequence`, and it has been told to go on so many times.
async fn arrive_after(nexts: u32, agent: &FakeAgent, id: u64, step: i64, sequence: u64) {
    let groups = vec![v1::GroupPosition { name: "0".into(), sequence }];
    agent.reply(id, Reply::Arrived(v1::Arrived { step, groups, nexts })).await;
}

async fn arrive(agent: &FakeAgent, id: u64, step: i64, sequence: u64) {
    arrive_after(0, agent, id, step, sequence).await;
}

async fn go(agent: &mut FakeAgent) -> u64 {
    match agent.next().await {
        Frame::EvalGo(go) => go.id,
        other => panic!("not EvalGo: {other:?}"),
    }
}

async fn cancelled(agent: &mut FakeAgent) -> u64 {
    match agent.next().await {
        Frame::EvalCancel(cancel) => cancel.id,
        other => panic!("not EvalCancel: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snippet_that_only_reads_runs_beside_training_on_the_first_rank() {
    let bench = Bench::start().await;
    let mut one = bench.rank(1, 2).await;
    let mut zero = bench.rank(0, 2).await;
    let events = ask(&bench, call("print(1)", At::Auto)).await.unwrap();
    let said = decide(&mut zero).await;
    assert_eq!((said.code.as_str(), said.at(), said.max_output), ("print(1)", At::Auto, 16 << 20));
    assert_eq!(said.scope, Some(v1::EvalScope { asked_s: DEADLINE_S, ..Default::default() }));
    assert!((DEADLINE_S - 5.0..=DEADLINE_S).contains(&said.timeout_s), "{}", said.timeout_s);
    bench.until("SELECT status FROM probe.evals", &[&["running"]]).await;
    zero.reply(said.id, placed(At::Now)).await;
    zero.reply(said.id, output("1")).await;
    one.reply(said.id, output("not mine")).await;
    zero.reply(said.id, output("\n")).await;
    zero.reply(said.id, done(Outcome::Ok, "")).await;
    let heard = hear(events).await;
    let placement = heard.placement.unwrap();
    assert_eq!((placement.at(), placement.step, placement.ranks), (At::Now, -1, vec![0]));
    assert_eq!(heard.output, HashMap::from([(Some(0), "1\n".to_owned())]));
    assert_eq!(heard.finished.outcome(), Outcome::Ok);
    let row = bench.rows("SELECT id, asked_by, code, at, placed, step, ranks, status, duration, training_waited, output_bytes, error FROM probe.evals").await;
    let uid = format!("uid:{}", nix::unistd::geteuid());
    assert_eq!(row, [["1", &uid, "print(1)", "auto", "now", "9", "0", "ok", "0.5", "0.25", "2", ""]]);
    // The other rank has heard nothing of it: the next thing that it hears is this.
    let events = ask(&bench, EvalCall { rank: Some(1), ..call("print(2)", At::Now) }).await.unwrap();
    let said = decide(&mut one).await;
    assert_eq!((said.code.as_str(), said.at()), ("print(2)", At::Now));
    one.reply(said.id, placed(At::Now)).await;
    one.reply(said.id, done(Outcome::Error, "Traceback (most recent call last):\nNameError: x")).await;
    let heard = hear(events).await;
    assert_eq!(heard.finished.outcome(), Outcome::Error);
    assert!(heard.finished.error.starts_with("Traceback"), "{}", heard.finished.error);
    assert_eq!(bench.rows("SELECT status, error FROM probe.evals WHERE id = 2").await, [["error", "NameError: x"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_does_not_answer_is_not_waited_for_longer_than_asked() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let events = ask(&bench, EvalCall { timeout_s: 0.5, ..call("x", At::Auto) }).await.unwrap();
    let id = decide(&mut agent).await.id;
    let heard = hear(events).await;
    assert_eq!(heard.finished.outcome(), Outcome::Timeout);
    assert!(heard.finished.error.contains("no answer from process 7"), "{}", heard.finished.error);
    assert_eq!(cancelled(&mut agent).await, id);
    assert_eq!(bench.rows("SELECT status FROM probe.evals").await, [["timeout"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asked_and_goes_cancels_it() {
    let bench = Bench::start().await;
    let mut ranks = [bench.rank(0, 2).await, bench.rank(1, 2).await];
    let events = ask(&bench, call("x", At::Step)).await.unwrap();
    let id = arm(&mut ranks[0]).await.id;
    arm(&mut ranks[1]).await;
    drop(events);
    for agent in &mut ranks {
        assert_eq!(cancelled(agent).await, id);
    }
    bench.until("SELECT status FROM probe.evals", &[&["cancelled"]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_goes_while_it_runs_ends_it_and_releases_the_others() {
    let bench = Bench::start().await;
    let [mut zero, mut one] = [bench.rank(0, 2).await, bench.rank(1, 2).await];
    let events = ask(&bench, call("x", At::Step)).await.unwrap();
    let id = arm(&mut zero).await.id;
    arm(&mut one).await;
    for agent in [&zero, &one] {
        arrive(agent, id, 2, 1).await;
    }
    go(&mut zero).await;
    go(&mut one).await;
    drop(one);
    assert_eq!(cancelled(&mut zero).await, id);
    let heard = hear(events).await;
    assert_eq!(heard.finished.outcome(), Outcome::Error);
    assert!(heard.finished.error.contains("rank 1 (pid 101) is gone"), "{}", heard.finished.error);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_past_the_limit_ends_it() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let events = ask(&bench, EvalCall { max_output: 10, ..call("x", At::Now) }).await.unwrap();
    let said = decide(&mut agent).await;
    assert_eq!(said.max_output, 10);
    agent.reply(said.id, placed(At::Now)).await;
    agent.reply(said.id, output("0123456789abc")).await;
    assert_eq!(cancelled(&mut agent).await, said.id);
    let heard = hear(events).await;
    assert_eq!(heard.output[&None], "0123456789");
    assert_eq!(heard.finished.outcome(), Outcome::OutputLimit);
}

#[tokio::test(flavor = "multi_thread")]
async fn much_output_arrives_whole_and_in_order() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let events = ask(&bench, call("x", At::Now)).await.unwrap();
    let id = decide(&mut agent).await.id;
    agent.reply(id, placed(At::Now)).await;
    let line = |number: usize| format!("{number:07}\n");
    let heard = tokio::spawn(hear(events));
    let piece: String = (0..100_000).map(line).collect();
    for _ in 0..4 {
        agent.reply(id, output(&piece)).await;
    }
    agent.reply(id, done(Outcome::Ok, "")).await;
    let heard = heard.await.unwrap();
    assert!(heard.output[&None] == piece.repeat(4), "{} bytes", heard.output[&None].len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_is_not_connected_is_waited_for() {
    let bench = Bench::start().await;
    let mut zero = bench.rank(0, 2).await;
    let events = ask(&bench, call("x", At::Step)).await.unwrap();
    let mut one = bench.rank(1, 2).await;
    let id = arm(&mut zero).await.id;
    assert_eq!(arm(&mut one).await.id, id);
    drop(events);
    cancelled(&mut zero).await;
    cancelled(&mut one).await;
    one.bye().await;
    // The snippet before hands over its turn at once. If the machine stalls, that can be after the deadline of this one, and then
    // it is asked again.
    let mut tries = 0..10;
    let heard = loop {
        let heard = hear(ask(&bench, EvalCall { timeout_s: 0.05, ..call("x", At::Step) }).await.unwrap()).await;
        if heard.finished.outcome() != Outcome::Timeout || tries.next().is_none() {
            break heard;
        }
    };
    assert_eq!(heard.finished.outcome(), Outcome::Refused);
    assert!(heard.finished.error.contains("rank 1 is not connected"), "{}", heard.finished.error);
    assert!(heard.finished.hint.contains("--rank N"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_cannot_be_is_an_error_and_a_row() {
    let bench = Bench::start().await;
    let kind = |status: Status| Error::from(status).kind();
    let error = Error::from(ask(&bench, call("x", At::Auto)).await.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("no training process"), "{error}");
    let agent = bench.agent("a").await;
    let cases = [
        call(" \n", At::Auto),
        call(&"x".repeat((1 << 20) + 1), At::Auto),
        EvalCall { at: 77, ..call("x", At::Auto) },
        EvalCall { timeout_s: -1.0, ..call("x", At::Auto) },
        EvalCall { timeout_s: f64::NAN, ..call("x", At::Auto) },
        EvalCall { timeout_s: 1e300, ..call("x", At::Auto) },
        EvalCall { max_output: u64::MAX, ..call("x", At::Auto) },
        EvalCall { rank: Some(3), ..call("x", At::Auto) },
        EvalCall { session: "a b".into(), ..call("x", At::Auto) },
        EvalCall { session: "x".repeat(65), ..call("x", At::Auto) },
        EvalCall { end_session: true, ..call("x", At::Auto) },
    ];
    let count = cases.len();
    for case in cases {
        assert_eq!(kind(ask(&bench, case).await.unwrap_err()), ErrorKind::Usage);
    }
    let refused = bench.rows("SELECT COUNT(*) FROM probe.evals WHERE status = 'refused' AND error IS NOT NULL").await;
    assert_eq!(refused, [[(count + 1).to_string()]]);
    drop(agent);
}

#[tokio::test]
async fn the_session_is_told_to_the_process_wherever_it_runs() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let session = |at: At, code: &str| EvalCall { session: "mine".into(), end_session: true, ..call(code, at) };
    // With what was asked for in all, whatever is left of it when the process hears.
    let scope =
        Some(v1::EvalScope { session: "mine".into(), end_session: true, asked_s: DEADLINE_S, ..Default::default() });
    // Ending a session needs no code.
    let events = ask(&bench, session(At::Auto, "")).await.unwrap();
    let said = decide(&mut agent).await;
    assert_eq!((said.scope, said.code.as_str()), (scope.clone(), ""));
    agent.reply(said.id, placed(At::Now)).await;
    agent.reply(said.id, done(Outcome::Ok, "")).await;
    assert_eq!(hear(events).await.finished.outcome(), Outcome::Ok);
    let _events = ask(&bench, session(At::Step, "x = 1")).await.unwrap();
    assert_eq!(arm(&mut agent).await.scope, scope);
}

#[tokio::test]
async fn what_was_asked_is_written_down_with_who_asked_it() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let asked = EvalCall { session: "mine".into(), ..call("print(1)", At::Now) };
    let events = ask(&bench, asked).await.unwrap();
    let said = decide(&mut agent).await;
    agent.reply(said.id, placed(At::Now)).await;
    agent.reply(said.id, done(Outcome::Ok, "")).await;
    hear(events).await;
    let me = format!("pid:{}", std::process::id());
    let row = bench.rows("SELECT peer, session, hash FROM probe.evals").await;
    assert_eq!(row, [[me.as_str(), "mine", "d287bb7f9d15abdc5b6e98536263815744b6ef21c8f3c839fc434ca70d8efe99"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_interrupted_is_a_running_row_until_it_ends() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let runs_on = |seconds: f64, still_running: bool| {
        let (outcome, error) = (Outcome::Timeout as i32, "it took longer than 1 s".to_owned());
        Reply::Done(Done { outcome, error, seconds, still_running, ..Default::default() })
    };
    let events = ask(&bench, call("first", At::Step)).await.unwrap();
    let id = arm(&mut agent).await.id;
    agent.reply(id, Reply::Armed(v1::Armed { step: 0 })).await;
    agent.reply(id, runs_on(2.0, true)).await;
    let heard = hear(events).await;
    assert_eq!(heard.finished.outcome(), Outcome::Timeout);
    assert!(heard.finished.error.contains("it took longer than 1 s; it is still running"), "{}", heard.finished.error);
    assert!(heard.finished.hint.contains("stack"), "{}", heard.finished.hint);
    let row = "SELECT status, duration FROM probe.evals WHERE code = 'first'";
    assert_eq!(bench.rows(row).await, [["running", ""]]);
    // Training waits for this snippet, so no other one is between two steps.
    let second = hear(ask(&bench, EvalCall { timeout_s: 0.05, ..call("second", At::Step) }).await.unwrap()).await;
    assert!(second.finished.error.contains("another snippet"), "{}", second.finished.error);
    agent.reply(id, runs_on(21.5, false)).await;
    bench.until(row, &[&["timeout", "21.5"]]).await;
    let error = bench.rows("SELECT error FROM probe.evals WHERE code = 'first'").await;
    assert!(error[0][0].starts_with("it took longer than 1 s"), "{error:?}");
    // One that goes with its process.
    let mut events = ask(&bench, call("third", At::Now)).await.unwrap();
    let id = decide(&mut agent).await.id;
    agent.reply(id, placed(At::Now)).await;
    let Some(Event::Placement(_)) = soon(events.message()).await.unwrap().unwrap().event else { panic!("not placed") };
    drop(events);
    assert_eq!(cancelled(&mut agent).await, id);
    bench.until("SELECT status FROM probe.evals WHERE code = 'third'", &[&["running"]]).await;
    drop(agent);
    bench.until("SELECT status FROM probe.evals WHERE code = 'third'", &[&["cancelled"]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_is_named_while_one_waits() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let mut events = ask(&bench, call("x", At::Auto)).await.unwrap();
    let id = decide(&mut agent).await.id;
    let Some(Event::Notice(notice)) = soon(events.message()).await.unwrap().unwrap().event else { panic!("no notice") };
    assert!(notice.text.starts_with("process 7 has "), "{notice:?}");
    assert!(notice.hint.starts_with("probe 7 stack "), "{notice:?}");
    agent.reply(id, placed(At::Now)).await;
    agent.reply(id, done(Outcome::Ok, "")).await;
    // It is said once.
    let heard = hear(events).await;
    assert_eq!((heard.finished.outcome(), heard.notices), (Outcome::Ok, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn completing_a_name_is_no_row() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let lookup = |complete: &str, code: &str| EvalCall { complete: complete.into(), ..call(code, At::Auto) };
    let events = ask(&bench, lookup("model.la", "")).await.unwrap();
    let said = decide(&mut agent).await;
    assert_eq!((said.code.as_str(), said.scope.unwrap().complete.as_str()), ("", "model.la"));
    agent.reply(said.id, placed(At::Now)).await;
    agent.reply(said.id, output("layers\n")).await;
    agent.reply(said.id, done(Outcome::Ok, "")).await;
    let heard = hear(events).await;
    assert_eq!((heard.finished.outcome(), heard.output[&None].as_str()), (Outcome::Ok, "layers\n"));
    assert_eq!(bench.rows("SELECT COUNT(*) FROM probe.evals").await, [["0"]]);
    // Code in its name does not run, and is written down.
    assert_eq!(Error::from(ask(&bench, lookup("model.la", "x")).await.unwrap_err()).kind(), ErrorKind::Usage);
    assert_eq!(Error::from(ask(&bench, lookup("f('x')", "")).await.unwrap_err()).kind(), ErrorKind::Usage);
    assert_eq!(bench.rows("SELECT code, status FROM probe.evals").await, [["x", "refused"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_frame_and_the_agents_own_advice_are_passed_on() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let events = ask(&bench, EvalCall { frame: Some(9), ..call("x", At::Now) }).await.unwrap();
    let said = decide(&mut agent).await;
    assert_eq!(said.scope.unwrap().frame, Some(9));
    let (error, hint) = ("error: no frame 9".to_owned(), "there are 0 and 1".to_owned());
    agent.reply(said.id, Reply::Done(Done { outcome: Outcome::Error as i32, error, hint, ..Default::default() })).await;
    let heard = hear(events).await;
    assert_eq!(heard.finished.outcome(), Outcome::Error);
    assert_eq!(
        (heard.finished.error.as_str(), heard.finished.hint.as_str()),
        ("error: no frame 9", "there are 0 and 1")
    );
    let events = ask(&bench, EvalCall { frame: Some(0), ..call("x", At::Step) }).await.unwrap();
    assert_eq!(arm(&mut agent).await.scope.unwrap().frame, Some(0));
    drop(events);
}
