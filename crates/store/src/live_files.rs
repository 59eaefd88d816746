//! Rows that come in bulk into a live run: each batch is written to a file at once, and is in memory like a flushed one.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use probe_common::durable;
use probe_common::error::{Error, Result};
use probe_common::paths::io_error_at;
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Table;

use super::file_names::table_directory;
use super::file_writer::write_file;
use super::identity::{BatchOrigin, ProcessIdentity};
use super::row_files::{RowSink, decode};
use super::segment::Segment;
use super::store::Store;

/// Writes rows to the files of a store that keeps its rows.
#[derive(Debug)]
pub struct LiveFiles {
    store: Arc<Store>,
    instance: Arc<str>,
    number: u64,
}

impl LiveFiles {
    /// A sink for `store`. The rows have no agent: `instance` stands for it, and has to be a new one each time.
    pub fn new(store: Arc<Store>, instance: &str) -> Self {
        Self { store, instance: instance.into(), number: 0 }
    }
}

impl RowSink for LiveFiles {
    fn write(
        &mut self,
        identity: &Arc<ProcessIdentity>,
        table: &'static Table,
        builder: &mut BatchBuilder,
        strings: &StringTable,
    ) -> Result<()> {
        let store = &self.store;
        let Some(rows) = decode(table, builder, strings)? else { return Ok(()) };
        let (Some(disk), Some(index)) = (store.disk.get(), store.declared.index_of(table)) else {
            return Err(Error::failed(format!("{} is not kept here", table.full_name())));
        };
        self.number += 1;
        let origin = BatchOrigin::batch(&self.instance, self.number);
        let _alone = disk.round.lock().unwrap_or_else(PoisonError::into_inner);
        rows.strings.count(&store.counters.texts);
        let number = store.counters.appends.fetch_add(1, Ordering::Relaxed);
        let segment = Arc::new(Segment::new(Some(Arc::clone(identity)), Some(origin), rows, number));
        let directory = table_directory(&disk.directory, table);
        durable::create_directory(&directory).map_err(|error| io_error_at(&directory, error))?;
        let name = format!("{:08}.parquet", disk.number.fetch_add(1, Ordering::Relaxed));
        let room = |bytes| {
            disk.unfinished.store(bytes, Ordering::Relaxed);
            store.make_room(disk, 0);
        };
        let written = write_file(&directory, &name, table, &[Arc::clone(&segment)], &room);
        disk.unfinished.store(0, Ordering::Relaxed);
        store.tables[index].take_in(segment, Arc::new(written?), &store.counters);
        store.unload();
        Ok(())
    }
}
