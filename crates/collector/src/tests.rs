//! A collector against a model: batches come in any order, again and again, over connections that break; segments are
//! sealed, written, merged, evicted; the disk takes nothing for a while; the collector is killed and goes on. Whatever
//! happens, each acknowledged batch is there once, or counted.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use probe_common::fault;
use probe_proto::encode::BatchBuilder;
use probe_proto::tables::steps;
use probe_proto::v1;
use probe_query::QueryEngine;
use probe_store::journal;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tokio::sync::mpsc;

use super::agent::Agent;
use super::agent::batches::RowDestination;
use super::collector::{OpenedStore, begin};
use super::hello::{AcceptedHello, understand};
use super::ingest::{AgentDestination, IngestSession};
use super::recovery;

pub(crate) mod agents;
mod disk;
mod queries;

/// An event of a test.
#[derive(Debug, Clone)]
enum Event {
    /// An agent sends its next batches, of this many rows each.
    Send { agent: usize, rows: Vec<u8> },
    /// An agent sends what is not acknowledged again, over a new connection.
    Reconnect { agent: usize },
    /// What was recorded so far is on disk, and agents are told.
    Sync,
    /// Segments are sealed and written, and files that are past the disk limit go.
    KeepUp,
    /// Files are merged; the collector may be killed before those that were are gone.
    Merge { kill: bool },
    /// The disk takes no journal, or no files, from here on.
    Disk { journal: bool, files: bool },
    /// The collector is killed and another one goes on; what the disk holds of the newest file's end is cut.
    Crash { torn: u8 },
}

fn event() -> impl Strategy<Value = Event> {
    let agent = 0..2_usize;
    prop_oneof![
        6 => (agent.clone(), prop::collection::vec(1..40_u8, 1..9)).prop_map(|(agent, rows)| Event::Send { agent, rows }),
        2 => agent.prop_map(|agent| Event::Reconnect { agent }),
        2 => Just(Event::Sync),
        3 => Just(Event::KeepUp),
        2 => any::<bool>().prop_map(|kill| Event::Merge { kill }),
        2 => any::<(bool, bool)>().prop_map(|(journal, files)| Event::Disk { journal, files }),
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
    /// Batches that are in memory only, because the disk took none: a kill may lose them.
    uncertain: BTreeSet<u64>,
    /// Batches that a kill may have lost.
    lossable: BTreeSet<u64>,
}

/// A run directory whose disk may fail.
struct Disk {
    directory: PathBuf,
    /// Whether the journal, and files, can't be written.
    broken: (bool, bool),
    /// Whether the journal was broken, and not everything that came since is on disk.
    ailing: bool,
}

impl Disk {
    fn breaks(&mut self, journal: bool, files: bool) {
        self.broken = (journal, files);
        self.ailing |= journal;
        fault::breaks(&journal::directory(&self.directory), journal);
        fault::breaks(&self.directory.join("python.steps"), files);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.breaks(false, false);
    }
}

/// The parts of a collector that keep rows.
struct World {
    begun: OpenedStore,
    agents: Vec<Connected>,
}

/// An agent's connection.
struct Connected {
    agent: Arc<Agent>,
    ingest: IngestSession,
}

impl Connected {
    fn send(&mut self, begun: &OpenedStore, batch: v1::Batch) {
        let mut to = AgentDestination { agent: &self.agent, keep: begun.keep() };
        self.ingest.batch(batch, &mut to).unwrap();
    }
}

impl OpenedStore {
    fn keep(&self) -> RowDestination<'_> {
        RowDestination { store: &self.store, journal: &self.journal }
    }
}

impl World {
    fn start(directory: &Path) -> Self {
        // Room for a few files, so that the oldest ones go; and for fewer rows in memory than may come at once. A quarter
        // of the journal's share is room for the largest batch and the next head.
        Self::start_with(directory, 90_000, 240_000)
    }

    fn start_with(directory: &Path, memory: usize, disk: u64) -> Self {
        fault::retry_at_once();
        let begun = begin(directory, &"gpt@1".into(), memory, disk).unwrap();
        Self { begun, agents: Vec::new() }
    }

    /// Connects every agent; returns the sequence number that each is told.
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
        self.greet(number, hello)
    }

    fn greet(&mut self, number: usize, hello: v1::Hello) -> u64 {
        let AcceptedHello { declaration, about, .. } =
            understand(hello.clone(), &"gpt@1".into(), &self.begun.store).unwrap();
        let registry = &self.begun.registry;
        let connection = registry.new_connection();
        // The agent does not read the acknowledgements.
        let (downlink, _frames) = mpsc::channel(1);
        let (instance, identity) = (&declaration.instance, Arc::clone(&declaration.identity));
        let (agent, acknowledged) = registry.connect(instance, identity, about, connection).unwrap();
        registry.welcome(&agent, connection, downlink, v1::Welcome::default()).unwrap();
        let done = agent.state().done_seq;
        let to = AgentDestination { agent: &agent, keep: self.begun.keep() };
        let mut ingest = IngestSession::open(connection, hello, declaration, done, &to);
        ingest.strings(v1::Strings { first: 0, values: vec!["host".into()] }, &to).unwrap();
        let connected = Connected { agent, ingest };
        match self.agents.get_mut(number) {
            Some(agent) => *agent = connected,
            None => self.agents.push(connected),
        }
        acknowledged
    }

    fn send(&mut self, number: usize, seq: u64, (first, rows): (i64, u8), recorded: u64) {
        let mut builder = BatchBuilder::new(&steps::TABLE);
        (0..i64::from(rows)).for_each(|row| builder.push(step(first + row)));
        let batch = v1::Batch { seq, recorded, ..builder.take() };
        self.agents[number].send(&self.begun, batch);
    }

    /// Whether the journal has room for more. A sender would wait for files to be written; here it writes them.
    fn has_room(&self) -> bool {
        if self.begun.journal.crowded() {
            let _ = self.begun.store.keep_up(false);
        }
        !self.begun.journal.crowded()
    }

    /// The newest sequence number that an agent need not keep any more.
    fn acknowledged(&self, number: usize) -> u64 {
        let position = self.begun.journal.durable().borrow().position;
        self.agents[number].agent.settled(position)
    }

    /// Ends the collector like a kill.
    fn kill(self) {
        let OpenedStore { journal, keeper, .. } = self.begun;
        // A kill stops all threads at one instant; here the one that writes files goes first.
        drop(keeper);
        journal.abandon();
    }

    /// Checks that recorded = stored + dropped + evicted, once no agent is connected and so nothing is in flight.
    fn check_books(&self, count: usize, runtime: &tokio::runtime::Runtime) {
        let OpenedStore { store, registry, log, events, queries, .. } = &self.begun;
        for Connected { agent, ingest } in &self.agents {
            registry.disconnect(agent, ingest.connection(), false);
        }
        let _still = store.hold_still();
        let system = recovery::system_tables(&"gpt@1".into(), registry, store, log, events, queries);
        let engine = QueryEngine::new(Arc::clone(store), system).unwrap();
        let sql = "SELECT CAST(rows_recorded - rows_stored - COALESCE(d.lost, 0) AS BIGINT) FROM probe.agents
                   LEFT JOIN (SELECT pid, SUM(rows) AS lost FROM probe.drops GROUP BY pid) d USING (pid)";
        let batches: Vec<RecordBatch> =
            runtime.block_on(async { engine.query(sql, None).await.unwrap().try_collect().await.unwrap() });
        let left: Vec<i64> =
            batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
        assert_eq!(left, vec![0; count], "recorded = stored + dropped + evicted");
    }

    /// Checks that every agent's rows are there once, in whole batches, or counted as lost.
    fn check(&self, senders: &[Sender], runtime: &tokio::runtime::Runtime) {
        let OpenedStore { store, registry, log, events, queries, .. } = &self.begun;
        let _still = store.hold_still();
        let system = recovery::system_tables(&"gpt@1".into(), registry, store, log, events, queries);
        let engine = QueryEngine::new(Arc::clone(store), system).unwrap();
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
            assert!(done >= sender.acknowledged || !sender.lossable.is_empty(), "{done} < {}", sender.acknowledged);
            let mut whole = 0;
            let (mut gone, mut lossable, mut ahead) = (0, 0, 0);
            for (seq, (first, rows)) in &sender.batches {
                let batch = *first..first + i64::from(*rows);
                let found = batch.clone().filter(|step| steps.contains(step)).count();
                assert!(found == 0 || found == usize::from(*rows), "a torn batch {seq}");
                let may_be_lost = sender.lossable.contains(seq);
                assert!(found == 0 || *seq <= done || may_be_lost, "batch {seq} is there before its time");
                whole += found;
                // The disk took files and no journal: the collector that goes on does not know that these had come.
                ahead += if *seq > done && may_be_lost { u64::from(*rows) } else { 0 };
                gone += if *seq <= done && found == 0 { u64::from(*rows) } else { 0 };
                lossable += if *seq <= done && found == 0 && may_be_lost { u64::from(*rows) } else { 0 };
            }
            assert_eq!(whole, steps.len(), "rows that nobody sent");
            let counted = |evicted: &str| {
                let sum =
                    format!("SELECT COALESCE(SUM(rows), 0) FROM probe.drops WHERE pid = {pid} AND reason {evicted}");
                rows(sum)[0] as u64
            };
            let (evicted, dropped) = (counted("= 'evicted'"), counted("<> 'evicted'"));
            // Exactly the rows that are gone are counted; where the disk had failed, rows that may be lost are not evicted.
            assert!(
                evicted + dropped <= gone + ahead && gone <= evicted + lossable,
                "{gone}: {evicted}, {dropped}, {lossable}"
            );
            assert!(dropped == 0 || lossable > 0, "{dropped} rows are lost that were on disk");
            let recorded = rows(format!("SELECT rows_recorded FROM probe.agents WHERE pid = {pid}"))[0] as u64;
            if ahead == 0 {
                let known = sender.batches.range(..=done).map(|(_, (_, rows))| u64::from(*rows)).sum::<u64>();
                assert_eq!(recorded, known, "recorded, by what has come");
                assert_eq!(recorded, there.len() as u64 + gone);
            }
            let stored = rows(format!("SELECT rows_stored FROM probe.agents WHERE pid = {pid}"));
            assert_eq!(stored, [there.len() as i64], "{:?}", rows("SELECT rows FROM probe.drops".into()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_acknowledged_batch_is_there_once_or_counted(events in prop::collection::vec(event(), 1..40)) {
        play(events)?;
    }
}

/// Plays the events, and checks the rows after every kill and at the end.
fn play(events: Vec<Event>) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut disk = Disk { directory: directory.path().to_owned(), broken: (false, false), ailing: false };
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
                    let recorded = sender.next_step as u64;
                    send(&mut world, &mut disk, agent, sender, seq, recorded);
                }
            }
            Event::Reconnect { agent } => {
                let last_seq = world.reconnect(agent);
                prop_assert!(last_seq >= senders[agent].acknowledged || !senders[agent].lossable.is_empty());
                resend(&mut world, &mut disk, agent, &mut senders[agent], last_seq);
            }
            Event::Sync => {
                let problem = world.begun.journal.sync();
                prop_assert!(problem.is_none() || disk.ailing);
                for (agent, sender) in senders.iter_mut().enumerate() {
                    sender.acknowledged = sender.acknowledged.max(world.acknowledged(agent));
                    prop_assert_eq!(sender.acknowledged, sender.batches.len() as u64);
                }
            }
            Event::KeepUp => {
                let problem = world.begun.journal.sync();
                let kept = world.begun.store.keep_up(true);
                prop_assert!(kept.is_ok() || disk.broken.1);
                if kept.is_ok() && problem.is_none() && disk.broken == (false, false) {
                    disk.ailing = false;
                    senders.iter_mut().for_each(|sender| sender.uncertain.clear());
                }
            }
            Event::Disk { journal, files } => {
                disk.breaks(journal, files);
                for sender in senders.iter_mut().filter(|_| journal) {
                    // A batch that is not known to be on disk by now may never be.
                    let later = sender.batches.range(sender.acknowledged + 1..).map(|(seq, _)| *seq);
                    sender.uncertain.extend(later);
                }
            }
            Event::Merge { kill: false } => {
                let merged = world.begun.store.merge_now(false);
                prop_assert!(merged.is_ok() || disk.broken.1);
            }
            Event::Merge { kill: true } | Event::Crash { .. } => {
                if let Event::Merge { .. } = event {
                    // The kill comes between the new file and the end of the old ones.
                    let merged = world.begun.store.merge_now(true);
                    prop_assert!(merged.is_ok() || disk.broken.1);
                }
                world.kill();
                for sender in &mut senders {
                    sender.lossable.append(&mut sender.uncertain);
                    if disk.ailing {
                        // Rows that were evicted meanwhile are gone, and their eviction was not written down either.
                        sender.lossable.extend(sender.batches.keys());
                    }
                }
                disk.breaks(false, false);
                disk.ailing = false;
                let torn = if let Event::Crash { torn } = event { torn } else { 0 };
                tear(directory.path(), torn);
                world = World::start(directory.path());
                let last_seqs = world.connect(senders.len());
                world.check(&senders, &runtime);
                for (agent, sender) in senders.iter_mut().enumerate() {
                    resend(&mut world, &mut disk, agent, sender, last_seqs[agent]);
                }
            }
        }
    }
    world.check(&senders, &runtime);
    world.check_books(senders.len(), &runtime);
    Ok(())
}

#[test]
fn events_outlive_the_collector_that_noticed_them() {
    use super::events::{RunEvent, Severity};
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::start(directory.path());
    world.connect(1);
    let identity = Arc::clone(&world.agents[0].agent.state().identity);
    let hang = RunEvent::new("hang", Severity::Error, "rank 1 has been in all_reduce for 60 s");
    world
        .begun
        .events
        .record(hang.of_process(&identity).at_step(7).with_details(&serde_json::json!({ "seconds": 60 })));
    assert_eq!(world.begun.journal.sync(), None);
    world.kill();
    // Once from the record, and once from the checkpoint that sums up the records.
    for _ in 0..2 {
        world = World::start(directory.path());
        world.kill();
    }
    world = World::start(directory.path());
    world.begun.events.record(RunEvent::new("slow", Severity::Warning, "slower"));
    let engine = QueryEngine::new(Arc::clone(&world.begun.store), vec![world.begun.events]).unwrap();
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

/// Sends a batch, as a session does: when the journal has room for it.
fn send(world: &mut World, disk: &mut Disk, number: usize, sender: &mut Sender, seq: u64, recorded: u64) {
    if !world.has_room() {
        // The journal is full, because no files can be written: as with a disk that takes no journal.
        disk.ailing = true;
        sender.uncertain.extend(sender.batches.range(sender.acknowledged + 1..).map(|(seq, _)| *seq));
    }
    if disk.ailing {
        sender.uncertain.insert(seq);
    }
    world.send(number, seq, sender.batches[&seq], recorded);
}

/// What an agent does on a new connection.
fn resend(world: &mut World, disk: &mut Disk, number: usize, sender: &mut Sender, acknowledged: u64) {
    sender.acknowledged = sender.acknowledged.max(acknowledged);
    let sent = sender.batches.iter().scan(0, |recorded, (seq, (_, rows))| {
        *recorded += u64::from(*rows);
        Some((*seq, *recorded))
    });
    // What was acknowledged is not kept, whatever became of it.
    let kept: Vec<(u64, u64)> = sent.filter(|(seq, _)| *seq > sender.acknowledged).collect();
    for (seq, recorded) in kept {
        send(world, disk, number, sender, seq, recorded);
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
    steps::Row::of_a_second(step)
}
