//! The batches of an agent: each is stored or counted as lost, once.

use std::sync::Arc;

use probe_proto::v1::{self, agent_message, record};
use probe_store::journal::Journal;
use probe_store::{BatchOrigin, BatchRows, ProcessIdentity, Store};

use super::Agent;

/// The connection no longer speaks for its agent: a newer one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionSuperseded;

/// Where rows are kept.
#[derive(Debug, Clone, Copy)]
pub struct RowDestination<'a> {
    pub store: &'a Store,
    pub journal: &'a Journal,
}

/// A batch's origin and number.
#[derive(Debug, Clone, Copy)]
pub struct BatchSource<'a> {
    pub connection: u64,
    /// `Hello.instance`.
    pub instance: &'a Arc<str>,
    pub seq: u64,
    /// Name of the batch's table, as the agent declared it.
    pub table: &'a str,
    /// `Batch.recorded`.
    pub recorded: u64,
}

impl Agent {
    /// Stores the rows of `batch` unless they already are: appending and the sequence number change together, so that
    /// a batch that two connections of one agent bring is stored once.
    pub fn store(
        &self,
        from: &BatchSource<'_>,
        identity: &Arc<ProcessIdentity>,
        rows: BatchRows,
        batch: v1::Batch,
        keep: RowDestination<'_>,
    ) -> Result<(), ConnectionSuperseded> {
        let mut state = self.state();
        if state.connection != from.connection {
            return Err(ConnectionSuperseded);
        }
        if from.seq > state.done_seq {
            let in_a_file = state
                .ahead
                .get(from.table)
                .is_some_and(|ranges| ranges.iter().any(|(first, last)| (*first..=*last).contains(&from.seq)));
            if in_a_file {
                state.finish(from);
                let position = keep.journal.record(self.lost_record(from, 0, "in a file already", state.last_seen));
                state.unsynced.push_back((position, from.seq));
                return Ok(());
            }
            let _appending = keep.store.begin_append();
            state.count_stored(from.table, rows.len() as u64);
            state.finish(from);
            let number = keep.store.append(identity, BatchOrigin::batch(&self.instance, from.seq), rows);
            let content = Some(agent_message::Content::Batch(batch));
            let record = record::Record::AgentMessage(v1::AgentMessage {
                connection: from.connection,
                content,
                unix_ns: state.last_seen,
            });
            let position = match number {
                Some(number) => keep.journal.record_append(record, number),
                None => keep.journal.record(record),
            };
            state.unsynced.push_back((position, from.seq));
        }
        Ok(())
    }

    /// Counts a batch that cannot be stored, once however often it is sent.
    pub fn count_lost_batch(
        &self,
        from: &BatchSource<'_>,
        rows: u64,
        reason: &'static str,
        journal: &Journal,
    ) -> Result<(), ConnectionSuperseded> {
        let mut state = self.state();
        if state.connection != from.connection {
            return Err(ConnectionSuperseded);
        }
        if from.seq > state.done_seq {
            state.count_loss(from.table, reason, rows);
            state.finish(from);
            let position = journal.record(self.lost_record(from, rows, reason, state.last_seen));
            state.unsynced.push_back((position, from.seq));
        }
        Ok(())
    }

    /// The record of a batch of which `rows` rows are lost.
    fn lost_record(&self, from: &BatchSource<'_>, rows: u64, reason: &str, unix_ns: i64) -> record::Record {
        record::Record::Lost(v1::Lost {
            instance: self.instance.to_string(),
            seq: from.seq,
            table: from.table.to_owned(),
            reason: reason.to_owned(),
            rows,
            recorded: from.recorded,
            unix_ns,
        })
    }

    /// Newest batch that need not be sent again, now that the journal is on disk up to `position`.
    pub fn settled(&self, position: u64) -> u64 {
        let mut state = self.state();
        while let Some((_, seq)) = state.unsynced.pop_front_if(|(at, _)| *at <= position) {
            state.durable_seq = seq;
        }
        state.durable_seq
    }
}
