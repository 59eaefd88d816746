//! What a run takes on disk: never more than its limit, nearly all of it files with rows, of which the oldest are deleted.

use std::time::{Duration, Instant};

use probe_common::fault::DiskFault;
use probe_proto::table::{Text, Time};
use probe_proto::tables::metrics;

use super::*;
use crate::server::peer::AuditedCaller;

/// A process with rows of two tables: one that gets many, and one that gets few.
struct Fast {
    world: World,
    seq: u64,
    sent: (i64, i64),
    quiet: u64,
    random: u64,
}

impl Fast {
    fn start(directory: &Path, disk: u64) -> Self {
        let mut world = World::start_with(directory, 64 << 20, disk);
        let hello = v1::Hello {
            protocol: probe_proto::PROTOCOL,
            instance: "fast".into(),
            pid: 100,
            tables: vec![steps::TABLE.wire_schema(), metrics::TABLE.wire_schema()],
            ..v1::Hello::default()
        };
        world.greet(0, hello);
        Self { world, seq: 0, sent: (0, 0), quiet: 0, random: 1 }
    }

    /// Times that no encoding makes smaller.
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random as f64
    }

    /// Sends `rows` more steps, and waits where there is no room.
    async fn steps(&mut self, rows: i64) {
        let OpenedStore { store, journal, .. } = &self.world.begun;
        store.wait_for_room().await;
        // Waits for the journal to shrink, which it does when files are written, however slow the machine is.
        while journal.crowded() && store.problem().is_none() {
            store.wait_for_room().await;
        }
        let mut builder = BatchBuilder::new(&steps::TABLE);
        for row in 0..rows {
            let mut times = || self.random();
            let row =
                steps::Row { duration: times(), data_time: times(), forward_time: times(), ..step(self.sent.0 + row) };
            let row = steps::Row { backward_time: self.random(), optimizer_time: self.random(), ..row };
            builder.push(steps::Row { comm_time: self.random(), other_time: self.random(), ..row });
        }
        self.sent.0 += rows;
        self.seq += 1;
        let batch = v1::Batch { seq: self.seq, recorded: self.sent.0 as u64, table: 0, ..builder.take() };
        self.put(batch);
    }

    fn metric(&mut self) {
        let mut builder = BatchBuilder::new(&metrics::TABLE);
        let row = metrics::Row { step: self.sent.1, ts: Time(0), name: Text(0), value: Some(1.0), reason: None };
        builder.push(row);
        self.sent.1 += 1;
        self.quiet += 1;
        self.seq += 1;
        let batch = v1::Batch { seq: self.seq, recorded: self.quiet, table: 1, ..builder.take() };
        self.put(batch);
    }

    fn put(&mut self, batch: v1::Batch) {
        let World { begun, agents } = &mut self.world;
        agents[0].send(begun, batch);
    }

    fn count(&self, runtime: &tokio::runtime::Runtime, sql: &str) -> i64 {
        let OpenedStore { store, registry, log, events, queries, .. } = &self.world.begun;
        let system = recovery::system_tables(&"gpt@1".into(), registry, store, log, events, queries);
        let engine = QueryEngine::new(Arc::clone(store), system).unwrap();
        let batches: Vec<RecordBatch> =
            runtime.block_on(async { engine.query(sql, None).await.unwrap().try_collect().await.unwrap() });
        batches[0].column(0).as_primitive::<Int64Type>().value(0)
    }
}

/// Bytes of all files below a directory whose names have this ending. Files that are deleted meanwhile do not count.
fn on_disk(directory: &Path, ending: &str) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let size = |path: PathBuf| match std::fs::metadata(&path) {
        Ok(found) if found.is_dir() => on_disk(&path, ending),
        Ok(found) if path.to_string_lossy().ends_with(ending) => found.len(),
        _ => 0,
    };
    entries.filter_map(|entry| Some(size(entry.ok()?.path()))).sum()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn wait(what: &str, until: impl Fn() -> bool) {
    let since = Instant::now();
    while !until() {
        assert!(since.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_fast_table_beside_a_quiet_one_fills_the_disk_with_files() {
    const DISK: u64 = 2 << 20;
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut fast = Fast::start(directory.path(), DISK);
    let mut least = DISK;
    fast.metric();
    for batch in 0..400 {
        runtime.block_on(fast.steps(250));
        if batch % 100 == 50 {
            fast.metric();
        }
        let all = on_disk(directory.path(), "");
        assert!(all <= DISK, "{all} bytes after batch {batch}");
        if batch >= 200 {
            // More has been sent by now than there is room for.
            least = least.min(on_disk(directory.path(), ".parquet"));
        }
    }
    assert!(least >= DISK / 10 * 8, "only {least} bytes are files with rows");
    assert_eq!(fast.world.begun.store.problem(), None);
    let (stored, newest) = ("SELECT COUNT(*) FROM python.steps", "SELECT MAX(step) FROM python.steps");
    let evicted =
        "SELECT CAST(SUM(rows) AS BIGINT) FROM probe.drops WHERE reason = 'evicted' AND table_name = 'python.steps'";
    let _still = fast.world.begun.store.hold_still();
    let (stored, evicted) = (fast.count(&runtime, stored), fast.count(&runtime, evicted));
    assert_eq!((stored + evicted, fast.count(&runtime, newest)), (fast.sent.0, fast.sent.0 - 1));
    assert!(evicted > 0);
    // The oldest rows are gone, and the newest are there.
    assert_eq!(fast.count(&runtime, "SELECT MIN(step) FROM python.steps"), evicted);
}

#[test]
fn a_quiet_table_does_not_keep_the_journal() {
    const DISK: u64 = 2 << 20;
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut fast = Fast::start(directory.path(), DISK);
    fast.metric();
    for batch in 0..100 {
        runtime.block_on(fast.steps(100));
        fast.world.begun.journal.sync();
        fast.world.begun.store.keep_up(false).unwrap();
        let (bytes, _) = fast.world.begun.journal.disk_usage();
        assert!(bytes < DISK / 20, "{bytes} bytes after batch {batch}");
    }
    assert_eq!(fast.count(&runtime, "SELECT COUNT(*) FROM python.metrics"), 1);
}

#[test]
fn what_goes_is_what_has_no_new_rows() {
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut fast = Fast::start(directory.path(), 2 << 20);
    let store = Arc::clone(&fast.world.begun.store);
    // The quiet table's files become one, which begins before all files of the other and ends after many of them.
    fast.metric();
    store.keep_up(true).unwrap();
    for _ in 0..30 {
        runtime.block_on(fast.steps(250));
        store.keep_up(true).unwrap();
    }
    for _ in 0..7 {
        fast.metric();
        store.keep_up(true).unwrap();
    }
    let files = std::fs::read_dir(directory.path().join("python.metrics")).unwrap().count();
    assert_eq!((files, store.evicted().len()), (1, 0));
    while store.evicted().is_empty() {
        runtime.block_on(fast.steps(250));
    }
    let evicted: Vec<_> = store.evicted().iter().map(|evicted| evicted.table.full_name()).collect();
    assert_eq!(evicted, ["python.steps"]);
}

#[test]
fn a_disk_that_has_become_smaller_is_kept_to_from_the_start() {
    const DISK: u64 = 2 << 20;
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut fast = Fast::start(directory.path(), 1 << 30);
    // No segment is full, so that none becomes a file.
    fast.world.begun.store.limit_memory(1 << 30);
    for _ in 0..100 {
        runtime.block_on(fast.steps(500));
    }
    fast.world.begun.journal.sync();
    fast.world.kill();
    assert!(on_disk(directory.path(), ".log") > DISK, "all of it is in the journal");
    let world = World::start_with(directory.path(), 64 << 20, DISK);
    let all = on_disk(directory.path(), "");
    assert!((DISK / 10 * 8..=DISK).contains(&all), "{all} bytes");
    assert_eq!(world.begun.store.problem(), None);
    let evicted: u64 = world.begun.store.evicted().iter().map(|evicted| evicted.rows).sum();
    let steps = world.begun.store.snapshot();
    let stored: usize = steps.iter().flat_map(|table| table.all_files()).map(|file| file.whole().rows).sum();
    assert_eq!(stored as u64 + evicted, 50_000);
}

#[test]
fn the_end_of_a_run_that_did_not_end_is_not_there_twice() {
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut fast = Fast::start(directory.path(), 64 << 20);
    let pending = vec![v1::PendingOperation { seq: 3, operation_type: "all_reduce".into(), ..Default::default() }];
    let status = v1::Status {
        groups: vec![v1::GroupState { name: "0".into(), size: 2, issued: 3, pending, ..Default::default() }],
        ..Default::default()
    };
    let Connected { agent, ingest } = &mut fast.world.agents[0];
    agent.report(status.clone());
    let OpenedStore { store, registry, log, events, queries, journal, .. } = &fast.world.begun;
    ingest.status(status, journal);
    assert_eq!(journal.sync(), None);
    let system = recovery::system_tables(&"gpt@1".into(), registry, store, log, events, queries);
    probe_store::write_system(directory.path(), &store.tables(), &system).unwrap();
    assert!(directory.path().join("python.nccl_trace/end.parquet").exists());
    fast.world.kill();
    let world = World::start_with(directory.path(), 64 << 20, 64 << 20);
    let fast = Fast { world, ..Fast::start(tempfile::tempdir().unwrap().path(), 64 << 20) };
    assert_eq!(fast.count(&runtime, "SELECT COUNT(*) FROM python.nccl_trace"), 1);
    assert!(!directory.path().join("python.nccl_trace/end.parquet").exists());
}

#[test]
fn where_no_files_can_be_written_the_journal_keeps_to_its_share() {
    const DISK: u64 = 2 << 20;
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut fast = Fast::start(directory.path(), DISK);
    let steps = directory.path().join("python.steps");
    fault::breaks(&steps, true);
    for batch in 0..100 {
        runtime.block_on(fast.steps(100));
        fast.world.begun.journal.sync();
        let all = on_disk(directory.path(), "");
        assert!(all <= DISK / 10 + DISK / 64, "{all} bytes after batch {batch}, and the reserve is a 64th");
    }
    let problem = fast.world.begun.store.problem().unwrap();
    fault::breaks(&steps, false);
    assert!(problem.contains("share") || problem.contains("no space"), "{problem}");
    // All rows that the journal did not take are in files as soon as these can be written.
    let store = Arc::clone(&fast.world.begun.store);
    wait("rows stay in memory only", || {
        store.snapshot().iter().all(|table| table.unflushed().next().is_none()) && store.problem().is_none()
    });
    assert_eq!(fast.count(&runtime, "SELECT COUNT(*) FROM python.steps"), 10_000);
    drop(fast);
    let world = World::start_with(directory.path(), 64 << 20, DISK);
    let fast = Fast { world, seq: 0, sent: (0, 0), quiet: 0, random: 1 };
    assert_eq!(fast.count(&runtime, "SELECT COUNT(*) FROM python.steps"), 10_000);
}

#[test]
fn what_a_journal_missed_for_a_moment_is_in_files_soon() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::start_with(directory.path(), 64 << 20, 64 << 20);
    world.connect(1);
    let journal = Arc::clone(&world.begun.journal);
    fault::breaks(&journal::directory(directory.path()), true);
    world.send(0, 1, (0, 30), 30);
    assert!(journal.sync().is_some());
    let store = Arc::clone(&world.begun.store);
    let unflushed = || store.snapshot().iter().flat_map(|table| table.unflushed()).collect::<Vec<_>>();
    let missed = unflushed().iter().map(|segment| segment.newest).max().unwrap();
    fault::breaks(&journal::directory(directory.path()), false);
    world.send(0, 2, (30, 30), 60);
    assert_eq!(journal.sync(), None);
    // The disk was not checked while it failed.
    store.wake_writer();
    // If the disk was checked before the second batch, that one is in the journal and need not be in a file yet.
    wait("what the journal has not is in no file", || unflushed().iter().all(|segment| segment.id > missed));
}

#[test]
fn rows_of_a_file_whose_name_does_not_come_on_disk_are_there_once() {
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut fast = Fast::start(directory.path(), 64 << 20);
    let count = |fast: &Fast| fast.count(&runtime, "SELECT COUNT(*) FROM python.steps");
    let steps = directory.path().join("python.steps");
    runtime.block_on(fast.steps(30));
    std::fs::create_dir(&steps).unwrap();
    fault::set(&steps, DiskFault::Names, true);
    for _ in 0..3 {
        assert!(fast.world.begun.store.keep_up(true).is_err());
        assert_eq!((count(&fast), on_disk(&steps, "")), (30, 0));
    }
    fault::set(&steps, DiskFault::Names, false);
    fast.world.begun.store.keep_up(true).unwrap();
    assert_eq!((count(&fast), std::fs::read_dir(&steps).unwrap().count()), (30, 1));
    fast.world.kill();
    let world = World::start_with(directory.path(), 64 << 20, 64 << 20);
    assert_eq!(count(&Fast { world, ..Fast::start(tempfile::tempdir().unwrap().path(), 64 << 20) }), 30);
}

#[test]
fn threads_that_panic_are_told_of_and_go_on() {
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut world = World::start_with(directory.path(), 64 << 20, 64 << 20);
    world.connect(1);
    let problems = |world: &World| {
        let OpenedStore { store, registry, log, events, queries, .. } = &world.begun;
        let system = recovery::system_tables(&"gpt@1".into(), registry, store, log, events, queries);
        let engine = QueryEngine::new(Arc::clone(store), system).unwrap();
        let batches: Vec<RecordBatch> = runtime.block_on(async {
            let sql = "SELECT COALESCE(problem, 'none') FROM probe.agents";
            engine.query(sql, None).await.unwrap().try_collect().await.unwrap()
        });
        arrow::util::display::array_value_to_string(batches[0].column(0), 0).unwrap()
    };
    let (journal, store) = (Arc::clone(&world.begun.journal), Arc::clone(&world.begun.store));
    let at = journal::directory(directory.path());
    fault::set(&at, DiskFault::Panic, true);
    world.send(0, 1, (0, 30), 30);
    let problem = journal.sync().unwrap();
    assert!(problem.contains("panicked: this test has it so"), "{problem}");
    assert_eq!(problems(&world), "rows are in memory only: its thread panicked: this test has it so");

    // Before the journal goes on, since the rows that it missed are written to files at once.
    let steps = directory.path().join("python.steps");
    fault::set(&steps, DiskFault::Panic, true);
    fault::set(&at, DiskFault::Panic, false);
    world.send(0, 2, (30, 30), 60);
    assert_eq!(journal.sync(), None);
    store.wake_writer();
    wait("nothing is said of a panic", || store.problem().is_some_and(|problem| problem.contains("panicked")));
    assert_eq!(problems(&world), "rows are in memory only: its thread panicked: this test has it so");
    fault::set(&steps, DiskFault::Panic, false);
    wait("the thread that writes files is gone", || {
        store.problem().is_none() && store.snapshot().iter().all(|table| table.unflushed().next().is_none())
    });
    assert_eq!(
        store.snapshot().iter().flat_map(|table| table.all_files()).map(|file| file.whole().rows).sum::<usize>(),
        60
    );
    assert_eq!(problems(&world), "none");
}

#[test]
fn no_question_costs_a_row() {
    const DISK: u64 = 2 << 20;
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut fast = Fast::start(directory.path(), DISK);
    for _ in 0..60 {
        runtime.block_on(fast.steps(200));
    }
    // One more row, so that there always are rows that only the journal has.
    fast.metric();
    let OpenedStore { queries, log, events, store, journal, .. } = &fast.world.begun;
    let asker = AuditedCaller { who: "token:a".into(), peer: None };
    let text = "x".repeat(60 << 10);
    let call = v1::EvalCall { code: text.clone(), ..v1::EvalCall::default() };
    for number in 0..40 {
        queries.failed(&asker, &text, None, &probe_common::error::Error::usage("no"));
        log.refuse(&asker, &call, "no");
        let details = serde_json::json!({ "text": &text });
        events.record(
            super::super::events::RunEvent::new("a", super::super::events::Severity::Info, "b").with_details(&details),
        );
        let status = v1::Status { problem: format!("{number} {text}"), ..v1::Status::default() };
        fast.world.agents[0].ingest.status(status, journal);
        journal.sync();
        let all = on_disk(directory.path(), "");
        assert!(all <= DISK, "{all} bytes");
    }
    assert!(store.evicted().is_empty(), "{:?}", store.evicted());
    assert_eq!(fast.count(&runtime, "SELECT COUNT(*) FROM python.steps"), 12_000);
}

#[test]
fn a_failing_query_is_written_down_once() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::start_with(directory.path(), 64 << 20, 1 << 30);
    let before = world.begun.journal.disk_usage().0;
    let asker = AuditedCaller { who: "token:a".into(), peer: None };
    let text = "x".repeat(60 << 10);
    world.begun.queries.failed(&asker, &text, None, &probe_common::error::Error::usage("no"));
    world.begun.queries.begin(&asker, &text, None).finish(None);
    assert_eq!(world.begun.journal.sync(), None);
    let more = world.begun.journal.disk_usage().0 - before;
    assert!(more < 2 * (60 << 10) + 2000, "{more}");
    // Rows that were not sent again are there all the same when another collector goes on.
    world.kill();
    let world = World::start_with(directory.path(), 64 << 20, 1 << 30);
    let rows = probe_store::SystemTable::rows(&*world.begun.queries).unwrap();
    assert_eq!(rows.num_rows(), 2);
    assert!(rows["sql"].as_string_view().iter().all(|sql| sql == Some(&text)));
    let engine = QueryEngine::new(Arc::clone(&world.begun.store), vec![Arc::clone(&world.begun.queries) as _]).unwrap();
    let batches: Vec<RecordBatch> = runtime().block_on(async {
        let sql = "SELECT CAST(SUM(length(sql)) AS BIGINT) FROM probe.queries WHERE status IN ('ok', 'error')";
        engine.query(sql, None).await.unwrap().try_collect().await.unwrap()
    });
    assert_eq!(batches[0].column(0).as_primitive::<Int64Type>().value(0), 2 * (60 << 10));
}

#[test]
fn a_query_that_holds_what_had_to_go_says_so() {
    use datafusion::prelude::{SessionConfig, SessionContext};
    const DISK: u64 = 1 << 20;
    let (runtime, directory) = (runtime(), tempfile::tempdir().unwrap());
    let mut fast = Fast::start(directory.path(), DISK);
    fast.world.begun.store.limit_memory(100_000);
    for _ in 0..50 {
        runtime.block_on(fast.steps(200));
    }
    let store = Arc::clone(&fast.world.begun.store);
    // Nothing goes between the question and its first rows.
    let still = store.hold_still();
    let engine = QueryEngine::new(Arc::clone(&store), Vec::new()).unwrap();
    let tables = engine.catalog(None).schema("python").unwrap();
    let session = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    let mut rows = runtime.block_on(async {
        let table = tables.table("steps").await.unwrap().unwrap();
        session
            .read_table(table)
            .unwrap()
            .select_columns(&["step", "duration"])
            .unwrap()
            .execute_stream()
            .await
            .unwrap()
    });
    assert!(runtime.block_on(rows.try_next()).unwrap().is_some());
    drop(still);
    for batch in 0..100 {
        runtime.block_on(fast.steps(200));
        let all = on_disk(directory.path(), "");
        assert!(all <= DISK, "{all} bytes after batch {batch}");
    }
    let error = loop {
        match runtime.block_on(rows.try_next()) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("rows that had gone were read"),
            Err(error) => break probe_query::from_datafusion(&error),
        }
    };
    assert!(error.to_string().contains("had to go") && error.hint_text().is_some(), "{error}");
}
