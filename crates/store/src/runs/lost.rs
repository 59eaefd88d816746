//! How far a run came whose collector died, from its files and its journal. Nothing of the journal is kept, so that a list of
//! many lost runs takes no more memory than one of them.

use std::collections::HashMap;
use std::path::Path;

use probe_proto::decode::{self, DecodedValues};
use probe_proto::table::ColumnType;
use probe_proto::tables::steps;
use probe_proto::v1::{self, agent_message, record};

use super::steps::{ReachedSteps, in_files};
use crate::journal::replay::{self, RecordReceiver};

/// How far a run came, from its files and its journal. Files that can't be read count as empty, as in [`super::last_step`].
pub fn reached(directory: &Path) -> ReachedSteps {
    let mut steps = JournalSteps { reached: in_files(directory), connections: HashMap::new() };
    if let Ok(journal) = replay::find(directory) {
        // Up to a file that can't be read.
        let _ = journal.for_each(&mut steps);
    }
    steps.reached
}

/// Steps in the records of a journal.
struct JournalSteps {
    reached: ReachedSteps,
    connections: HashMap<u64, ConnectionSteps>,
}

/// An open connection: where its batches have steps.
struct ConnectionSteps {
    rank: Option<i32>,
    /// Index of the table with steps, and of the column of steps in it.
    table: usize,
    column: usize,
}

impl ConnectionSteps {
    /// The indices in a Hello; None where it has no table of steps.
    fn of(hello: &v1::Hello) -> Option<Self> {
        let name = steps::TABLE.full_name();
        let table = hello.tables.iter().position(|table| table.name == name)?;
        let column = hello.tables[table].columns.iter().position(|column| column.name == "step")?;
        Some(Self { rank: hello.rank, table, column })
    }
}

impl JournalSteps {
    fn open(&mut self, connection: u64, hello: &v1::Hello) {
        match ConnectionSteps::of(hello) {
            Some(open) => self.connections.insert(connection, open),
            None => self.connections.remove(&connection),
        };
    }

    fn batch(&mut self, connection: u64, batch: &v1::Batch) {
        let Some(open) = self.connections.get(&connection) else { return };
        if batch.table as usize != open.table {
            return;
        }
        let Some(newest) = newest(batch, open.column) else { return };
        self.reached.last_step = self.reached.last_step.max(Some(newest));
        self.reached.ranks.extend(open.rank);
    }
}

/// The largest step of a column.
fn newest(batch: &v1::Batch, column: usize) -> Option<i64> {
    let rows = decode::rows(batch).ok().filter(|rows| *rows > 0)?;
    let decoded = decode::column("step", ColumnType::Int64, false, batch.columns.get(column)?, rows, 0).ok()?;
    match decoded.values {
        DecodedValues::Constant(step) => Some(step),
        DecodedValues::Ints(steps) => steps.into_iter().max(),
        DecodedValues::Nulls | DecodedValues::Floats(_) => None,
    }
}

impl RecordReceiver for JournalSteps {
    fn restart(&mut self, connections: &[v1::Connection]) {
        self.connections.clear();
        for connection in connections {
            if let Some(hello) = &connection.hello {
                self.open(connection.connection, hello);
            }
        }
    }

    fn receive(&mut self, record: record::Record) {
        use record::Record;
        match record {
            Record::Opened(v1::Opened { connection, hello: Some(hello), .. }) => self.open(connection, &hello),
            Record::AgentMessage(v1::AgentMessage {
                connection,
                content: Some(agent_message::Content::Batch(batch)),
                ..
            }) => {
                self.batch(connection, &batch);
            }
            Record::Closed(closed) => {
                self.connections.remove(&closed.connection);
            }
            _ => {}
        }
    }
}
