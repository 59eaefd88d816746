//! The sum of all records: agents, counts of their rows, and the state of connections that later records need.
//!
//! The writer updates a checkpoint in memory and writes it at the head of each file; a replay computes the same one.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use probe_proto::v1::{self, agent_message, record};
use prost::Message;

use super::newest::NewestRows;
use super::status;

/// The largest number of agents, those that are gone included: as many as the collector itself remembers.
const MAX_AGENTS: usize = 8192;

/// The largest number of tables, of (table, reason) pairs of losses, of layers and of settings of an agent. More are not kept.
pub const MAX_ENTRIES: usize = 256;

/// Strings of a connection that a piece may have before the next one begins.
const MAX_PIECE: usize = 1024;

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

/// An open connection: the state that later records of it need. A copy shares the long parts.
#[derive(Debug, Default, Clone)]
struct OpenConnection {
    instance: String,
    hello: Option<Arc<v1::Hello>>,
    /// The strings in pieces, in the order in which they came.
    strings: Vec<Arc<Vec<String>>>,
    /// The number of the strings.
    count: usize,
}

/// Compares strings without regard to the pieces in which they came.
impl PartialEq for OpenConnection {
    fn eq(&self, other: &Self) -> bool {
        self.instance == other.instance && self.hello == other.hello && self.strings().eq(other.strings())
    }
}

impl OpenConnection {
    fn of_message(open: v1::Connection) -> Self {
        let v1::Connection { instance, hello, strings, .. } = open;
        Self { instance, hello: hello.map(Arc::new), count: strings.len(), strings: vec![Arc::new(strings)] }
    }

    /// Adds strings, of which `known` are there already. Returns their bytes.
    fn add(&mut self, strings: &v1::Strings) -> usize {
        let known = self.count.saturating_sub(strings.first as usize);
        let new = strings.values.iter().skip(known);
        let bytes = new.clone().map(String::len).sum();
        self.count += new.len();
        // A program may have a new text in each step. Small pieces are put together, unless a copy of this shares the last one.
        match self.strings.last_mut().filter(|last| last.len() < MAX_PIECE).and_then(Arc::get_mut) {
            Some(last) => last.extend(new.cloned()),
            None if new.len() > 0 => self.strings.push(Arc::new(new.cloned().collect())),
            None => {}
        }
        bytes
    }

    fn to_message(&self, connection: u64) -> v1::Connection {
        v1::Connection {
            connection,
            instance: self.instance.clone(),
            hello: self.hello.as_deref().cloned(),
            strings: self.strings().cloned().collect(),
        }
    }

    fn strings(&self) -> impl Iterator<Item = &String> {
        self.strings.iter().flat_map(|strings| strings.iter())
    }

    fn text_bytes(&self) -> usize {
        self.strings().map(String::len).sum()
    }

    fn hello_bytes(&self) -> usize {
        self.hello.as_deref().map_or(0, Message::encoded_len)
    }
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
    pub(super) fn bound(&mut self, most: usize) {
        self.evals.bound(most);
        self.events.bound(most);
        self.queries.bound(most);
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
            Some(Record::Eval(eval)) => self.evals.put(eval.clone()),
            Some(Record::Event(event)) => self.events.put(event.clone()),
            Some(Record::Query(query)) => self.queries.put(query.clone()),
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_takes_bounded_room_however_much_it_is() {
        let asked = "x".repeat(128 << 10);
        let fill = |checkpoint: &mut JournalCheckpoint| {
            for id in 1..=300 {
                let (code, sql, details) = (asked.clone(), asked.clone(), Some(asked.clone()));
                for record in [
                    record::Record::Eval(v1::Eval { id, code, ..v1::Eval::default() }),
                    record::Record::Query(v1::Query { id, sql, ..v1::Query::default() }),
                    record::Record::Event(v1::Event { id, details, ..v1::Event::default() }),
                ] {
                    checkpoint.apply(&v1::Record { record: Some(record) });
                }
            }
        };
        let mut checkpoint = JournalCheckpoint::default();
        fill(&mut checkpoint);
        assert!((40 << 20..50 << 20).contains(&checkpoint.to_message().encoded_len()));
        let mut checkpoint = JournalCheckpoint::default();
        checkpoint.bound(1 << 20);
        fill(&mut checkpoint);
        assert!((2 << 20..3 << 20).contains(&checkpoint.to_message().encoded_len()));
        assert_eq!((checkpoint.evals.newest(), checkpoint.evals.iter().last().map(|eval| eval.id)), (300, Some(300)));
    }

    #[test]
    fn an_agent_takes_bounded_room_however_many_tables_it_tells_of() {
        let mut checkpoint = JournalCheckpoint::default();
        let mut apply = |record| checkpoint.apply(&v1::Record { record: Some(record) });
        for table in 0..2000 {
            let name = format!("table {table} {}", "x".repeat(100));
            let schema = v1::TableSchema { name: name.clone(), columns: Vec::new() };
            let hello = v1::Hello { instance: "one".into(), tables: vec![schema], ..v1::Hello::default() };
            apply(record::Record::Opened(v1::Opened { connection: 1, hello: Some(hello), unix_ns: 0 }));
            let status = v1::Status { recorded: [(format!("other {name}"), 1)].into(), ..v1::Status::default() };
            let batch = v1::Batch { seq: table, rows: 1, ..v1::Batch::default() };
            for content in [agent_message::Content::Status(status), agent_message::Content::Batch(batch)] {
                apply(record::Record::AgentMessage(v1::AgentMessage {
                    connection: 1,
                    content: Some(content),
                    unix_ns: 0,
                }));
            }
            let lost = v1::Lost { instance: "one".into(), table: name, rows: 1, ..v1::Lost::default() };
            apply(record::Record::Lost(lost));
        }
        let agent = &checkpoint.agents["one"];
        assert_eq!(
            (agent.recorded.len(), agent.stored.len(), agent.lost.len()),
            (MAX_ENTRIES, MAX_ENTRIES, MAX_ENTRIES)
        );
        assert_eq!(agent.done_seq, 1999, "rows are numbered all the same");
    }

    #[test]
    fn evictions_of_very_many_processes_are_added_up_in_no_time() {
        let mut checkpoint = JournalCheckpoint::default();
        let evicted = |process: u64, appends| v1::Evicted {
            instance: format!("process {process}"),
            identity: Some(v1::Hello { pid: process as u32, ..v1::Hello::default() }),
            table: "python.steps".into(),
            first_seq: 1,
            last_seq: 2,
            rows: 1,
            appends,
            ..v1::Evicted::default()
        };
        let processes = 50_000;
        for time in 1..=2 {
            for process in 0..processes {
                checkpoint.apply(&v1::Record { record: Some(record::Record::Evicted(evicted(process, time))) });
            }
        }
        // What may come back stays as it is. With a search of all for each this took minutes.
        checkpoint.add_up_evictions(1);
        assert_eq!(checkpoint.evicted.len(), 2 * processes as usize);
        checkpoint.add_up_evictions(2);
        assert_eq!(checkpoint.evicted.len(), processes as usize);
        assert!(checkpoint.evicted.iter().all(|sum| (sum.rows, sum.last_seq) == (2, 0)));
    }

    #[test]
    fn a_copy_shares_what_is_long() {
        let mut checkpoint = JournalCheckpoint::default();
        let hello = v1::Hello { instance: "one".into(), ..v1::Hello::default() };
        let mut apply = |record| checkpoint.apply(&v1::Record { record: Some(record) });
        apply(record::Record::Opened(v1::Opened { connection: 1, hello: Some(hello), unix_ns: 0 }));
        for (first, values) in [(0, vec!["a".to_owned()]), (1, vec!["b".to_owned()]), (0, vec!["a".to_owned()])] {
            let content = Some(agent_message::Content::Strings(v1::Strings { first, values }));
            apply(record::Record::AgentMessage(v1::AgentMessage { connection: 1, content, unix_ns: 0 }));
        }
        apply(record::Record::Query(v1::Query { id: 1, ..v1::Query::default() }));
        let copy = checkpoint.clone();
        assert!(Arc::ptr_eq(&copy.connections[&1].strings[0], &checkpoint.connections[&1].strings[0]));
        assert!(std::ptr::eq(copy.queries.iter().next().unwrap(), checkpoint.queries.iter().next().unwrap()));
        let message = checkpoint.to_message();
        assert_eq!(
            (&message.connections[0].strings[..], checkpoint.text_bytes()),
            (&["a".to_owned(), "b".to_owned()][..], 2)
        );
        assert_eq!(JournalCheckpoint::from_message(message), checkpoint);
    }

    #[test]
    fn strings_that_come_one_by_one_are_put_together() {
        let mut checkpoint = JournalCheckpoint::default();
        let hello = v1::Hello { instance: "one".into(), ..v1::Hello::default() };
        let mut apply = |record| checkpoint.apply(&v1::Record { record: Some(record) });
        apply(record::Record::Opened(v1::Opened { connection: 1, hello: Some(hello), unix_ns: 0 }));
        for first in 0..3000 {
            let strings = v1::Strings { first, values: vec![first.to_string()] };
            let content = Some(agent_message::Content::Strings(strings));
            apply(record::Record::AgentMessage(v1::AgentMessage { connection: 1, content, unix_ns: 0 }));
        }
        let pieces: Vec<usize> = checkpoint.connections[&1].strings.iter().map(|piece| piece.len()).collect();
        assert_eq!(pieces, [1024, 1024, 952]);
        let expected: Vec<String> = (0..3000).map(|number| number.to_string()).collect();
        assert_eq!(checkpoint.to_message().connections[0].strings, expected);
    }
}
