//! [`IngestSession`]: the identity, tables and strings that one connection has sent so far, by which its batches become rows.

use std::sync::Arc;

use probe_common::clock;
use probe_common::error::Error;
use probe_proto::MAX_ROWS;
use probe_proto::decode::Malformed;
use probe_proto::v1::{self, agent_message, record};
use probe_store::journal::{Journal, StatusLog};
use probe_store::{BatchRows, ProcessIdentity, StringReceiver};

use super::destination::BatchDestination;
use crate::agent::batches::{BatchSource, ConnectionSuperseded};
use crate::hello::{ConnectionDeclaration, DeclaredTable};

/// Largest jump of a sequence number that is believed when its batch is lost.
const MAX_GAP: u64 = 1 << 20;

/// Why something was not taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IngestError {
    /// A newer connection speaks for the same process.
    Superseded,
    /// The frame is malformed, and it is not known how many rows it had.
    Malformed(String),
    /// The batch is malformed; its rows are counted as lost.
    BadBatch(String),
}

impl From<ConnectionSuperseded> for IngestError {
    fn from(_: ConnectionSuperseded) -> Self {
        Self::Superseded
    }
}

impl From<Malformed> for IngestError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed.to_string())
    }
}

impl From<IngestError> for Error {
    fn from(error: IngestError) -> Self {
        match error {
            IngestError::Superseded => Self::failed("a newer connection of the same process took over"),
            IngestError::Malformed(problem) | IngestError::BadBatch(problem) => Self::failed(problem),
        }
    }
}

/// The state of one connection from its Hello on: identity, tables, strings, number of the last batch.
#[derive(Debug)]
pub(crate) struct IngestSession {
    connection: u64,
    instance: Arc<str>,
    identity: Arc<ProcessIdentity>,
    tables: Vec<DeclaredTable>,
    strings: StringReceiver,
    /// Whether some strings of the connection were left out.
    lacks_text: bool,
    /// Newest sequence number that is done.
    done: u64,
    status: StatusLog,
}

impl IngestSession {
    /// Begins with a Hello and the declaration in it. `done` is the newest batch that the destination has.
    pub(crate) fn open(
        connection: u64,
        hello: v1::Hello,
        declaration: ConnectionDeclaration,
        done: u64,
        to: &impl BatchDestination,
    ) -> Self {
        let ConnectionDeclaration { instance, identity, tables } = declaration;
        let (instance, strings) = (instance.into(), StringReceiver::default());
        let (lacks_text, status) = (false, StatusLog::default());
        let session = Self { connection, instance, identity, tables, strings, lacks_text, done, status };
        session.write_hello(hello, to);
        session
    }

    /// Gives rows from now on the identity and tables that this Hello declares. Strings and numbers of batches go on.
    pub(crate) fn renew(&mut self, hello: v1::Hello, declaration: ConnectionDeclaration, to: &impl BatchDestination) {
        (self.identity, self.tables) = (declaration.identity, declaration.tables);
        self.write_hello(hello, to);
    }

    fn write_hello(&self, hello: v1::Hello, to: &impl BatchDestination) {
        if let Some(journal) = to.journal() {
            let opened = v1::Opened { connection: self.connection, hello: Some(hello), unix_ns: clock::unix_ns() };
            journal.record(record::Record::Opened(opened));
        }
    }

    /// The process whose rows the connection brings.
    pub(crate) fn identity(&self) -> &Arc<ProcessIdentity> {
        &self.identity
    }

    /// Number of the connection.
    pub(crate) fn connection(&self) -> u64 {
        self.connection
    }

    /// Tables that batches may be of.
    pub(crate) fn tables(&self) -> &[DeclaredTable] {
        &self.tables
    }

    /// Whether the batch of this number is done with.
    pub(crate) fn is_done(&self, seq: u64) -> bool {
        seq <= self.done
    }

    /// Takes strings, which have to continue those that came before or repeat them.
    pub(crate) fn strings(&mut self, strings: v1::Strings, to: &impl BatchDestination) -> Result<(), IngestError> {
        let Some(journal) = to.journal() else { return Ok(self.strings.extend(strings)?) };
        self.strings.extend(strings.clone())?;
        self.write_down(agent_message::Content::Strings(strings), journal);
        Ok(())
    }

    /// Leaves out strings for which there is no room. Ids follow from what came before, so no later ones can be taken either,
    /// and batches that use them are counted as lost.
    pub(crate) fn leave_out_text(&mut self) {
        self.lacks_text = true;
    }

    /// Whether some strings of the connection were left out.
    pub(crate) fn lacks_text(&self) -> bool {
        self.lacks_text
    }

    /// Takes a batch, unless it is done with already.
    pub(crate) fn batch(&mut self, batch: v1::Batch, to: &mut impl BatchDestination) -> Result<(), IngestError> {
        if batch.seq == 0 {
            return Err(IngestError::Malformed("a batch without a sequence number".into()));
        }
        if self.is_done(batch.seq) {
            // The batch was sent again after a reconnect, and is stored already.
            return Ok(());
        }
        let Some(declared) = self.tables.get(batch.table as usize) else {
            let (table, declared) = (batch.table, self.tables.len());
            return Err(IngestError::Malformed(format!("a batch of table {table}, of {declared} declared")));
        };
        let from = BatchSource {
            connection: self.connection,
            instance: &self.instance,
            seq: batch.seq,
            table: &declared.name,
            recorded: batch.recorded,
        };
        if to.has(&from) {
            self.done = batch.seq;
            return Ok(());
        }
        if declared.mapping.table().is_none() {
            let why = if declared.refused.is_some() { "table refused" } else { "unknown table" };
            to.lose(&from, u64::from(batch.rows), why)?;
            self.done = batch.seq;
            return Ok(());
        }
        match BatchRows::decode(&declared.mapping, &batch, &mut self.strings) {
            Ok(rows) => {
                self.done = batch.seq;
                to.store(&from, &self.identity, rows, batch)?;
                Ok(())
            }
            Err(error) => {
                let problem = format!("{}: {error}", declared.name);
                if batch.rows as usize > MAX_ROWS || batch.seq - self.done > MAX_GAP {
                    // The numbers of the batch can't be believed either.
                    return Err(IngestError::Malformed(problem));
                }
                if self.lacks_text {
                    to.lose(&from, u64::from(batch.rows), "no room for text")?;
                    self.done = batch.seq;
                    return Ok(());
                }
                // The rows are counted and the batch is done with: sent again after a reconnect it would be as malformed.
                to.lose(&from, u64::from(batch.rows), "malformed")?;
                Err(IngestError::BadBatch(problem))
            }
        }
    }

    /// Writes a frame to the journal, for a collector that goes on after this one.
    fn write_down(&self, content: agent_message::Content, journal: &Journal) {
        let message =
            v1::AgentMessage { connection: self.connection, content: Some(content), unix_ns: clock::unix_ns() };
        journal.record(record::Record::AgentMessage(message));
    }

    /// Writes a report down.
    pub(crate) fn status(&mut self, status: v1::Status, journal: &Journal) {
        let content = self.status.content(status);
        self.write_down(content, journal);
    }

    /// Ends the session. `bye`: nothing more will come from the process.
    pub(crate) fn close(&self, bye: bool, journal: &Journal) {
        let closed = v1::Closed { connection: self.connection, bye, unix_ns: clock::unix_ns() };
        journal.record(record::Record::Closed(closed));
    }
}
