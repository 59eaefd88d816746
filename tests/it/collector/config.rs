//! Settings reach agents that are connected and agents that connect later.

use probe_common::error::{Error, ErrorKind};
use probe_proto::v1::{self, ConfigCall, collector_frame::Frame};

use crate::collector::support::{Bench, soon};

fn set(key: &str, value: &str) -> ConfigCall {
    ConfigCall { values: [(key.to_owned(), value.to_owned())].into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_is_in_force_on_live_agents_when_the_answer_comes() {
    let bench = Bench::start().await;
    let mut agent = bench.rank(0, 1).await;
    assert!(agent.welcome.config.is_empty());
    let mut control = bench.control().await;
    let answer = tokio::spawn(async move { control.config(set("detail", "off")).await });
    let Frame::Configure(configure) = agent.next().await else { panic!("not Configure") };
    assert_eq!(configure.values["detail"], "off");
    assert!(!answer.is_finished(), "not before the agent says that it is in force");
    let in_force = |value: &str| v1::Status { config: [("detail".into(), value.into())].into(), ..Default::default() };
    agent.status(in_force("every-step")).await;
    agent.status(in_force("off")).await;
    let agents = soon(answer).await.unwrap().unwrap().into_inner().agents;
    assert_eq!((agents.len(), agents[0].rank, agents[0].values["detail"].as_str()), (1, Some(0), "off"));

    let later = bench.agent("later").await;
    assert_eq!(later.welcome.config["detail"], "off");
    let asked = bench.control().await.config(ConfigCall::default()).await.unwrap().into_inner();
    assert_eq!(asked.agents.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_told_to_watch_operators_once_and_settings_stay() {
    let bench = Bench::start().await;
    let mut agent = bench.rank(0, 1).await;
    let call = v1::WatchCall { detail_steps: 0, operator_steps: 3 };
    let answer = bench.control().await.watch(call).await.unwrap().into_inner();
    assert_eq!((answer.processes, answer.automatic), (1, 0));
    let Frame::Configure(configure) = agent.next().await else { panic!("not Configure") };
    assert_eq!((configure.watch_operators, configure.values.len(), configure.plan), (3, 0, None));
    let later = bench.agent("later").await;
    assert!(later.welcome.config.is_empty());
    let noted = "SELECT kind, message LIKE '%asked for detail in 0 steps and for operators in 3' FROM probe.events";
    bench.until(noted, &[&["config", "true"]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_says_nothing_is_shown_as_it_was() {
    let bench = Bench::start().await;
    let agent = bench.agent("a").await;
    let answer = soon(bench.control().await.config(set("detail", "off"))).await.unwrap().into_inner();
    assert!(answer.agents[0].values.is_empty());
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_set_is_refused_and_not_remembered() {
    let bench = Bench::start().await;
    for (key, value) in [("detail", "sometimes"), ("details", "off"), ("", "")] {
        let error = Error::from(bench.control().await.config(set(key, value)).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.hint_text().unwrap().contains("detail=auto|every-step|1/N|off"), "{error:?}");
    }
    assert!(bench.agent("a").await.welcome.config.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_says_what_it_is() {
    let bench = Bench::start().await;
    let agent = bench.rank(1, 2).await;
    agent.status(v1::Status { step: 5, steps_per_second: 1.5, ..Default::default() }).await;
    bench.until("SELECT step FROM probe.agents", &[&["5"]]).await;
    let said = bench.control().await.describe(v1::DescribeCall {}).await.unwrap().into_inner();
    assert_eq!((said.run.as_str(), said.pid, said.command.as_str()), ("gpt@1", std::process::id(), "python train.py"));
    assert_eq!(said.run_directory, bench.directories.runs().join("gpt@1").display().to_string());
    assert_eq!(said.listening, [format!("unix:{}", bench.socket().display())]);
    let agent = &said.agents[0];
    assert_eq!((agent.pid, agent.rank, agent.state.as_str(), agent.step), (101, Some(1), "live", 5));
}
