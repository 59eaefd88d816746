//! Rows that come in bulk into a live run: each batch is a file at once, and in memory as if it had been flushed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use probe_common::durable;
use probe_common::error::{Error, Result};
use probe_common::paths::named;
use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::Table;

use super::file_names::table_directory;
use super::file_writer::write_file;
use super::identity::{Identity, Origin};
use super::row_files::{RowSink, decode};
use super::segment::Segment;
use super::store::Store;

/// Takes rows into the files of a store that keeps its rows.
#[derive(Debug)]
pub struct LiveFiles {
    store: Arc<Store>,
    instance: Arc<str>,
    number: u64,
}

impl LiveFiles {
    /// `instance` stands for the agent that the rows have not; it is another one each time.
    pub fn new(store: Arc<Store>, instance: &str) -> Self {
        Self { store, instance: instance.into(), number: 0 }
    }
}

impl RowSink for LiveFiles {
    fn write(
        &mut self,
        identity: &Arc<Identity>,
        table: &'static Table,
        builder: &mut BatchBuilder,
        strings: &StringTable,
    ) -> Result<()> {
        let store = &self.store;
        let Some(rows) = decode(table, builder, strings)? else { return Ok(()) };
        let (Some(kept), Some(place)) = (store.kept.get(), store.declared.place(table)) else {
            return Err(Error::failed(format!("{} is not kept here", table.full_name())));
        };
        self.number += 1;
        let origin = Origin::batch(&self.instance, self.number);
        let _alone = kept.round.lock().unwrap_or_else(PoisonError::into_inner);
        rows.strings.count(&store.counters.texts);
        let number = store.counters.appends.fetch_add(1, Ordering::Relaxed);
        let segment = Arc::new(Segment::new(Some(Arc::clone(identity)), Some(origin), rows, number));
        let directory = table_directory(&kept.directory, table);
        durable::create_directory(&directory).map_err(|error| named(&directory, error))?;
        let name = format!("{:08}.parquet", kept.number.fetch_add(1, Ordering::Relaxed));
        let room = |bytes| {
            kept.unfinished.store(bytes, Ordering::Relaxed);
            store.make_room(kept, 0);
        };
        let written = write_file(&directory, &name, table, &[Arc::clone(&segment)], &room);
        kept.unfinished.store(0, Ordering::Relaxed);
        store.tables[place].take_in(segment, Arc::new(written?), &store.counters);
        store.unload();
        Ok(())
    }
}
