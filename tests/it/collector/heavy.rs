//! Queries that would take all resources, and clients that disconnect without a word: rows are taken in all the same.

use std::process::{Command, Stdio};
use std::time::Duration;

use arrow_flight::sql::client::FlightSqlServiceClient;
use futures::StreamExt;
use probe_proto::v1::collector_frame::Frame;
use probe_proto::v1::eval_reply::Reply;
use probe_proto::v1::{Done, Outcome, StackMethod, StacksCall};

use crate::collector::support::{Bench, PATIENCE, channel, soon};

/// A query that runs longer than a test waits.
const HEAVY: &[&str] = &[
    "SELECT COUNT(*) FROM python.steps a, python.steps b, python.steps c WHERE a.step * b.step % 7 > c.step % 5",
    "SELECT COUNT(*) FROM generate_series(1, 1000000000000) WHERE value % 3 = 1",
    "SELECT value FROM generate_series(1, 1000000000000)",
];

async fn quiet(bench: &Bench) {
    let engine = bench.collector.engine();
    let goes_on = || (engine.running(), engine.scans(), engine.tasks());
    let quiet = tokio::time::timeout(PATIENCE, async {
        // Without busy waiting: queries have a lower priority than this thread.
        let mut looks = tokio::time::interval(Duration::from_millis(5));
        while goes_on() != (0, 0, 0) {
            looks.tick().await;
        }
    });
    assert!(quiet.await.is_ok(), "queries, scans and tasks go on: {:?}", goes_on());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_queries_do_not_hold_up_ingest() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    agent.send_steps(1, 0, 5000).await;
    agent.acknowledged(1).await;
    let mut answers = Vec::new();
    for sql in HEAVY {
        answers.push(bench.collector.engine().query(sql, None).await.unwrap());
    }
    assert_eq!(bench.collector.engine().running(), HEAVY.len());
    // They run all the while, and every batch is taken and acknowledged, and asked for.
    for seq in 2..200 {
        agent.send_steps(seq, 5000 + 10 * seq as i64, 10).await;
    }
    agent.acknowledged(199).await;
    let count = soon(bench.rows("SELECT COUNT(*) FROM python.steps")).await;
    assert_eq!(count, [[(5000 + 198 * 10).to_string()]]);
    assert_eq!(bench.collector.engine().running(), HEAVY.len());
    drop(answers);
    quiet(&bench).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_killed_ends_its_query() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    agent.send_steps(1, 0, 20_000).await;
    agent.acknowledged(1).await;
    let endpoint = bench.collector.endpoint();
    // The command writes rows into a pipe that is not read, so that it stalls in the middle of its answer.
    let sql = "SELECT a.*, b.step FROM python.steps a, python.steps b WHERE a.step + b.step % 3 > 1";
    let mut client = Command::new(env!("CARGO_BIN_EXE_probe"))
        .args([&endpoint, "query", "--format", "csv", sql])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let engine = bench.collector.engine();
    let started = tokio::time::timeout(PATIENCE, async {
        let mut looks = tokio::time::interval(Duration::from_millis(5));
        while engine.scans() == 0 {
            looks.tick().await;
        }
    });
    assert!(started.await.is_ok(), "the query does not start");
    client.kill().unwrap();
    client.wait().unwrap();
    quiet(&bench).await;
    // The agent has noticed nothing.
    agent.send_steps(2, 20_000, 10).await;
    agent.acknowledged(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_read_nothing_take_nothing_from_the_others() {
    let bench = Bench::start().await;
    let mut stalled = Vec::new();
    // Wide rows, so that what the connections hold in between is full at once.
    let sql = "SELECT value a, value + 1 b, value + 2 c, value + 3 d FROM generate_series(1, 1000000000000)";
    for _ in 0..20 {
        let mut client = FlightSqlServiceClient::new(channel(&bench.socket()).await);
        // Later than a test waits for anything: their deadline ends none of them.
        client.set_header("probe-timeout-ms", "240000");
        let info = soon(client.execute(sql.into(), None)).await.unwrap();
        stalled.push((soon(client.do_get(info.endpoint[0].ticket.clone().unwrap())).await.unwrap(), client));
    }
    assert_eq!(bench.collector.engine().running(), 20);
    assert_eq!(soon(bench.rows("SELECT 1")).await, [["1"]]);
    let mut client = FlightSqlServiceClient::new(channel(&bench.socket()).await);
    assert!(soon(client.execute("SELECT 1".into(), None)).await.is_ok());
    drop(stalled);
    quiet(&bench).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspections_of_training_are_done_in_turns() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let control = bench.control().await;
    let call = StacksCall { method: StackMethod::Agent as i32, ..StacksCall::default() };
    let mut asked: futures::stream::FuturesUnordered<_> = (0..20)
        .map(|_| {
            let (mut control, call) = (control.clone(), call);
            async move { control.stacks(call).await }
        })
        .collect();
    // One is at it, three of the same caller wait, and the others are told to come again, while the first has no answer.
    for _ in 0..16 {
        let refused = soon(asked.next()).await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused}");
        assert!(refused.message().contains("too many inspections: 4 of uid:"), "{refused}");
    }
    let done = || Reply::Done(Done { outcome: Outcome::Ok as i32, ..Done::default() });
    for _ in 0..2 {
        let decide = match soon(agent.next()).await {
            Frame::EvalDecide(decide) => decide,
            other => panic!("no snippet: {other:?}"),
        };
        agent.reply(decide.id, done()).await;
        assert!(soon(asked.next()).await.unwrap().is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_come_with_the_request() {
    let bench = Bench::start().await;
    let mut client = FlightSqlServiceClient::new(channel(&bench.socket()).await);
    let refused = async |key: &str, value: &str, sql: &str| {
        let mut client = client.clone();
        client.set_header(key, value);
        let info = client.execute(sql.to_owned(), None).await?;
        let mut rows = client.do_get(info.endpoint[0].ticket.clone().unwrap()).await?;
        while let Some(batch) = rows.next().await {
            batch?;
        }
        Ok::<(), arrow_flight::error::FlightError>(())
    };
    let message = |error: arrow_flight::error::FlightError| match error {
        arrow_flight::error::FlightError::Tonic(status) => (status.code(), status.message().to_owned()),
        other => panic!("{other}"),
    };
    let distinct = "SELECT COUNT(DISTINCT value) FROM generate_series(1, 1000000000000)";
    for (key, value, said) in [
        ("probe-timeout-ms", "50", "the query did not finish within 50ms"),
        ("probe-max-rows", "10000", "the answer has more than 10000 rows"),
        ("probe-max-bytes", "100000", "the answer is larger than 97 KiB"),
        ("probe-max-memory", "10000", "the query needs more memory than the 10000 bytes that it was given"),
    ] {
        let sql = if key == "probe-max-memory" { distinct } else { HEAVY[2] };
        let error = soon(refused(key, value, sql)).await.unwrap_err();
        assert_eq!(message(error), (tonic::Code::ResourceExhausted, said.to_owned()));
    }
    let error = refused("probe-timeout-ms", "soon", "SELECT 1").await.unwrap_err();
    assert_eq!(message(error).0, tonic::Code::InvalidArgument);
    quiet(&bench).await;
    client.set_header("probe-timeout-ms", Duration::from_secs(20).as_millis().to_string());
    assert!(client.execute("SELECT 1".into(), None).await.is_ok());
}
