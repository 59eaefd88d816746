//! Rows that agents send are stored once, and rows that cannot be stored are counted.

use probe_proto::encode::BatchBuilder;
use probe_proto::table::Text;
use probe_proto::tables::steps;
use probe_proto::v1::{self, agent_frame::Frame, collector_frame};
use tonic::Code;

use crate::collector::support::{Bench, FakeAgent, hello, soon};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_can_be_asked_for() {
    let bench = Bench::start().await;
    let mut agent = bench.rank(1, 2).await;
    assert_eq!(agent.welcome.run, "gpt@1");
    assert_eq!(agent.welcome.acked_seq, 0);
    agent.send_steps(1, 0, 100).await;
    agent.send_steps(2, 100, 50).await;
    agent.acknowledged(2).await;
    let sql = "SELECT run, host, pid, rank, world_size, role, COUNT(*), MAX(step) FROM python.steps GROUP BY 1, 2, 3, 4, 5, 6";
    assert_eq!(bench.rows(sql).await, [["gpt@1", "node", "101", "1", "2", "trainer", "150", "149"]]);
    let agents = bench
        .rows("SELECT state, rank, rows_recorded, rows_stored, rows_dropped, torch_version, problem FROM probe.agents")
        .await;
    assert_eq!(agents, [["live", "1", "150", "150", "0", "2.15", ""]]);
    assert_eq!(bench.collector.agent_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_are_sent_again_after_a_reconnect_are_there_once() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("same").await;
    agent.send_steps(1, 0, 10).await;
    agent.send_steps(2, 10, 10).await;
    agent.acknowledged(2).await;
    drop(agent);
    bench.until("SELECT state FROM probe.agents", &[&["lost"]]).await;

    let mut again = bench.agent("same").await;
    assert_eq!(again.welcome.acked_seq, 2);
    again.send_steps(1, 0, 10).await;
    again.send_steps(2, 10, 10).await;
    again.send_steps(3, 20, 10).await;
    again.acknowledged(3).await;
    assert_eq!(bench.rows("SELECT COUNT(*), COUNT(DISTINCT step) FROM python.steps").await, [["30", "30"]]);
    assert_eq!(bench.rows("SELECT state, rows_stored FROM probe.agents").await, [["live", "30"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_connection_of_an_agent_takes_over_from_one_that_hangs() {
    let bench = Bench::start().await;
    let mut old = bench.agent("same").await;
    old.send_steps(1, 0, 10).await;
    old.acknowledged(1).await;
    let mut new = bench.agent("same").await;
    assert_eq!(new.welcome.acked_seq, 1);
    new.send_steps(2, 10, 10).await;
    new.acknowledged(2).await;
    old.send_steps(3, 20, 10).await;
    assert_eq!(old.end().await.code(), Code::Aborted);
    assert_eq!(bench.rows("SELECT COUNT(*) FROM python.steps").await, [["20"]]);
    assert_eq!(bench.rows("SELECT state FROM probe.agents").await, [["live"]], "the old one's end is not the agent's");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_becomes_known_belongs_to_the_rows_after_it() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    agent.send_steps(1, 0, 3).await;
    let mut second = hello("a");
    (second.rank, second.world_size) = (Some(3), Some(8));
    agent.send(Frame::Hello(second)).await;
    agent.send_steps(2, 3, 4).await;
    agent.acknowledged(2).await;
    let rows = bench
        .rows("SELECT rank, world_size, COUNT(*) FROM python.steps GROUP BY rank, world_size ORDER BY COUNT(*)")
        .await;
    assert_eq!(rows, [["", "", "3"], ["3", "8", "4"]]);
    assert_eq!(bench.rows("SELECT rank, world_size FROM probe.agents").await, [["3", "8"]]);

    agent.send(Frame::Hello(hello("b"))).await;
    assert!(agent.end().await.message().contains("another instance"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_batch_ends_its_own_stream_is_counted_once_and_not_asked_for_again() {
    let bench = Bench::start().await;
    let mut good = bench.rank(0, 2).await;
    let mut bad = bench.rank(1, 2).await;
    let (strings, mut batch) = bad.steps(1, 0, 10);
    batch.columns.pop();
    bad.send(Frame::Strings(strings.unwrap())).await;
    bad.send(Frame::Batch(batch.clone())).await;
    let status = bad.end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("python.steps: a batch has"), "{status:?}");

    let mut bad = bench.rank(1, 2).await;
    bad.send(Frame::Batch(batch)).await;
    bad.send_steps(2, 10, 5).await;
    bad.acknowledged(2).await;
    assert_eq!(bench.rank(1, 2).await.welcome.acked_seq, 2, "neither need be sent again");
    good.send_steps(1, 0, 7).await;
    good.acknowledged(1).await;
    let drops = bench.rows("SELECT pid, rank, table_name, reason, at, rows FROM probe.drops").await;
    assert_eq!(drops, [["101", "1", "python.steps", "malformed", "collector", "10"]]);
    let agents =
        bench.rows("SELECT rank, rows_recorded, rows_stored, rows_dropped FROM probe.agents ORDER BY rank").await;
    assert_eq!(agents, [["0", "7", "7", "0"], ["1", "15", "5", "0"]]);
    let told = bench.rows("SELECT rank FROM probe.agents WHERE problem LIKE '%malformed%python.steps%'").await;
    assert_eq!(told, [["1"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_make_no_sense_end_their_stream_with_a_reason() {
    let bench = Bench::start().await;
    let mut witness = bench.agent("witness").await;
    let table_missing = v1::Batch { seq: 1, table: 9, ..Default::default() };
    let no_number = v1::Batch::default();
    let gap = v1::Strings { first: 5, values: vec!["x".into()] };
    let cases = [
        (Frame::Batch(table_missing), "table 9"),
        (Frame::Batch(no_number), "sequence number"),
        (Frame::Strings(gap), "strings from id 5"),
    ];
    for (number, (frame, words)) in cases.into_iter().enumerate() {
        let instance = format!("agent-{number}");
        let mut hello = hello(&instance);
        hello.pid = 50 + number as u32;
        let mut agent = FakeAgent::connect(&bench.socket(), hello).await.unwrap();
        agent.send(frame).await;
        let status = agent.end().await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(words), "{status:?}");
        let problem =
            format!("SELECT state, problem LIKE '%malformed%{words}%' FROM probe.agents WHERE pid = {}", 50 + number);
        bench.until(&problem, &[&["lost", "true"]]).await;
    }
    let counted = bench.rows("SELECT COUNT(*) FROM probe.drops WHERE reason = 'malformed'").await;
    assert_eq!(counted, [["3"]]);
    witness.send_steps(1, 0, 1).await;
    witness.acknowledged(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_is_too_large_ends_its_stream() {
    let bench = Bench::start().await;
    let mut agent = bench.agent("a").await;
    let problem = "x".repeat(probe_proto::MAX_FRAME + 1);
    agent.status(v1::Status { problem, ..Default::default() }).await;
    let status = agent.end().await;
    assert!(status.message().contains("too large"), "{status:?}");
    bench.until("SELECT state, problem LIKE '%too large%' FROM probe.agents", &[&["lost", "true"]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_that_came_late_are_events_once() {
    let bench = Bench::start().await;
    let agent = bench.agent("a").await;
    let late = |from_step| v1::LatePlan { from_step, until_step: from_step + 2 };
    for (late_plans, said) in [(2, vec![late(5), late(9)]), (2, vec![late(5), late(9)]), (4, vec![late(20), late(30)])]
    {
        agent.status(v1::Status { step: 40, late_plans, late: said, ..Default::default() }).await;
    }
    let rows: &[&[&str]] = &[&["5", "info"], &["9", "info"], &["20", "info"], &["30", "info"]];
    bench.until("SELECT step, severity FROM probe.events WHERE kind = 'detail late' ORDER BY id", rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_frame_is_hello_of_a_protocol_we_speak() {
    let bench = Bench::start().await;
    let newer = v1::Hello { protocol: 99, ..hello("a") };
    let refused = FakeAgent::connect(&bench.socket(), newer).await.err().unwrap().refused();
    assert!(!refused.retry);
    assert!(refused.message.contains("protocol 99"), "{}", refused.message);

    let (up, frames) = tokio::sync::mpsc::channel(1);
    up.send(v1::AgentFrame { frame: Some(Frame::Status(v1::Status::default())) }).await.unwrap();
    let mut client = v1::agent_client::AgentClient::new(crate::collector::support::channel(&bench.socket()).await);
    let mut down = client.session(tokio_stream::wrappers::ReceiverStream::new(frames)).await.unwrap().into_inner();
    let status = soon(down.message()).await.unwrap_err();
    assert!(status.message().contains("not Hello"), "{status:?}");
    assert_eq!(bench.collector.agent_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_another_one_here_is_refused_alone() {
    let bench = Bench::start().await;
    let mut changed = hello("a");
    changed.tables[0].columns[0].r#type = v1::ColumnType::Text as i32;
    let mut agent = FakeAgent::connect(&bench.socket(), changed).await.unwrap();
    match agent.next().await {
        collector_frame::Frame::TableRefused(refused) => {
            assert_eq!(refused.table, "python.steps");
            assert!(refused.message.contains("declared as text"), "{refused:?}");
        }
        other => panic!("{other:?}"),
    }
    agent.send_steps(1, 0, 5).await;
    agent.acknowledged(1).await;
    let drops = bench.rows("SELECT table_name, reason, rows FROM probe.drops").await;
    assert_eq!(drops, [["python.steps", "table refused", "5"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_and_columns_of_a_later_version_are_ignored_and_counted() {
    let bench = Bench::start().await;
    let mut later = hello("a");
    later.tables.push(v1::TableSchema {
        name: "python.novel".into(),
        columns: vec![v1::ColumnSchema { name: "a".into(), r#type: v1::ColumnType::Int64 as i32 }],
    });
    later.tables[0].columns.push(v1::ColumnSchema { name: "later".into(), r#type: v1::ColumnType::Int64 as i32 });
    let mut agent = FakeAgent::connect(&bench.socket(), later).await.unwrap();
    let (strings, mut batch) = agent.steps(1, 0, 5);
    batch.columns.push(v1::Column { base: 42, ..Default::default() });
    agent.send(Frame::Strings(strings.unwrap())).await;
    agent.send(Frame::Batch(batch)).await;
    let column = v1::Column { base: 1, ..Default::default() };
    agent.send(Frame::Batch(v1::Batch { seq: 2, table: 1, rows: 9, columns: vec![column], recorded: 9 })).await;
    agent.acknowledged(2).await;
    assert_eq!(bench.rows("SELECT COUNT(*) FROM python.steps").await, [["5"]]);
    let drops = bench.rows("SELECT table_name, reason, rows FROM probe.drops").await;
    assert_eq!(drops, [["python.novel", "unknown table", "9"]]);
    let agents = bench.rows("SELECT rows_recorded, rows_stored, problem LIKE '%later%' FROM probe.agents").await;
    assert_eq!(agents, [["14", "5", "true"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_are_in_the_tables() {
    let bench = Bench::start().await;
    let agent = bench.agent("a").await;
    let in_an_hour = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64
        + 3_600_000_000_000;
    agent
        .status(v1::Status {
            step: 42,
            steps_per_second: 2.5,
            drops: vec![v1::Drop { table: "python.steps".into(), reason: "ring full".into(), rows: 3 }],
            layers: [("forward".into(), "tp_call".into()), ("backward".into(), "record_function".into())].into(),
            config: [("detail".into(), "off".into())].into(),
            problem: "no gloo".into(),
            unix_ns: in_an_hour,
            ..Default::default()
        })
        .await;
    let sql = "SELECT step, steps_per_second, detail, layers, rows_dropped, problem, abs(clock_offset - 3600) < 30 FROM probe.agents";
    bench
        .until(sql, &[&["42", "2.5", "off", "backward=record_function forward=tp_call", "3", "no gloo", "true"]])
        .await;
    let drops = bench.rows("SELECT table_name, reason, at, rows FROM probe.drops").await;
    assert_eq!(drops, [["python.steps", "ring full", "agent", "3"]]);
    agent.bye().await;
    bench.until("SELECT state FROM probe.agents", &[&["ended"]]).await;
}

/// A query for the stored rows, the evicted ones, and the newest stored step.
const ACCOUNT: &str = "SELECT (SELECT COUNT(*) FROM python.steps), (SELECT rows_stored FROM probe.agents),
           (SELECT COALESCE(SUM(rows), 0) FROM probe.drops WHERE reason = 'evicted' AND table_name = 'python.steps'),
           (SELECT rows_recorded FROM probe.agents), (SELECT MAX(step) FROM python.steps)";

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_the_memory_is_on_disk() {
    let bench = Bench::with(|options| options.memory = 1 << 20).await;
    let mut agent = bench.agent("a").await;
    for seq in 1..=200 {
        agent.send_steps(seq, (seq as i64 - 1) * 512, 512).await;
    }
    agent.acknowledged(200).await;
    let stored = (200 * 512).to_string();
    assert_eq!(bench.rows(ACCOUNT).await, [[stored.as_str(), &stored, "0", &stored, "102399"]]);
    let files = std::fs::read_dir(bench.directories.runs().join("gpt@1/python.steps")).unwrap().count();
    assert!(files > 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_the_disk_is_evicted_and_counted() {
    let bench = Bench::with(|options| (options.memory, options.disk) = (1 << 20, 1 << 20)).await;
    let mut agent = bench.agent("a").await;
    let mut sent = 0;
    let evicted = "SELECT SUM(rows) > 0 FROM probe.drops WHERE reason = 'evicted'";
    while bench.rows(evicted).await != [["true"]] {
        for _ in 0..20 {
            sent += 1;
            agent.send_steps(sent, (sent as i64 - 1) * 512, 512).await;
        }
        agent.acknowledged(sent).await;
    }
    // Rows that go are counted first, and more go for a while.
    let account = soon(async {
        loop {
            let account = bench.rows(ACCOUNT).await.remove(0);
            if account[0] == account[1] {
                return account;
            }
        }
    });
    let account = account.await;
    let number = |column: usize| account[column].parse::<u64>().unwrap();
    assert_eq!(number(1) + number(2), number(3), "{account:?}");
    assert_eq!(number(3), sent * 512);
    assert_eq!(number(4), sent * 512 - 1, "the newest stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_without_room_costs_the_rows_that_need_it_and_no_others() {
    // The texts of all connections have 64 KiB then.
    let bench = Bench::with(|options| options.disk = 1 << 20).await;
    let mut agent = bench.agent("a").await;
    agent.send_steps(1, 0, 10).await;
    let values = vec!["x".repeat(100 << 10)];
    agent.send(Frame::Strings(v1::Strings { first: 1, values })).await;
    let (_, batch) = agent.steps(2, 10, 5);
    let texts = steps::TABLE.columns.iter().position(|column| column.name == "clock").unwrap();
    let mut needs_it = batch.clone();
    // The id of the text that there was no room for, in every row.
    let mut builder = BatchBuilder::new(&steps::TABLE);
    (10..15).for_each(|step| builder.push(steps::Row { clock: Text(1), ..steps::Row::of_a_second(step) }));
    needs_it.columns[texts] = builder.take().columns.remove(texts);
    agent.send(Frame::Batch(needs_it)).await;
    agent.send(Frame::Batch(v1::Batch { seq: 3, recorded: 20, ..batch })).await;
    agent.acknowledged(3).await;
    let drops = bench.rows("SELECT table_name, reason, at, rows FROM probe.drops").await;
    assert_eq!(drops, [["python.steps", "no room for text", "collector", "5"]]);
    assert_eq!(bench.rows("SELECT COUNT(*) FROM python.steps").await, [["15"]]);
    let problem = bench.rows("SELECT problem LIKE '%PROBE_DISK%' FROM probe.agents").await;
    assert_eq!(problem, [["true"]]);
}
