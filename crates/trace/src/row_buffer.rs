//! Analysed rows that wait for the uplink: a builder for each table, the strings they use, and counts of dropped rows.
//!
//! Intervals of a step are held until the step's own row is there, so that a query sees all of a step or none of it: half a
//! step looks like one without a backward pass. A step that takes very long, or never ends (inference), is shown as far as it
//! has come.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{Row, Table, Text};
use probe_proto::tables::{TABLES, steps, torch_trace};

use crate::custom::{CustomRow, CustomValue};
use crate::persist::{Persist, PersistedBytes};

/// The longest time for which intervals are held.
const MAX_HOLD: Duration = Duration::from_secs(10);

/// The largest number of different texts in the program's own tables, and of their bytes.
const MAX_TEXTS: usize = 1 << 18;
const MAX_TEXT_BYTES: usize = 16 << 20;

/// The largest number of different shapes of inputs in rows. They share the connection's string table with all other rows,
/// which could not be recorded any more if it were full because each batch has another size.
const MAX_SHAPES: usize = 1 << 16;

/// The largest number of different files that checkpoints are written to: names may have the step in them.
const MAX_PATHS: usize = 1 << 12;

/// Counts by name: rows recorded, and rows dropped by table and reason.
#[derive(Debug, Default)]
pub struct RowCounts {
    /// Rows recorded by table, dropped ones included.
    pub recorded: Vec<(String, u64)>,
    /// Rows dropped by table and reason, as in [`RowBuffer::drops`].
    pub dropped: Vec<((String, String), u64)>,
}

/// Rows of every agent table on their way out. Owned by the background thread.
#[derive(Debug)]
pub struct RowBuffer {
    /// Strings that rows refer to. An id does not change in the life of the agent.
    pub strings: StringTable,
    /// Tables with their rows and the number of rows recorded, in the order of `Hello.tables` ([`RowBuffer::tables`]).
    builders: Vec<(&'static Table, BatchBuilder, u64)>,
    /// Number of texts of the program's tables, and their bytes.
    texts: (usize, usize),
    /// Number of different shapes of inputs.
    shapes: usize,
    /// Number of different files of checkpoints.
    paths: usize,
    /// Intervals of the current step, and since when there are some.
    held: BatchBuilder,
    held_since: Option<Instant>,
    /// Number of intervals that were released or forgotten.
    released: u64,
    /// The stages validation and forward, in a process that has not trained yet: its validation is forward if it never trains.
    pub(crate) quiet: Option<(Text, Text)>,
    /// Rows dropped by (table, reason) since the agent began.
    pub drops: BTreeMap<(&'static str, &'static str), u64>,
    /// How far this process is on each process group, for the next report.
    pub groups: Vec<probe_proto::v1::GroupState>,
    /// When the newest record was made (ns since 1970); 0 before the first.
    pub last_record_ns: i64,
    /// Whether a thread was validating when the newest record was made.
    pub validates: bool,
}

impl Default for RowBuffer {
    fn default() -> Self {
        let tables = TABLES.iter().filter(|t| t.source == probe_proto::table::TableSource::Agent);
        Self {
            strings: StringTable::default(),
            builders: tables.map(|t| (*t, BatchBuilder::new(t), 0)).collect(),
            texts: (0, 0),
            shapes: 0,
            paths: 0,
            held: BatchBuilder::new(&torch_trace::TABLE),
            held_since: None,
            released: 0,
            quiet: None,
            drops: BTreeMap::new(),
            groups: Vec::new(),
            last_record_ns: 0,
            validates: false,
        }
    }
}

impl RowBuffer {
    /// The tables of rows, in the order of `Hello.tables`.
    pub fn tables(&self) -> impl Iterator<Item = &'static Table> {
        self.builders.iter().map(|(table, ..)| *table)
    }

    /// Adds a row to its table.
    pub fn push<R: Row>(&mut self, row: R) {
        if std::ptr::eq(R::TABLE, &raw const torch_trace::TABLE) {
            self.held.push(row);
            self.held_since.get_or_insert_with(Instant::now);
            return;
        }
        if std::ptr::eq(R::TABLE, &raw const steps::TABLE) {
            self.release();
        }
        for (table, builder, recorded) in &mut self.builders {
            if std::ptr::eq(*table, R::TABLE) {
                builder.push(row);
                *recorded += 1;
            }
        }
    }

    /// The index of a table of the program. A new table is added at the end.
    pub fn index_of(&mut self, table: &'static Table) -> usize {
        let known = self.builders.iter().position(|(known, ..)| std::ptr::eq(*known, table));
        known.unwrap_or_else(|| {
            self.builders.push((table, BatchBuilder::new(table), 0));
            self.builders.len() - 1
        })
    }

    /// Adds a row to the table of the program with this index, called `name`. Texts of all such tables are bounded together:
    /// they share the connection's string table with our own tables, which could not record any more if it were full.
    pub fn push_values(&mut self, index: usize, name: &'static str, row: &CustomRow) {
        let mut ids = Vec::with_capacity(row.values.len());
        for value in &row.values {
            let CustomValue::Text(text) = value else { continue };
            let before = self.strings.len();
            let full = self.texts.0 >= MAX_TEXTS || self.texts.1 + text.len() > MAX_TEXT_BYTES;
            if full && !self.strings.has(text) {
                return self.dropped(name, "too many different texts", 1);
            }
            ids.push(self.strings.id(text));
            if self.strings.len() > before {
                self.texts = (self.texts.0 + 1, self.texts.1 + text.len());
            }
        }
        let Some((_, builder, recorded)) = self.builders.get_mut(index) else { return };
        *recorded += 1;
        let mut ids = ids.into_iter();
        builder.push_with(|columns| {
            let Some(([step, ts], own)) = columns.split_first_chunk_mut() else { return };
            step.put_int(row.step);
            ts.put_int(row.unix_ns);
            for (column, value) in own.iter_mut().zip(&row.values) {
                match value {
                    CustomValue::Null => column.put_null(),
                    CustomValue::Int(number) => column.put_int(*number),
                    CustomValue::Float(number) => column.put_float(*number),
                    CustomValue::Text(_) => match ids.next() {
                        Some(id) => column.put_int(i64::from(id.0)),
                        None => column.put_null(),
                    },
                }
            }
        });
    }

    /// The id of a shape of an input; None for a new one where there are too many.
    pub(crate) fn shape(&mut self, text: &str) -> Option<Text> {
        bounded(&mut self.strings, &mut self.shapes, MAX_SHAPES, text)
    }

    /// The id of the name of a file that a checkpoint is written to; None for a new one where there are too many.
    pub(crate) fn path(&mut self, text: &str) -> Option<Text> {
        bounded(&mut self.strings, &mut self.paths, MAX_PATHS, text)
    }

    /// Forgets intervals that are held, because their step gets no row.
    pub fn forget_held(&mut self) {
        self.released += self.held.rows() as u64;
        self.held = BatchBuilder::new(&torch_trace::TABLE);
        self.held_since = None;
    }

    /// Number of intervals recorded so far.
    pub(crate) fn intervals(&self) -> u64 {
        self.released + self.held.rows() as u64
    }

    /// Changes the stage `from` to `to` in intervals of `thread` that are held, except for the first `since` of all recorded.
    pub(crate) fn restage(&mut self, since: u64, thread: i64, from: Text, to: Text) {
        let first = usize::try_from(since.saturating_sub(self.released)).unwrap_or(usize::MAX);
        self.held.replace(first, "stage", (i64::from(from.0), i64::from(to.0)), Some(("thread", thread)));
    }

    /// Moves intervals that are held to their table.
    pub fn release(&mut self) {
        self.held_since = None;
        if let Some((validation, forward)) = self.quiet {
            self.held.replace(0, "stage", (i64::from(validation.0), i64::from(forward.0)), None);
        }
        self.released += self.held.rows() as u64;
        let intervals =
            self.builders.iter_mut().find(|(table, ..)| std::ptr::eq(*table, &raw const torch_trace::TABLE));
        if let Some((_, builder, recorded)) = intervals {
            *recorded += self.held.rows() as u64;
            builder.append(&mut self.held);
        }
    }

    /// Counts rows of `table` (`schema.name`) that were recorded and dropped before they came here.
    pub fn dropped(&mut self, table: &'static str, reason: &'static str, rows: u64) {
        for (known, _, recorded) in &mut self.builders {
            if known.full_name() == table {
                *recorded += rows;
            }
        }
        self.count_unsent(table, reason, rows);
    }

    /// Counts rows that were taken from here and dropped before they were sent.
    pub fn count_unsent(&mut self, table: &'static str, reason: &'static str, rows: u64) {
        *self.drops.entry((table, reason)).or_default() += rows;
    }

    /// Rows recorded by table since the agent began, dropped ones included.
    pub fn recorded(&self) -> impl Iterator<Item = (String, u64)> {
        self.builders.iter().map(|(table, _, recorded)| (table.full_name(), *recorded))
    }

    /// Appends the state that a successor needs when all rows that wait have just been taken: strings, held intervals, counts.
    pub fn put(&self, to: &mut Vec<u8>) {
        self.strings.put(to);
        (self.quiet, self.released).put(to);
        self.held.columns().count().put(to);
        for (values, nulls) in self.held.columns() {
            values.len().put(to);
            values.iter().for_each(|value| value.put(to));
            nulls.len().put(to);
            nulls.iter().for_each(|row| row.put(to));
        }
        self.builders.len().put(to);
        for (table, _, recorded) in &self.builders {
            (table.full_name(), *recorded).put(to);
        }
        self.drops.len().put(to);
        for ((table, reason), rows) in &self.drops {
            ((*table).to_owned(), (*reason).to_owned()).put(to);
            rows.put(to);
        }
    }

    /// Reads the state that [`RowBuffer::put`] wrote: a sink for our own tables, and the counts of all tables. Rows that the new sink
    /// drops are not in these counts.
    pub fn restore(from: &mut PersistedBytes<'_>) -> Option<(Self, RowCounts)> {
        let (strings, (quiet, released)) = (Persist::get(from)?, Persist::get(from)?);
        let mut sink = Self { strings, quiet, released, ..Self::default() };
        sink.held = BatchBuilder::of_columns(&torch_trace::TABLE, Persist::get(from)?)?;
        let counted = RowCounts { recorded: Persist::get(from)?, dropped: Persist::get(from)? };
        for ((table, _, recorded), (name, count)) in sink.builders.iter_mut().zip(&counted.recorded) {
            // The order is that of the same declarations, or another version has written the state.
            if table.full_name() != *name {
                return None;
            }
            *recorded = *count;
        }
        Some((sink, counted))
    }

    /// Takes the rows that wait: a batch for each table that has rows, with `table` and `recorded`. The caller sets `seq`.
    pub fn take(&mut self) -> Vec<probe_proto::v1::Batch> {
        if self.held_since.is_some_and(|since| since.elapsed() > MAX_HOLD) {
            self.release();
        }
        let waiting = self.builders.iter_mut().enumerate().filter(|(_, (_, builder, _))| builder.rows() > 0);
        waiting
            .map(|(index, (_, builder, recorded))| {
                let mut batch = builder.take();
                batch.table = index as u32;
                batch.recorded = *recorded;
                batch
            })
            .collect()
    }
}

/// The id of a text of a kind that has `count` different ones and may have `most`; None for a new one beyond that.
fn bounded(strings: &mut StringTable, count: &mut usize, most: usize, text: &str) -> Option<Text> {
    if !strings.has(text) {
        if *count >= most {
            return None;
        }
        *count += 1;
    }
    Some(strings.id(text))
}

#[cfg(test)]
mod tests {
    use probe_proto::table::{Text, Time};

    use super::*;

    fn interval(step: i64) -> torch_trace::Row {
        torch_trace::Row {
            step,
            micro_step: 0,
            call_index: 0,
            module: (step > 0).then_some(Text(0)),
            module_type: None,
            depth: 0,
            stage: Text(0),
            ts: Time(step),
            duration: Some(1.0),
            total_duration: Some(1.0),
            host_duration: 1.0,
            allocated: None,
            allocated_delta: None,
            max_allocated: None,
            reserved: None,
            input_shape: None,
            device: None,
            compiled: false,
            captured: Some(false),
            thread: 1,
        }
    }

    fn step(step: i64) -> steps::Row {
        steps::Row { forward_time: 1.0, other_time: 0.0, ..steps::Row::of_a_second(step) }
    }

    fn rows(sink: &mut RowBuffer) -> Vec<(u32, u32, u64)> {
        sink.take().iter().map(|batch| (batch.table, batch.rows, batch.recorded)).collect()
    }

    #[test]
    fn a_step_is_seen_whole_or_not_at_all() {
        let mut sink = RowBuffer::default();
        sink.strings.id("forward");
        sink.push(interval(0));
        sink.push(interval(0));
        assert_eq!(rows(&mut sink), []);
        sink.push(step(0));
        sink.push(interval(1));
        assert_eq!(rows(&mut sink), [(0, 2, 2), (2, 1, 1)]);
        // Intervals that never end are released by the caller, which knows that nothing more comes.
        sink.release();
        assert_eq!(rows(&mut sink), [(0, 1, 3)]);
    }
}
