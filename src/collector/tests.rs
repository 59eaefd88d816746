//! A collector against a model: batches come in any order, again and again, over connections that break; segments are
//! sealed, written, evicted; the collector is killed and goes on. Whatever happens, each acknowledged batch is there
//! once, or counted.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use probe_proto::encode::BatchBuilder;
use probe_proto::table::{Text, Time};
use probe_proto::tables::steps;
use probe_proto::v1::{self, record, said};
use proptest::prelude::*;
use tokio::sync::mpsc;

use super::agent::{Agent, Keep, Source};
use super::hello::understand;
use super::{Begun, begin, clock, recovery};
use crate::journal;
use crate::query::Engine;
use crate::store::{Mapping, Rows, Strings};

/// What may happen.
#[derive(Debug, Clone)]
enum Event {
    /// An agent sends its next batches, of so many rows each.
    Send { agent: usize, rows: Vec<u8> },
    /// It sends what is not acknowledged again, over a new connection.
    Reconnect { agent: usize },
    /// What was recorded so far is on disk, and agents are told.
    Sync,
    /// Segments are sealed and written, and files that are past the disk limit go.
    KeepUp,
    /// The collector is killed and another one goes on; what the disk holds of the newest file's end is cut.
    Crash { torn: u8 },
}

fn event() -> impl Strategy<Value = Event> {
    let agent = 0..2_usize;
    prop_oneof![
        6 => (agent.clone(), prop::collection::vec(1..40_u8, 1..6)).prop_map(|(agent, rows)| Event::Send { agent, rows }),
        2 => agent.prop_map(|agent| Event::Reconnect { agent }),
        2 => Just(Event::Sync),
        3 => Just(Event::KeepUp),
        2 => any::<u8>().prop_map(|torn| Event::Crash { torn }),
    ]
}

/// An agent as it is in its own process.
#[derive(Debug, Default)]
struct Sender {
    /// Rows of every batch, by number; each row is a step of its own.
    batches: BTreeMap<u64, (i64, u8)>,
    next_step: i64,
    acknowledged: u64,
}

/// A collector, as far as rows are concerned.
struct World {
    begun: Begun,
    agents: Vec<Connected>,
    mapping: Mapping,
}

/// An agent's connection.
struct Connected {
    agent: Arc<Agent>,
    connection: u64,
    strings: Strings,
}

impl World {
    fn start(directory: &Path) -> Self {
        // Room for a few files, so that the oldest ones go; and for fewer rows in memory than may come at once.
        let begun = begin(directory, &"gpt@1".into(), 60_000, 80_000).unwrap();
        let mapping = Mapping::new(&steps::TABLE.wire_schema()).unwrap();
        Self { begun, agents: Vec::new(), mapping }
    }

    /// A connection of every agent; returns what each is told.
    fn connect(&mut self, count: usize) -> Vec<u64> {
        self.agents.clear();
        (0..count).map(|agent| self.reconnect(agent)).collect()
    }

    fn reconnect(&mut self, number: usize) -> u64 {
        let hello = v1::Hello {
            protocol: probe_proto::PROTOCOL,
            instance: format!("agent {number}"),
            pid: 100 + number as u32,
            tables: vec![steps::TABLE.wire_schema()],
            ..v1::Hello::default()
        };
        let greeting = understand(hello.clone(), &"gpt@1".into()).unwrap();
        let registry = &self.begun.registry;
        let connection = registry.new_connection();
        let (downlink, _) = mpsc::channel(1);
        let (agent, acknowledged) =
            registry.connect(&greeting.instance, greeting.identity, greeting.about, connection, downlink).unwrap();
        let opened = v1::Opened { connection, hello: Some(hello), unix_ns: clock::unix_ns() };
        self.begun.journal.record(record::Record::Opened(opened));
        let texts = v1::Strings { first: 0, values: vec!["host".into()] };
        let mut strings = Strings::default();
        strings.extend(texts.clone()).unwrap();
        let what = Some(said::What::Strings(texts));
        self.begun.journal.record(record::Record::Said(v1::Said { connection, what, unix_ns: 0 }));
        let connected = Connected { agent, connection, strings };
        match self.agents.get_mut(number) {
            Some(place) => *place = connected,
            None => self.agents.push(connected),
        }
        acknowledged
    }

    fn send(&mut self, number: usize, seq: u64, (first, rows): (i64, u8), recorded: u64) {
        let Connected { agent, connection, strings } = &mut self.agents[number];
        let mut builder = BatchBuilder::new(&steps::TABLE);
        (0..i64::from(rows)).for_each(|row| builder.push(step(first + row)));
        let batch = v1::Batch { seq, recorded, ..builder.take() };
        let decoded = Rows::decode(&self.mapping, &batch, strings).unwrap();
        let from = Source { connection: *connection, seq, table: "python.steps", recorded };
        let identity = Arc::clone(&agent.state().identity);
        let keep = Keep { store: &self.begun.store, journal: &self.begun.journal };
        agent.store(&from, &identity, decoded, batch, keep).unwrap();
    }

    /// Says what an agent need not keep any more.
    fn acknowledged(&self, number: usize) -> u64 {
        let position = self.begun.journal.durable().borrow().position;
        self.agents[number].agent.settled(position)
    }

    /// Ends as a process does that is killed.
    fn kill(self) {
        let Begun { journal, keeper, .. } = self.begun;
        // A kill stops all threads at one instant; here the one that writes files goes first.
        drop(keeper);
        journal.abandon();
    }

    /// Every agent's rows are there once, whole batches of them, or counted.
    fn check(&self, senders: &[Sender], runtime: &tokio::runtime::Runtime) {
        let Begun { store, registry, log, events, .. } = &self.begun;
        let _still = store.hold_still();
        let system = recovery::system_tables(registry, store, log, events);
        let engine = Engine::new(Arc::clone(store), system).unwrap();
        let rows = |sql: String| {
            let batches: Vec<_> =
                runtime.block_on(async { engine.query(&sql, None).await.unwrap().try_collect().await.unwrap() });
            let column = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
            batches.iter().flat_map(column).collect::<Vec<i64>>()
        };
        for (number, sender) in senders.iter().enumerate() {
            let pid = 100 + number;
            let there = rows(format!("SELECT step FROM python.steps WHERE pid = {pid}"));
            let steps: BTreeSet<i64> = there.iter().copied().collect();
            assert_eq!(steps.len(), there.len(), "a row is there twice");
            assert_eq!(rows(format!("SELECT COUNT(*) FROM python.steps WHERE pid = {pid}")), [there.len() as i64]);
            let done = self.agents[number].agent.state().done_seq;
            assert!(done >= sender.acknowledged, "{done} < {}", sender.acknowledged);
            let mut whole = 0;
            let mut gone = 0;
            for (seq, (first, rows)) in &sender.batches {
                let batch = *first..first + i64::from(*rows);
                let found = batch.clone().filter(|step| steps.contains(step)).count();
                assert!(found == 0 || found == usize::from(*rows), "a torn batch {seq}");
                assert!(found == 0 || *seq <= done, "batch {seq} is there before its time");
                whole += found;
                gone += if *seq <= done && found == 0 { u64::from(*rows) } else { 0 };
            }
            assert_eq!(whole, steps.len(), "rows that nobody sent");
            let lost = rows(format!(
                "SELECT COALESCE(SUM(rows), 0) FROM probe.drops WHERE pid = {pid} AND reason = 'evicted'"
            ));
            assert_eq!(lost, [gone as i64], "evicted rows are counted, and only those");
            let stored = rows(format!("SELECT rows_stored FROM probe.agents WHERE pid = {pid}"));
            assert_eq!(stored, [there.len() as i64], "{:?}", rows("SELECT rows FROM probe.drops".into()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_acknowledged_batch_is_there_once_or_counted(events in prop::collection::vec(event(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut senders = [Sender::default(), Sender::default()];
        let mut world = World::start(directory.path());
        world.connect(senders.len());
        for event in events {
            match event {
                Event::Send { agent, rows } => {
                    for rows in rows {
                        let sender = &mut senders[agent];
                        let seq = 1 + sender.batches.len() as u64;
                        sender.batches.insert(seq, (sender.next_step, rows));
                        sender.next_step += i64::from(rows);
                        world.send(agent, seq, sender.batches[&seq], sender.next_step as u64);
                    }
                }
                Event::Reconnect { agent } => {
                    let told = world.reconnect(agent);
                    prop_assert!(told >= senders[agent].acknowledged);
                    resend(&mut world, agent, &mut senders[agent], told);
                }
                Event::Sync => {
                    prop_assert_eq!(world.begun.journal.sync(), None);
                    for (agent, sender) in senders.iter_mut().enumerate() {
                        sender.acknowledged = world.acknowledged(agent);
                        prop_assert_eq!(sender.acknowledged, sender.batches.len() as u64);
                    }
                }
                Event::KeepUp => world.begun.store.keep_up(true).unwrap(),
                Event::Crash { torn } => {
                    world.kill();
                    tear(directory.path(), torn);
                    world = World::start(directory.path());
                    let told = world.connect(senders.len());
                    world.check(&senders, &runtime);
                    for (agent, sender) in senders.iter_mut().enumerate() {
                        resend(&mut world, agent, sender, told[agent]);
                    }
                }
            }
        }
        world.check(&senders, &runtime);
    }
}

#[test]
fn events_outlive_the_collector_that_noticed_them() {
    use super::events::{Event, Severity};
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::start(directory.path());
    world.connect(1);
    let identity = Arc::clone(&world.agents[0].agent.state().identity);
    let hang = Event::new("hang", Severity::Error, "rank 1 has been in all_reduce for 60 s");
    world.begun.events.note(hang.of(&identity).at_step(7).with(&serde_json::json!({ "seconds": 60 })));
    assert_eq!(world.begun.journal.sync(), None);
    world.kill();
    // Once from the record, and once from the ledger that sums it up.
    for _ in 0..2 {
        world = World::start(directory.path());
        world.kill();
    }
    world = World::start(directory.path());
    world.begun.events.note(Event::new("slow", Severity::Warning, "slower"));
    let engine = Engine::new(Arc::clone(&world.begun.store), vec![world.begun.events]).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let batches: Vec<RecordBatch> = runtime.block_on(async {
        let sql = "SELECT id, kind, severity, run, pid, step, message, details FROM probe.events ORDER BY id";
        engine.query(sql, None).await.unwrap().try_collect().await.unwrap()
    });
    let shown = arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string();
    let rows: Vec<&str> = shown.lines().filter(|line| line.contains("gpt@1")).collect();
    assert_eq!(rows.len(), 2, "{shown}");
    for part in ["| 1 ", "| hang ", "| error ", "| 100 ", "| 7 ", "all_reduce for 60 s", r#"{"seconds":60}"#] {
        assert!(rows[0].contains(part), "{part} in {shown}");
    }
    assert!(rows[1].contains("| 2 ") && rows[1].contains("| slow "), "{shown}");
}

/// What an agent does on a new connection.
fn resend(world: &mut World, number: usize, sender: &mut Sender, acknowledged: u64) {
    sender.acknowledged = sender.acknowledged.max(acknowledged);
    let mut recorded = 0;
    for (seq, batch) in &sender.batches {
        recorded += u64::from(batch.1);
        if *seq > acknowledged {
            world.send(number, *seq, *batch, recorded);
        }
    }
}

/// Half a record at the end of the newest file of the journal, and a half file beside the others.
fn tear(directory: &Path, torn: u8) {
    use std::io::Write;
    let files = std::fs::read_dir(journal::directory(directory)).unwrap();
    let newest = files.map(|file| file.unwrap().path()).max().unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(newest).unwrap();
    file.write_all(&vec![torn; usize::from(torn)]).unwrap();
    let table = directory.join("python.steps");
    std::fs::create_dir_all(&table).unwrap();
    std::fs::write(table.join(".99999999.parquet.writing"), "half").unwrap();
}

fn step(step: i64) -> steps::Row {
    steps::Row {
        step,
        ts: Time(step),
        duration: 1.0,
        data_time: 0.0,
        forward_time: 0.0,
        backward_time: 0.0,
        optimizer_time: 0.0,
        comm_time: 0.0,
        other_time: 1.0,
        clock: Text(0),
        micro_steps: 1,
        samples: None,
        max_allocated: None,
        detail: true,
    }
}
