//! The end of a run, and the files that it leaves.

use std::time::Duration;

use probe_collector::Collector;
use probe_proto::v1::{self, agent_frame::Frame};
use probe_query::QueryEngine;
use probe_store::Store;
use probe_store::runs::{RunInfo, RunState, list_runs_in, resolve_in};
use tonic::Code;

use crate::collector::support::{Bench, PATIENCE, options, query, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_has_ended_answers_from_its_directory() {
    let bench = Bench::start().await;
    let directory = bench.directories.runs().join("gpt@1");
    let info = RunInfo::read(&directory).unwrap();
    assert_eq!((info.state, info.command.as_str(), info.ended), (RunState::Live, "python train.py", None));
    assert_eq!(list_runs_in(&bench.directories).unwrap()[0].info.state, RunState::Live);

    let mut agent = bench.rank(1, 2).await;
    agent.send_steps(1, 0, 20).await;
    agent
        .status(v1::Status {
            drops: vec![v1::Drop { table: "python.steps".into(), reason: "ring full".into(), rows: 3 }],
            ..Default::default()
        })
        .await;
    agent.acknowledged(1).await;
    bench.until("SELECT rows_dropped FROM probe.agents", &[&["3"]]).await;
    agent.bye().await;
    bench.collector.stop(Some(3)).await.unwrap();

    let info = RunInfo::read(&directory).unwrap();
    assert_eq!((info.state, info.exit_status, info.agents), (RunState::Ended, Some(3), 1));
    assert!(info.ended.unwrap() >= info.started);
    assert_eq!((info.ranks.into_iter().collect::<Vec<_>>(), info.torch_versions.len()), (vec![1], 1));
    assert_eq!(resolve_in(&bench.directories, "gpt").unwrap(), directory);
    let engine = QueryEngine::new(Store::open(&directory).unwrap(), Vec::new()).unwrap();
    assert_eq!(
        query(&engine, "SELECT run, rank, COUNT(*) FROM python.steps GROUP BY 1, 2").await,
        [["gpt@1", "1", "20"]]
    );
    assert_eq!(query(&engine, "SELECT state, rows_stored FROM probe.agents").await, [["ended", "20"]]);
    assert_eq!(query(&engine, "SELECT reason, rows FROM probe.drops").await, [["ring full", "3"]]);
    assert!(query(&engine, "SELECT * FROM probe.evals").await.is_empty());

    let next = Collector::start_in(&bench.directories, options("gpt")).await.unwrap();
    assert_eq!(next.run(), "gpt@2");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_waits_for_what_live_agents_still_send() {
    let bench = Bench::start().await;
    let directory = bench.directories.runs().join("gpt@1");
    let mut agent = bench.agent("a").await;
    agent.send_steps(1, 0, 10).await;
    agent.acknowledged(1).await;
    let stopping = tokio::spawn(bench.collector.stop(None));
    agent.send_steps(2, 10, 10).await;
    agent.bye().await;
    soon(stopping).await.unwrap().unwrap();
    let engine = QueryEngine::new(Store::open(&directory).unwrap(), Vec::new()).unwrap();
    assert_eq!(query(&engine, "SELECT COUNT(*) FROM python.steps").await, [["20"]]);
    assert_eq!(query(&engine, "SELECT state FROM probe.agents").await, [["ended"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_say_goodbye_is_told_and_counts_as_lost() {
    let bench = Bench::start().await;
    let directory = bench.directories.runs().join("gpt@1");
    let mut agent = bench.agent("a").await;
    let stopping = tokio::spawn(bench.collector.stop(None));
    let status = agent.end().await;
    assert_eq!(status.code(), Code::Unavailable);
    soon(stopping).await.unwrap().unwrap();
    let engine = QueryEngine::new(Store::open(&directory).unwrap(), Vec::new()).unwrap();
    assert_eq!(query(&engine, "SELECT state FROM probe.agents").await, [["lost"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_gone_without_a_word_leaves_a_lost_run_and_a_free_name() {
    let bench = Bench::start().await;
    let Bench { dir: _dir, directories, collector } = bench;
    let socket = directories.socket_for("gpt@1");
    drop(collector);
    let gone = async {
        while socket.exists() {
            tokio::task::yield_now().await;
        }
    };
    soon(gone).await;
    let next = Collector::start_in(&directories, options("gpt")).await.unwrap();
    assert_eq!(next.run(), "gpt@2");
    next.stop(None).await.unwrap();
    let states: Vec<RunState> = list_runs_in(&directories).unwrap().iter().map(|run| run.info.state).collect();
    assert_eq!(states, [RunState::Lost, RunState::Ended]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_cannot_be_written_is_an_error_and_does_not_count_as_ended() {
    let bench = Bench::start().await;
    let directory = bench.directories.runs().join("gpt@1");
    let mut agent = bench.agent("a").await;
    agent.send_steps(1, 0, 1).await;
    agent.acknowledged(1).await;
    agent.bye().await;
    std::fs::remove_dir_all(&directory).unwrap();
    std::fs::write(&directory, "in the way").unwrap();
    let socket = bench.socket();
    let error = bench.collector.stop(None).await.unwrap_err();
    assert!(error.to_string().contains("gpt@1"), "{error}");
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_nobody_needs_any_more_says_so() {
    let quiet = Duration::from_millis(30);
    let bench = Bench::start().await;
    assert!(
        tokio::time::timeout(quiet * 4, bench.collector.idle(quiet, PATIENCE)).await.is_err(),
        "the first agent is waited for"
    );
    let agent = bench.agent("a").await;
    assert!(tokio::time::timeout(quiet * 4, bench.collector.idle(quiet, PATIENCE)).await.is_err(), "one is live");
    agent.send(Frame::Status(v1::Status::default())).await;
    agent.bye().await;
    soon(bench.collector.idle(quiet, PATIENCE)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_says_that_the_command_has_ended_and_hears_that_the_run_is_written() {
    let bench = Bench::start().await;
    bench.agent("a").await.bye().await;
    let directory = bench.directories.runs().join("gpt@1");
    let call = v1::FinishCall { pid: 7, wait_status: 3 << 8 };
    let mut control = bench.control().await;
    let mut progress = soon(control.finish(call)).await.unwrap().into_inner();
    // A launcher whose connection broke says it again; what it said first holds.
    let mut again = soon(control.finish(v1::FinishCall { wait_status: 9, ..call })).await.unwrap().into_inner();
    let status = soon(bench.collector.command_ended()).await;
    assert_eq!(status, 3);
    let first = soon(progress.message()).await.unwrap().unwrap();
    assert_eq!(first.outcome, None, "it is said that the run is still being written");
    bench.collector.stop(Some(status)).await.unwrap();
    assert_eq!(RunInfo::read(&directory).unwrap().exit_status, Some(3));
    for progress in [&mut progress, &mut again] {
        let mut outcome = None;
        while let Ok(Some(said)) = soon(progress.message()).await {
            outcome = said.outcome;
        }
        assert_eq!(outcome, Some(v1::FinishOutcome { agents: 1, ..Default::default() }));
    }
}
