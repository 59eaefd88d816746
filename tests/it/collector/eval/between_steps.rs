//! Snippets between two steps: how ranks come together at one of them.

use std::collections::HashMap;

use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::eval_reply::Reply;
use probe_proto::v1::{self, At, EvalCall, Outcome};

use super::{arm, arrive, arrive_after, ask, call, cancelled, decide, done, go, hear, output, placed};
use crate::collector::support::{Bench, FakeAgent, hello_of_rank, soon};

async fn goes_on(agent: &mut FakeAgent) -> u64 {
    match agent.next().await {
        Frame::EvalNext(next) => next.id,
        other => panic!("not EvalNext: {other:?}"),
    }
}

async fn at_step(bench: &Bench, agent: &FakeAgent, rank: i32, step: i64, steps_per_second: f64) {
    agent.status(v1::Status { step, steps_per_second, ..Default::default() }).await;
    bench.until(&format!("SELECT step FROM probe.agents WHERE rank = {rank}"), &[&[&step.to_string()]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snippet_between_steps_runs_on_all_ranks_at_one_step() {
    let bench = Bench::start().await;
    let mut ranks = [bench.rank(0, 2).await, bench.rank(1, 2).await];
    at_step(&bench, &ranks[0], 0, 100, 0.0).await;
    at_step(&bench, &ranks[1], 1, 103, 0.0).await;
    let events = ask(&bench, call("trainer.train_step()", At::Auto)).await.unwrap();
    let said = decide(&mut ranks[0]).await;
    ranks[0].reply(said.id, placed(At::Step)).await;
    let mut id = 0;
    for (rank, agent) in ranks.iter_mut().enumerate() {
        let said = arm(agent).await;
        assert_eq!(said.step, 105, "two steps after the rank that is furthest");
        assert_eq!(said.mute, rank != 0);
        id = said.id;
    }
    ranks[0].reply(id, Reply::Armed(v1::Armed { step: 100 })).await;
    ranks[1].reply(id, Reply::Armed(v1::Armed { step: 103 })).await;
    arrive(&ranks[0], id, 105, 7).await;
    // No rank goes on before all ranks wait there: the next frame of rank 0 is another one.
    at_step(&bench, &ranks[0], 0, 105, 0.0).await;
    let mut control = bench.control().await;
    let values = [("detail".to_owned(), "off".to_owned())].into();
    let configured = tokio::spawn(async move { control.config(v1::ConfigCall { values }).await.map(drop) });
    for agent in &mut ranks {
        assert!(matches!(agent.next().await, Frame::Configure(_)));
    }
    arrive(&ranks[1], id, 105, 7).await;
    for agent in &mut ranks {
        assert_eq!(go(agent).await, id);
    }
    ranks[1].reply(id, output("muted")).await;
    ranks[1].reply(id, done(Outcome::Ok, "")).await;
    ranks[0].reply(id, output("loss 1.0\n")).await;
    ranks[0].reply(id, done(Outcome::Ok, "")).await;
    let heard = hear(events).await;
    let placement = heard.placement.unwrap();
    assert_eq!((placement.at(), placement.step, placement.ranks), (At::Step, 105, vec![0, 1]));
    assert_eq!(placement.why, "because");
    assert_eq!(heard.output, HashMap::from([(Some(0), "loss 1.0\n".to_owned())]));
    assert_eq!(heard.ranks_done, [Some(0)]);
    assert_eq!((heard.finished.outcome(), heard.finished.training_waited_s), (Outcome::Ok, 0.25));
    assert_eq!(bench.rows("SELECT placed, ranks, status FROM probe.evals").await, [["step", "0,1", "ok"]]);
    soon(configured).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fast_run_gets_a_later_step() {
    let bench = Bench::start().await;
    let mut ranks = [bench.rank(0, 2).await, bench.rank(1, 2).await];
    at_step(&bench, &ranks[0], 0, 100, 1000.0).await;
    at_step(&bench, &ranks[1], 1, 100, 1000.0).await;
    let events = ask(&bench, call("x", At::Step)).await.unwrap();
    assert!(arm(&mut ranks[0]).await.step >= 350, "a quarter of a second ahead at least");
    drop(events);
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_wait_at_different_boundaries_are_brought_to_the_same_one() {
    let bench = Bench::start().await;
    let mut ranks = [bench.rank(0, 2).await, bench.attached_rank(1, 2).await];
    at_step(&bench, &ranks[0], 0, 500, 0.0).await;
    at_step(&bench, &ranks[1], 1, 20, 0.0).await;
    let events = ask(&bench, EvalCall { all_ranks: true, ..call("x", At::Step) }).await.unwrap();
    let (zero, one) = (arm(&mut ranks[0]).await, arm(&mut ranks[1]).await);
    assert_eq!((zero.step, one.step), (0, 0), "each counts for itself, and how they go together is not known");
    let id = zero.id;
    arrive(&ranks[0], id, 502, 900).await;
    arrive(&ranks[1], id, 22, 898).await;
    assert_eq!(goes_on(&mut ranks[1]).await, id);
    arrive_after(1, &ranks[1], id, 23, 900).await;
    // Rank 0 may have been at collective 900 for some steps. After a step with collectives on both there is no doubt.
    for agent in &mut ranks {
        assert_eq!(goes_on(agent).await, id);
    }
    arrive_after(1, &ranks[0], id, 503, 902).await;
    arrive_after(2, &ranks[1], id, 24, 902).await;
    for agent in &mut ranks {
        assert_eq!(go(agent).await, id);
        agent.reply(id, done(Outcome::Ok, "")).await;
    }
    let heard = hear(events).await;
    assert_eq!(heard.finished.outcome(), Outcome::Ok);
    assert_eq!(heard.placement.unwrap().step, 503, "as the first rank counts");
    // From here on it is known that they are 479 steps apart.
    at_step(&bench, &ranks[0], 0, 600, 0.0).await;
    at_step(&bench, &ranks[1], 1, 121, 0.0).await;
    let events = ask(&bench, call("x", At::Step)).await.unwrap();
    assert_eq!((arm(&mut ranks[0]).await.step, arm(&mut ranks[1]).await.step), (602, 123));
    drop(events);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_waits_where_another_has_passed_goes_on() {
    let bench = Bench::start().await;
    let mut ranks = [bench.rank(0, 2).await, bench.attached_rank(1, 2).await];
    // At two steps a second the collector waits for two seconds and more before it tells a rank again to go on.
    at_step(&bench, &ranks[0], 0, 500, 2.0).await;
    at_step(&bench, &ranks[1], 1, 20, 2.0).await;
    let events = ask(&bench, call("x", At::Step)).await.unwrap();
    let id = arm(&mut ranks[0]).await.id;
    arm(&mut ranks[1]).await;
    // Rank 0 is in the collective of a step that rank 1 has not begun, and waits for it there.
    arrive(&ranks[1], id, 21, 900).await;
    for agent in &mut ranks {
        assert_eq!(goes_on(agent).await, id);
    }
    arrive_after(1, &ranks[1], id, 22, 902).await;
    // A late message about a boundary that the rank was told to leave does not count as its position.
    arrive(&ranks[0], id, 501, 902).await;
    arrive_after(1, &ranks[0], id, 502, 902).await;
    for agent in &mut ranks {
        assert_eq!(goes_on(agent).await, id);
    }
    arrive_after(2, &ranks[0], id, 503, 904).await;
    arrive_after(2, &ranks[1], id, 23, 904).await;
    for agent in &mut ranks {
        assert_eq!(go(agent).await, id);
        agent.reply(id, done(Outcome::Ok, "")).await;
    }
    let heard = hear(events).await;
    assert_eq!((heard.finished.outcome(), heard.placement.unwrap().step), (Outcome::Ok, 503));
}

#[tokio::test(flavor = "multi_thread")]
async fn attached_ranks_that_nothing_compares_run_nothing_between_steps() {
    let bench = Bench::start().await;
    let mut ranks = [bench.rank(0, 2).await, bench.attached_rank(1, 2).await];
    let events = ask(&bench, call("optimizer.param_groups[0]['lr'] = 0.1", At::Step)).await.unwrap();
    let id = arm(&mut ranks[0]).await.id;
    arm(&mut ranks[1]).await;
    for (rank, agent) in ranks.iter().enumerate() {
        let arrived = v1::Arrived { step: 5 + rank as i64, ..Default::default() };
        agent.reply(id, Reply::Arrived(arrived)).await;
    }
    for agent in &mut ranks {
        assert_eq!(cancelled(agent).await, id);
    }
    let heard = hear(events).await;
    assert_eq!(heard.finished.outcome(), Outcome::Refused);
    assert!(
        heard.finished.error.contains("nothing shows that the ranks wait at the same step"),
        "{}",
        heard.finished.error
    );
    assert!(heard.finished.hint.contains("--rank"), "{}", heard.finished.hint);
    assert!(heard.placement.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_agent_that_does_not_say_where_it_waits_runs_nothing_between_steps() {
    let bench = Bench::start().await;
    let older = v1::Hello { says_arrived: false, ..hello_of_rank(1, 2) };
    let _ranks = [bench.rank(0, 2).await, FakeAgent::connect(&bench.socket(), older).await.unwrap()];
    let heard = hear(ask(&bench, call("x", At::Step)).await.unwrap()).await;
    assert_eq!(heard.finished.outcome(), Outcome::Refused);
    assert!(heard.finished.error.contains("rank 1 (pid 101): its agent is older"), "{}", heard.finished.error);
    assert!(heard.finished.hint.contains("wheel"), "{}", heard.finished.hint);
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_never_stand_at_the_same_place_run_nothing() {
    let bench = Bench::start().await;
    let mut ranks = [bench.rank(0, 2).await, bench.rank(1, 2).await];
    let events = ask(&bench, call("x", At::Step)).await.unwrap();
    let id = arm(&mut ranks[0]).await.id;
    arm(&mut ranks[1]).await;
    let answers = tokio::spawn(async move {
        let mut round = 0;
        arrive(&ranks[0], id, 2, 900).await;
        loop {
            arrive_after(round, &ranks[1], id, 2 + i64::from(round), 1).await;
            match ranks[1].next().await {
                Frame::EvalNext(_) => round += 1,
                Frame::EvalCancel(_) => break round,
                other => panic!("neither EvalNext nor EvalCancel: {other:?}"),
            }
        }
    });
    let heard = hear(events).await;
    assert_eq!(heard.finished.outcome(), Outcome::Refused);
    assert!(
        heard.finished.error.contains("did not come to the same number of collectives"),
        "{}",
        heard.finished.error
    );
    assert!(heard.finished.hint.contains("--rank"), "{}", heard.finished.hint);
    assert!(heard.placement.is_none());
    assert!(soon(answers).await.unwrap() > 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_one_rank_cannot_run_it_no_rank_does() {
    let bench = Bench::start().await;
    let mut ranks = [bench.rank(0, 2).await, bench.rank(1, 2).await];
    let events = ask(&bench, call("x", At::Step)).await.unwrap();
    let id = arm(&mut ranks[0]).await.id;
    arm(&mut ranks[1]).await;
    ranks[0].reply(id, Reply::Armed(v1::Armed { step: 0 })).await;
    ranks[1].reply(id, done(Outcome::Error, "SyntaxError: invalid syntax")).await;
    assert_eq!(cancelled(&mut ranks[0]).await, id);
    let heard = hear(events).await;
    assert_eq!(heard.finished.outcome(), Outcome::Error);
    assert_eq!(heard.finished.error, "rank 1 (pid 101): SyntaxError: invalid syntax");
    assert!(heard.placement.is_none());
    assert_eq!(bench.rows("SELECT placed, ranks, status FROM probe.evals").await, [["", "", "error"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_process_runs_it_at_its_next_boundary() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let events = ask(&bench, call("x", At::Step)).await.unwrap();
    let said = arm(&mut agent).await;
    assert_eq!((said.step, said.mute), (-1, false));
    agent.reply(said.id, Reply::Armed(v1::Armed { step: 4 })).await;
    agent.reply(said.id, output("x")).await;
    agent.reply(said.id, done(Outcome::NoBoundary, "no step ended")).await;
    let heard = hear(events).await;
    assert_eq!(heard.finished.outcome(), Outcome::NoBoundary);
    assert!(heard.finished.hint.contains("--at now"));
    assert_eq!(heard.output, HashMap::from([(None, "x".to_owned())]));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_snippet_at_a_time_is_between_steps() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let first = ask(&bench, call("first", At::Step)).await.unwrap();
    let said = arm(&mut agent).await;
    let second = ask(&bench, call("second", At::Step)).await.unwrap();
    let third = ask(&bench, EvalCall { timeout_s: 0.05, ..call("third", At::Step) }).await.unwrap();
    let heard = hear(third).await;
    assert_eq!(heard.finished.outcome(), Outcome::Timeout);
    assert!(heard.finished.error.contains("another snippet"), "{}", heard.finished.error);
    agent.reply(said.id, done(Outcome::Ok, "")).await;
    assert_eq!(hear(first).await.finished.outcome(), Outcome::Ok);
    let said = arm(&mut agent).await;
    assert_eq!(said.code, "second");
    agent.reply(said.id, done(Outcome::Ok, "")).await;
    assert_eq!(hear(second).await.finished.outcome(), Outcome::Ok);
}
