//! `probe.store`: rows and bytes of each table, in memory and on disk.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use probe_common::error::Result;
use probe_proto::encode::StringTable;
use probe_proto::table::{Table, TableSource};
use probe_proto::tables::store;

use super::store::Store;
use super::table::TableSnapshot;
use crate::record_batch_builder::RecordBatchBuilder;
use crate::system::SystemTable;

/// The name of the journal's row, and that of the strings that rows in memory refer to.
const JOURNAL: &str = "(journal)";
const TEXTS: &str = "(texts)";

/// The table `probe.store` of a store.
#[derive(Debug)]
pub struct StorageStats {
    store: Arc<Store>,
    run: Arc<str>,
}

impl StorageStats {
    /// The table of the run with this name.
    pub fn new(store: &Arc<Store>, run: &Arc<str>) -> Self {
        Self { store: Arc::clone(store), run: Arc::clone(run) }
    }
}

impl SystemTable for StorageStats {
    fn table(&self) -> &'static Table {
        &store::TABLE
    }

    fn rows(&self) -> Result<RecordBatch> {
        let mut builder = RecordBatchBuilder::new(&store::TABLE);
        let mut strings = StringTable::default();
        let mut evicted: HashMap<String, u64> = HashMap::new();
        for gone in self.store.evicted() {
            *evicted.entry(gone.table.full_name()).or_default() += gone.rows;
        }
        let run = strings.id(&self.run);
        let problem = self.store.problem().map(|problem| strings.id(&problem));
        for (table, snapshot) in self.store.tables().into_iter().zip(self.store.snapshot()) {
            if table.source == TableSource::Agent {
                let name = table.full_name();
                let evicted = evicted.get(&name).copied().unwrap_or(0);
                builder.push(store::Row { run, table_name: strings.id(&name), problem, ..row(&snapshot, evicted) });
            }
        }
        let no_rows = store::Row {
            run,
            rows: None,
            rows_in_memory: None,
            rows_growing: None,
            rows_on_disk: None,
            rows_evicted: None,
            problem,
            ..row(&TableSnapshot::default(), 0)
        };
        if let Some((bytes, files)) = self.store.journal_size() {
            let texts = whole(self.store.text_bytes() as u64);
            builder.push(store::Row { table_name: strings.id(TEXTS), bytes_in_memory: texts, ..no_rows });
            builder.push(store::Row {
                table_name: strings.id(JOURNAL),
                bytes_on_disk: whole(bytes),
                files: whole(files),
                ..no_rows
            });
        }
        builder.finish(&strings)
    }
}

/// The row of a table, without its names and problem.
fn row(table: &TableSnapshot, evicted: u64) -> store::Row {
    let rows = |rows: usize| Some(whole(rows as u64));
    let in_memory = || table.segments();
    let unloaded: usize = table.files.iter().map(|file| file.whole().rows).sum();
    let rows_in_memory = in_memory().map(|segment| segment.rows).sum();
    store::Row {
        run: probe_proto::table::Text(0),
        table_name: probe_proto::table::Text(0),
        rows: rows(unloaded + rows_in_memory),
        rows_in_memory: rows(rows_in_memory),
        bytes_in_memory: whole(in_memory().map(|segment| segment.bytes as u64).sum()),
        rows_growing: rows(table.active.iter().map(|segment| segment.rows).sum()),
        bytes_growing: whole(table.active.iter().map(|segment| segment.bytes as u64).sum()),
        rows_on_disk: rows(table.all_files().map(|file| file.whole().rows).sum()),
        bytes_on_disk: whole(table.all_files().map(|file| file.bytes).sum()),
        files: whole(table.all_files().count() as u64),
        rows_evicted: rows(evicted as usize),
        problem: None,
    }
}

/// A count in SQL's type.
fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
