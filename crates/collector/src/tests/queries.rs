//! What a query holds of the store while it runs.

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::TryStreamExt;
use probe_query::QueryEngine;

use super::World;

#[test]
fn a_query_keeps_no_memory_that_the_store_gives_up() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::start(directory.path());
    world.connect(1);
    let mut next = 0;
    let mut grow = |world: &mut World| {
        let first = next * 30;
        next += 1;
        world.send(0, next as u64, (first, 30), next as u64 * 30);
        world.begun.store.keep_up(true).unwrap();
    };
    // Each segment is a file, and in memory too.
    (0..4).for_each(|_| grow(&mut world));
    let engine = QueryEngine::new(Arc::clone(&world.begun.store), Vec::new()).unwrap();
    let tables = engine.catalog(None).schema("python").unwrap();
    let session = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    let mut rows = runtime.block_on(async {
        let table = tables.table("steps").await.unwrap().unwrap();
        session.read_table(table).unwrap().select_columns(&["step"]).unwrap().execute_stream().await.unwrap()
    });
    let mut seen = Vec::new();
    let mut take = |batch: RecordBatch| seen.extend(batch.column(0).as_primitive::<Int64Type>().values().to_vec());
    take(runtime.block_on(rows.try_next()).unwrap().unwrap());

    let store = Arc::clone(&world.begun.store);
    let in_memory = || {
        let snapshots = store.snapshot();
        let segments = snapshots.iter().flat_map(|table| table.segments());
        segments.map(|segment| Arc::downgrade(&segment)).collect::<Vec<_>>()
    };
    let before = in_memory();
    assert_eq!(before.len(), 4);
    let mut sent = 0;
    while in_memory().iter().any(|now| before.iter().any(|old| old.ptr_eq(now))) {
        sent += 1;
        assert!(sent < 1000, "nothing leaves memory");
        grow(&mut world);
    }
    // The segment that is being read.
    assert_eq!(before.iter().filter(|segment| segment.upgrade().is_some()).count(), 1);

    while let Some(batch) = runtime.block_on(rows.try_next()).unwrap() {
        take(batch);
    }
    assert_eq!(seen, (0..120).collect::<Vec<i64>>());
}
