//! Where analysed rows wait for the uplink: a builder a table, the strings they use, and what was dropped.

use std::collections::BTreeMap;

use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{Row, Table};
use probe_proto::tables::TABLES;

/// Rows of every agent table on their way out. Owned by the background thread.
#[derive(Debug)]
pub struct Sink {
    /// Strings that rows refer to; ids stay what they are for the life of the agent.
    pub strings: StringTable,
    /// Place = place in `Hello.tables`, which is [`Sink::tables`].
    builders: Vec<(&'static Table, BatchBuilder, u64)>,
    /// Rows dropped by (table, reason) since the agent began.
    pub drops: BTreeMap<(&'static str, &'static str), u64>,
}

impl Default for Sink {
    fn default() -> Self {
        let tables = TABLES.iter().filter(|t| t.source == probe_proto::table::Source::Agent);
        Self {
            strings: StringTable::default(),
            builders: tables.map(|t| (*t, BatchBuilder::new(t), 0)).collect(),
            drops: BTreeMap::new(),
        }
    }
}

impl Sink {
    /// The tables rows may go to, in the order of `Hello.tables`.
    pub fn tables(&self) -> impl Iterator<Item = &'static Table> {
        self.builders.iter().map(|(table, ..)| *table)
    }

    /// Adds a row to its table.
    pub fn push<R: Row>(&mut self, row: R) {
        for (table, builder, recorded) in &mut self.builders {
            if std::ptr::eq(*table, R::TABLE) {
                builder.push(row);
                *recorded += 1;
            }
        }
    }

    /// Counts rows that could not be kept. `table` is `schema.name`.
    pub fn dropped(&mut self, table: &'static str, reason: &'static str, rows: u64) {
        *self.drops.entry((table, reason)).or_default() += rows;
    }

    /// Takes what is waiting: a batch a table that has rows, `table` and `recorded` filled in, `seq` left to the caller.
    pub fn take(&mut self) -> Vec<probe_proto::v1::Batch> {
        let waiting = self.builders.iter_mut().enumerate().filter(|(_, (_, builder, _))| builder.rows() > 0);
        waiting
            .map(|(place, (_, builder, recorded))| {
                let mut batch = builder.take();
                batch.table = place as u32;
                batch.recorded = *recorded;
                batch
            })
            .collect()
    }
}
