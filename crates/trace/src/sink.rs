//! Where analysed rows wait for the uplink: a builder a table, the strings they use, and what was dropped.
//!
//! Intervals of a step are held until the step's own row is there, so that whoever asks sees all of a step or none of
//! it: half a step looks like one without a backward pass. A step that takes very long, or never ends (inference), is
//! shown as far as it has come.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use probe_proto::encode::{BatchBuilder, StringTable};
use probe_proto::table::{Row, Table, Text};
use probe_proto::tables::{TABLES, steps, torch_trace};

use crate::custom::{Value, Waiting};
use crate::keep::{Keep, Kept};

/// Intervals are held no longer than this.
const MAX_HOLD: Duration = Duration::from_secs(10);

/// Different texts that the program's own tables may have, and bytes of them.
const MAX_TEXTS: usize = 1 << 18;
const MAX_TEXT_BYTES: usize = 16 << 20;

/// Different shapes of inputs that rows may have. They share the connection's string table with everything else, which
/// would end with it where the size of each batch is another one.
const MAX_SHAPES: usize = 1 << 16;

/// Different files that checkpoints are written to: names may have the step in them.
const MAX_PATHS: usize = 1 << 12;

/// What is counted, by name: rows recorded, and rows dropped by table and reason.
#[derive(Debug, Default)]
pub struct Counted {
    /// Dropped ones included.
    pub recorded: Vec<(String, u64)>,
    /// See [`Sink::drops`].
    pub dropped: Vec<((String, String), u64)>,
}

/// Rows of every agent table on their way out. Owned by the background thread.
#[derive(Debug)]
pub struct Sink {
    /// Strings that rows refer to; ids stay what they are for the life of the agent.
    pub strings: StringTable,
    /// Place = place in `Hello.tables`, which is [`Sink::tables`].
    builders: Vec<(&'static Table, BatchBuilder, u64)>,
    /// Texts of the program's tables, and their bytes.
    texts: (usize, usize),
    /// Shapes of inputs.
    shapes: usize,
    /// Files of checkpoints.
    paths: usize,
    /// Intervals of the step that is under way, and since when there are some.
    held: BatchBuilder,
    held_since: Option<Instant>,
    /// Intervals that were let go of.
    released: u64,
    /// Of a process that has not trained yet: validation, which is forward if it never does.
    pub(crate) quiet: Option<(Text, Text)>,
    /// Rows dropped by (table, reason) since the agent began.
    pub drops: BTreeMap<(&'static str, &'static str), u64>,
    /// How far it is on each process group, for the next report.
    pub groups: Vec<probe_proto::v1::GroupState>,
    /// When the newest record was made (ns since 1970); 0 before the first.
    pub last_record_ns: i64,
    /// Whether a thread was validating then.
    pub validates: bool,
}

impl Default for Sink {
    fn default() -> Self {
        let tables = TABLES.iter().filter(|t| t.source == probe_proto::table::Source::Agent);
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

impl Sink {
    /// The tables rows may go to, in the order of `Hello.tables`.
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

    /// The place of a table of the program's; a new one comes last.
    pub fn place_of(&mut self, table: &'static Table) -> usize {
        let known = self.builders.iter().position(|(known, ..)| std::ptr::eq(*known, table));
        known.unwrap_or_else(|| {
            self.builders.push((table, BatchBuilder::new(table), 0));
            self.builders.len() - 1
        })
    }

    /// Adds a row to a table of the program's, called `name`. Texts of all such tables are bounded together: they share
    /// the connection's string table with our own, which would end with it.
    pub fn push_values(&mut self, place: usize, name: &'static str, row: &Waiting) {
        let mut ids = Vec::with_capacity(row.values.len());
        for value in &row.values {
            let Value::Text(text) = value else { continue };
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
        let Some((_, builder, recorded)) = self.builders.get_mut(place) else { return };
        *recorded += 1;
        let mut ids = ids.into_iter();
        builder.push_with(|columns| {
            let Some(([step, ts], own)) = columns.split_first_chunk_mut() else { return };
            step.put_int(row.step);
            ts.put_int(row.unix_ns);
            for (column, value) in own.iter_mut().zip(&row.values) {
                match value {
                    Value::Null => column.put_null(),
                    Value::Int(number) => column.put_int(*number),
                    Value::Float(number) => column.put_float(*number),
                    Value::Text(_) => match ids.next() {
                        Some(id) => column.put_int(i64::from(id.0)),
                        None => column.put_null(),
                    },
                }
            }
        });
    }

    /// A shape of an input; None for a new one where there are too many.
    pub(crate) fn shape(&mut self, text: &str) -> Option<Text> {
        bounded(&mut self.strings, &mut self.shapes, MAX_SHAPES, text)
    }

    /// Name of a file that a checkpoint is written to; None for a new one where there are too many.
    pub fn path(&mut self, text: &str) -> Option<Text> {
        bounded(&mut self.strings, &mut self.paths, MAX_PATHS, text)
    }

    /// Intervals that are held belong to a step that gets no row: they get none either.
    pub fn forget_held(&mut self) {
        self.released += self.held.rows() as u64;
        self.held = BatchBuilder::new(&torch_trace::TABLE);
        self.held_since = None;
    }

    /// Intervals recorded so far.
    pub(crate) fn intervals(&self) -> u64 {
        self.released + self.held.rows() as u64
    }

    /// Intervals of `thread` that are held, and were recorded after the first `since`, are of the stage `to` where they were
    /// `from`.
    pub(crate) fn restage(&mut self, since: u64, thread: i64, from: Text, to: Text) {
        let first = usize::try_from(since.saturating_sub(self.released)).unwrap_or(usize::MAX);
        self.held.replace(first, "stage", (i64::from(from.0), i64::from(to.0)), Some(("thread", thread)));
    }

    /// Lets go of what is held.
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

    /// Counts rows that were recorded and did not become rows here. `table` is `schema.name`.
    pub fn dropped(&mut self, table: &'static str, reason: &'static str, rows: u64) {
        for (known, _, recorded) in &mut self.builders {
            if known.full_name() == table {
                *recorded += rows;
            }
        }
        self.unsent(table, reason, rows);
    }

    /// Counts rows that were taken from here and could not be kept until they were sent.
    pub fn unsent(&mut self, table: &'static str, reason: &'static str, rows: u64) {
        *self.drops.entry((table, reason)).or_default() += rows;
    }

    /// Rows recorded by table since the agent began, dropped ones included.
    pub fn recorded(&self) -> impl Iterator<Item = (String, u64)> {
        self.builders.iter().map(|(table, _, recorded)| (table.full_name(), *recorded))
    }

    /// Appends what a successor needs when everything that waits has just been taken: strings, what is held, and counts.
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

    /// The successor of one that was put down, for our own tables, and what is counted of all: rows recorded by table,
    /// rows dropped by table and reason. What the successor drops comes on top of that.
    pub fn restore(from: &mut Kept<'_>) -> Option<(Self, Counted)> {
        let (strings, (quiet, released)) = (Keep::get(from)?, Keep::get(from)?);
        let mut sink = Self { strings, quiet, released, ..Self::default() };
        sink.held = BatchBuilder::of_columns(&torch_trace::TABLE, Keep::get(from)?)?;
        let counted = Counted { recorded: Keep::get(from)?, dropped: Keep::get(from)? };
        for ((table, _, recorded), (name, count)) in sink.builders.iter_mut().zip(&counted.recorded) {
            // In the order of the same declarations, or it was put down by another version.
            if table.full_name() != *name {
                return None;
            }
            *recorded = *count;
        }
        Some((sink, counted))
    }

    /// Takes what is waiting: a batch a table that has rows, `table` and `recorded` filled in, `seq` left to the caller.
    pub fn take(&mut self) -> Vec<probe_proto::v1::Batch> {
        if self.held_since.is_some_and(|since| since.elapsed() > MAX_HOLD) {
            self.release();
        }
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
            thread: 1,
        }
    }

    fn step(step: i64) -> steps::Row {
        steps::Row { forward_time: 1.0, other_time: 0.0, ..steps::Row::of_a_second(step) }
    }

    fn rows(sink: &mut Sink) -> Vec<(u32, u32, u64)> {
        sink.take().iter().map(|batch| (batch.table, batch.rows, batch.recorded)).collect()
    }

    #[test]
    fn a_step_is_seen_whole_or_not_at_all() {
        let mut sink = Sink::default();
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
