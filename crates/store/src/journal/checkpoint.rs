//! The sum of all records: agents, counts of their rows, and the state of connections that later records need.
//!
//! The writer updates a checkpoint in memory and writes it at the head of each file; a replay computes the same one.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use probe_proto::v1::{self, agent_message, record};
use prost::Message;

use super::newest::NewestRows;
use super::open_connection::OpenConnection;
use super::status;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

/// The largest number of agents, those that are gone included: as many as the collector itself remembers.
const MAX_AGENTS: usize = 8192;

/// The largest number of tables, of (table, reason) pairs of losses, of layers and of settings of an agent. More are not kept.
pub const MAX_ENTRIES: usize = 256;

/// The sum of all records of a journal so far.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct JournalCheckpoint {
    /// Agents by instance.
    pub agents: BTreeMap<String, v1::AgentRecord>,
    /// The connections that are open, by number.
    connections: BTreeMap<u64, OpenConnection>,
    /// Evictions, in order.
    pub evicted: Vec<v1::Evicted>,
    pub evals: NewestRows<v1::Eval>,
    pub events: NewestRows<v1::Event>,
    pub queries: NewestRows<v1::Query>,
    /// Bytes of the strings of open connections.
    texts: usize,
    /// Bytes of the hellos of open connections.
    hellos: usize,
}

impl JournalCheckpoint {
    /// The checkpoint at the head of a file.
    pub fn from_message(checkpoint: v1::JournalCheckpoint) -> Self {
        let instance = |agent: &v1::AgentRecord| agent.hello.as_ref().map(|hello| hello.instance.clone());
        let connections: BTreeMap<u64, OpenConnection> = checkpoint
            .connections
            .into_iter()
            .map(|open| (open.connection, OpenConnection::of_message(open)))
            .collect();
        Self {
            texts: connections.values().map(OpenConnection::text_bytes).sum(),
            hellos: connections.values().map(OpenConnection::hello_bytes).sum(),
            connections,
            agents: checkpoint.agents.into_iter().filter_map(|agent| Some((instance(&agent)?, agent))).collect(),
            evicted: checkpoint.evicted,
            evals: checkpoint.evals.into_iter().collect(),
            events: checkpoint.events.into_iter().collect(),
            queries: checkpoint.queries.into_iter().collect(),
        }
    }

    /// Closes all connections, because none outlives its collector.
    pub(super) fn close_all(&mut self) {
        self.connections.clear();
        (self.texts, self.hellos) = (0, 0);
    }

    /// Limits each list of rows to `most` bytes from now on.
    pub(super) fn limit_bytes(&mut self, most: usize) {
        self.evals.limit_bytes(most);
        self.events.limit_bytes(most);
        self.queries.limit_bytes(most);
    }

    /// Bytes of the strings of open connections.
    pub(super) fn text_bytes(&self) -> usize {
        self.texts
    }

    /// Bytes of open connections: the part of the checkpoint that can grow at once.
    pub(super) fn connection_bytes(&self) -> usize {
        self.texts + self.hellos
    }

    /// The message that is written at the head of a file.
    pub fn to_message(&self) -> v1::JournalCheckpoint {
        v1::JournalCheckpoint {
            agents: self.agents.values().cloned().collect(),
            connections: self.connections.iter().map(|(connection, open)| open.to_message(*connection)).collect(),
            evicted: self.evicted.clone(),
            evals: self.evals.iter().cloned().collect(),
            events: self.events.iter().cloned().collect(),
            queries: self.queries.iter().cloned().collect(),
        }
    }

    /// Adds a record.
    pub fn apply(&mut self, record: &v1::Record) {
        use record::Record;
        match &record.record {
            Some(Record::Checkpoint(checkpoint)) => *self = Self::from_message(checkpoint.clone()),
            Some(Record::Opened(opened)) => self.open(opened),
            Some(Record::AgentMessage(message)) => self.agent_message(message),
            Some(Record::Lost(lost)) => self.lose(lost),
            Some(Record::Closed(closed)) => {
                let Some(gone) = self.connections.remove(&closed.connection) else { return };
                self.texts -= gone.text_bytes();
                self.hellos -= gone.hello_bytes();
                if let Some(agent) = self.agents.get_mut(&gone.instance) {
                    agent.bye = closed.bye;
                    agent.last_seen = closed.unix_ns;
                }
            }
            Some(Record::Evicted(evicted)) => self.evicted.push(evicted.clone()),
            Some(Record::Eval(eval)) => self.evals.insert(eval.clone()),
            Some(Record::Event(event)) => self.events.insert(event.clone()),
            Some(Record::Query(query)) => self.queries.insert(query.clone()),
            Some(Record::Ended(ended)) => {
                if let Some(agent) = self.agents.get_mut(&ended.instance) {
                    agent.ended = Some(ended.clone());
                }
            }
            None => {}
        }
    }

    fn open(&mut self, opened: &v1::Opened) {
        let Some(hello) = &opened.hello else { return };
        let short = v1::Hello { tables: Vec::new(), ..hello.clone() };
        let agent = self
            .agents
            .entry(hello.instance.clone())
            .or_insert_with(|| v1::AgentRecord { first_seen: opened.unix_ns, ..v1::AgentRecord::default() });
        agent.hello = Some(short);
        agent.bye = false;
        agent.last_seen = opened.unix_ns;
        let connection = self.connections.entry(opened.connection).or_default();
        connection.instance.clone_from(&hello.instance);
        self.hellos -= connection.hello_bytes();
        connection.hello = Some(Arc::new(hello.clone()));
        self.hellos += connection.hello_bytes();
        if self.agents.len() > MAX_AGENTS {
            self.forget_oldest();
        }
    }

    /// Forgets the agent that has been gone longest. Files have its rows' identity themselves.
    fn forget_oldest(&mut self) {
        let open: HashSet<&String> = self.connections.values().map(|open| &open.instance).collect();
        let gone = self.agents.iter().filter(|(instance, _)| !open.contains(instance));
        if let Some(instance) = gone.min_by_key(|(_, agent)| agent.last_seen).map(|(instance, _)| instance.clone()) {
            self.agents.remove(&instance);
        }
    }

    fn agent_message(&mut self, message: &v1::AgentMessage) {
        let Some(connection) = self.connections.get_mut(&message.connection) else { return };
        let Some(agent) = self.agents.get_mut(&connection.instance) else { return };
        agent.last_seen = message.unix_ns;
        match &message.content {
            Some(agent_message::Content::Strings(strings)) => {
                // Strings continue the table, or repeat existing ones.
                self.texts += connection.add(strings);
            }
            Some(agent_message::Content::Batch(batch)) => {
                let tables = connection.hello.as_ref().map(|hello| &hello.tables);
                let Some(table) = tables.and_then(|tables| tables.get(batch.table as usize)) else { return };
                agent.done_seq = agent.done_seq.max(batch.seq);
                change(&mut agent.stored, &table.name, |stored| stored + u64::from(batch.rows));
                change(&mut agent.recorded, &table.name, |recorded| recorded.max(batch.recorded));
            }
            Some(agent_message::Content::Status(status)) => {
                report(agent, status, message.unix_ns);
                agent.status = Some(status.clone());
            }
            Some(agent_message::Content::StatusChange(changes)) => {
                report(agent, changes, message.unix_ns);
                if let Some(known) = &mut agent.status {
                    status::apply(known, changes);
                }
            }
            None => {}
        }
    }

    fn lose(&mut self, lost: &v1::Lost) {
        let Some(agent) = self.agents.get_mut(&lost.instance) else { return };
        agent.done_seq = agent.done_seq.max(lost.seq);
        if lost.seq > 0 {
            change(&mut agent.recorded, &lost.table, |recorded| recorded.max(lost.recorded));
            if lost.rows == 0 {
                return;
            }
        }
        let same = |known: &&mut v1::Lost| known.table == lost.table && known.reason == lost.reason;
        if let Some(known) = agent.lost.iter_mut().find(same) {
            known.rows += lost.rows;
            known.unix_ns = lost.unix_ns;
        } else if agent.lost.len() < MAX_ENTRIES {
            agent.lost.push(lost.clone());
        }
    }

    /// Adds up evictions before `oldest`, below which the journal has no appends any more: only their sums matter, because
    /// none of their batches can come back.
    pub(super) fn add_up_evictions(&mut self, oldest: u64) {
        let mut settled: Vec<v1::Evicted> = Vec::with_capacity(self.evicted.len());
        // Sums by what they are of, because there may be one for each table of each process that a long run ever had.
        let mut sums: HashMap<(String, String, Vec<u8>), usize> = HashMap::new();
        for evicted in std::mem::take(&mut self.evicted) {
            if evicted.appends > oldest {
                settled.push(evicted);
                continue;
            }
            let identity = evicted.identity.as_ref().map(Message::encode_to_vec).unwrap_or_default();
            match sums.entry((evicted.instance.clone(), evicted.table.clone(), identity)) {
                Entry::Occupied(sum) => {
                    let sum = &mut settled[*sum.get()];
                    sum.rows += evicted.rows;
                    sum.unix_ns = evicted.unix_ns;
                }
                Entry::Vacant(new) => {
                    new.insert(settled.len());
                    settled.push(v1::Evicted { first_seq: 0, last_seq: 0, ..evicted });
                }
            }
        }
        self.evicted = settled;
    }
}

/// Counts the rows of a report that came at `unix_ns`.
fn report(agent: &mut v1::AgentRecord, status: &v1::Status, unix_ns: i64) {
    for (table, rows) in &status.recorded {
        change(&mut agent.recorded, table, |recorded| recorded.max(*rows));
    }
    agent.clock_offset_ns = Some(status.unix_ns.saturating_sub(unix_ns));
}

/// Changes the count of a table. A known name costs no allocation, and a new one past [`MAX_ENTRIES`] is not added.
fn change(counts: &mut HashMap<String, u64>, table: &str, change: impl FnOnce(u64) -> u64) {
    if let Some(count) = counts.get_mut(table) {
        *count = change(*count);
    } else if counts.len() < MAX_ENTRIES {
        counts.insert(table.to_owned(), change(0));
    }
}
