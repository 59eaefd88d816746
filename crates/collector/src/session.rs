//! What one connection of an agent says: checked, stored and answered. What a process that is gone had recorded and not sent
//! is taken in the same way.

use std::sync::Arc;

use probe_common::clock;
use probe_proto::v1::{self, AgentFrame, CollectorFrame, agent_frame, collector_frame, record, said};
use probe_proto::{MAX_ROWS, VERSION};
use probe_store::{Identity, Rows, Strings};
use probe_trace::recover::Recovered;
use tonic::Status;

use super::agent::{Agent, Downlink, Keep, Source, Superseded, truncate_status};
use super::events::{Event, Severity};
use super::hello::{DeclaredTable, Unwelcome, truncate_hello, understand};
use super::shared::Shared;
use crate::truncate::{MAX_TEXT, truncate};

/// How far behind a sequence number may jump and still be believed when its batch is lost.
const MAX_GAP: u64 = 1 << 20;

/// How a stream ends.
#[derive(Debug)]
pub(super) enum End {
    /// The agent said Bye.
    Bye,
    /// The agent is gone.
    Broken,
    /// The agent is told why, and may come back.
    Closed(Status),
    /// The agent sent what cannot be, of which nobody knows how many rows it was.
    Malformed(String),
    /// The agent sent a batch that cannot be; its rows are counted as lost.
    BadBatch(String),
    /// Told to come back later, or never.
    Refused(v1::Refused),
}

impl From<Superseded> for End {
    fn from(_: Superseded) -> Self {
        Self::Closed(Status::aborted("a newer connection of the same agent took over"))
    }
}

/// Bytes of strings that are taken at once, about.
const STRINGS_AT_ONCE: usize = 1 << 20;

/// Takes what a process that is gone had recorded and not sent, or sent and not heard of. How many rows that were; the error
/// says what was wrong with it, and what came before is kept.
pub(super) async fn inherit(shared: &Arc<Shared>, agent: &Arc<Agent>, left: Recovered) -> Result<u64, String> {
    let wrong = |end: End| match end {
        End::Malformed(problem) | End::BadBatch(problem) => problem,
        End::Refused(refused) => refused.message,
        End::Closed(status) => status.message().to_owned(),
        End::Bye | End::Broken => "it ended".to_owned(),
    };
    let mut session = Session::take_over(shared, agent, left.tables).map_err(wrong)?;
    let taken = async {
        let (mut first, mut rows) = (0, 0);
        while let Some(strings) = left.strings.since(first) {
            let mut bytes = 0;
            let within = |text: &&String| {
                bytes += text.len();
                bytes < STRINGS_AT_ONCE
            };
            let count = strings.values.iter().take_while(within).count().max(1);
            let values = strings.values.into_iter().take(count).collect();
            session.take_what(shared, agent_frame::Frame::Strings(v1::Strings { first: strings.first, values }))?;
            first += count;
        }
        for batch in left.batches {
            let is_new = batch.seq > session.done;
            let count = u64::from(batch.rows);
            shared.store.room().await;
            shared.journal.room().await;
            session.take_what(shared, agent_frame::Frame::Batch(batch))?;
            rows += if is_new { count } else { 0 };
        }
        session.take_what(shared, agent_frame::Frame::Status(left.status))?;
        Ok(rows)
    };
    let taken = taken.await.inspect_err(|end| session.note(end, shared));
    let closed = v1::Closed { connection: session.connection, bye: false, unix_ns: clock::unix_ns() };
    shared.journal.record(record::Record::Closed(closed));
    shared.journal.hurry();
    taken.map_err(wrong)
}

/// The state of a stream after its first Hello.
pub(super) struct Session {
    pub(super) agent: Arc<Agent>,
    connection: u64,
    instance: String,
    identity: Arc<Identity>,
    tables: Vec<DeclaredTable>,
    strings: Strings,
    /// There was no room for some.
    no_more_text: bool,
    /// Newest sequence number that is done.
    done: u64,
    /// Newest one that the agent was told of.
    acknowledged: u64,
}

impl Session {
    pub(super) fn begin(shared: &Shared, hello: v1::Hello, downlink: &Downlink, connection: u64) -> Result<Self, End> {
        let hello = truncate_hello(hello);
        let opened = v1::Opened { connection, hello: Some(hello.clone()), unix_ns: clock::unix_ns() };
        let greeting = understand(hello.clone(), &shared.run, &shared.store)?;
        let connected = shared.registry.connect(
            &greeting.instance,
            Arc::clone(&greeting.identity),
            greeting.about,
            connection,
            downlink.clone(),
        );
        let Ok((agent, acknowledged)) = connected else {
            return Err(End::Refused(v1::Refused {
                message: "too many agents are connected to this collector".into(),
                retry: true,
                retry_after_ms: 2000,
            }));
        };
        shared.journal.record(record::Record::Opened(opened));
        let done = {
            let mut state = agent.state();
            state.last_seen = clock::unix_ns();
            state.clock_offset = Some(clock::seconds(greeting.unix_ns.saturating_sub(state.last_seen)));
            state.remark(greeting.remark);
            state.hello = v1::Hello { tables: Vec::new(), ..hello };
            state.done_seq
        };
        // Before the settings are locked, which come before agents.
        let offset = agent.state().step_offset;
        let (config, plan) = shared.settings.all(offset);
        let welcome = v1::Welcome {
            collector_version: VERSION.into(),
            run: shared.run.to_string(),
            acked_seq: acknowledged,
            unix_ns: clock::unix_ns(),
            config,
            plan,
        };
        // The first frame down: there is room.
        if agent.send(collector_frame::Frame::Welcome(welcome)).is_err() {
            return Err(End::Broken);
        }
        refuse(&agent, &greeting.tables);
        Ok(Self {
            agent,
            connection,
            instance: greeting.instance,
            identity: greeting.identity,
            tables: greeting.tables,
            strings: Strings::default(),
            no_more_text: false,
            done,
            acknowledged,
        })
    }

    /// One with nobody at the other end: what a process left that is gone is taken as if it had sent it.
    fn take_over(shared: &Shared, agent: &Arc<Agent>, tables: Vec<v1::TableSchema>) -> Result<Self, End> {
        let connection = shared.registry.new_connection();
        let hello = v1::Hello { tables, ..agent.state().hello.clone() };
        let opened = v1::Opened { connection, hello: Some(hello.clone()), unix_ns: clock::unix_ns() };
        let greeting = understand(hello, &shared.run, &shared.store)?;
        agent.take_over(connection);
        shared.journal.record(record::Record::Opened(opened));
        let done = agent.state().done_seq;
        Ok(Self {
            agent: Arc::clone(agent),
            connection,
            instance: greeting.instance,
            identity: greeting.identity,
            tables: greeting.tables,
            strings: Strings::default(),
            no_more_text: false,
            done,
            acknowledged: done,
        })
    }

    /// Keeps what was wrong with what the agent sent.
    pub(super) fn note(&self, end: &End, shared: &Shared) {
        let (End::Malformed(problem) | End::BadBatch(problem)) = end else { return };
        let mut state = self.agent.state();
        state.remark(truncate(format!("sent a malformed frame: {problem}"), MAX_TEXT));
        if matches!(end, End::Malformed(_)) {
            state.count_loss("(unknown)", "malformed", 0);
            shared.journal.record(record::Record::Lost(v1::Lost {
                instance: self.instance.clone(),
                table: "(unknown)".into(),
                reason: "malformed".into(),
                unix_ns: clock::unix_ns(),
                ..v1::Lost::default()
            }));
        }
    }

    /// Whether there is room for so much text more. From the first that finds none on, none of this connection is taken:
    /// ids follow from what came before.
    fn has_room(&mut self, shared: &Shared, strings: &v1::Strings) -> bool {
        let bytes = strings.values.iter().map(String::len).sum();
        if self.no_more_text || (shared.store.has_room_for_text(bytes) && shared.journal.has_room_for_text(bytes)) {
            return !self.no_more_text;
        }
        self.no_more_text = true;
        let what = "rows with new text are not kept: the text of all processes together takes what PROBE_MEMORY and \
                    PROBE_DISK have for it";
        self.agent.state().remark(what.into());
        false
    }

    fn take_what(&mut self, shared: &Shared, frame: agent_frame::Frame) -> Result<(), End> {
        self.take(shared, AgentFrame { frame: Some(frame) })
    }

    pub(super) fn take(&mut self, shared: &Shared, frame: AgentFrame) -> Result<(), End> {
        use agent_frame::Frame;
        match frame.frame {
            Some(Frame::Batch(batch)) => self.batch(shared, batch),
            Some(Frame::Strings(strings)) => {
                if !self.has_room(shared, &strings) {
                    return Ok(());
                }
                self.strings.extend(strings.clone()).map_err(|error| End::Malformed(error.to_string()))?;
                self.write_down(shared, said::What::Strings(strings));
                Ok(())
            }
            Some(Frame::Flush(_)) => {
                shared.journal.hurry();
                Ok(())
            }
            Some(Frame::Status(status)) => {
                if self.agent.state().connection != self.connection {
                    return Err(Superseded.into());
                }
                let status = truncate_status(status);
                for late in self.agent.report(status.clone()) {
                    shared.events.note(came_late(late, &self.identity));
                }
                self.write_down(shared, said::What::Status(status));
                shared.registry.notify();
                Ok(())
            }
            Some(Frame::Eval(reply)) => {
                self.agent.state().last_seen = clock::unix_ns();
                shared.routes.deliver(self.agent.key, reply);
                Ok(())
            }
            Some(Frame::Hello(hello)) => self.renew(shared, hello),
            Some(Frame::Bye(bye)) => {
                tracing::debug!(reason = bye.reason, last_seq = bye.last_seq, "an agent said goodbye");
                Err(End::Bye)
            }
            // A kind of frame that a later version has: nothing we know how to lose.
            None => Ok(()),
        }
    }

    /// Something of the identity has become known: rows from now on belong to the new one.
    fn renew(&mut self, shared: &Shared, hello: v1::Hello) -> Result<(), End> {
        let hello = truncate_hello(hello);
        let opened = v1::Opened { connection: self.connection, hello: Some(hello.clone()), unix_ns: clock::unix_ns() };
        let greeting = understand(hello.clone(), &shared.run, &shared.store)?;
        if greeting.instance != self.instance {
            return Err(End::Malformed("a second Hello is of another instance".into()));
        }
        {
            let mut state = self.agent.state();
            if state.connection != self.connection {
                return Err(Superseded.into());
            }
            state.identity = Arc::clone(&greeting.identity);
            state.about = greeting.about;
            state.hello = v1::Hello { tables: Vec::new(), ..hello };
            state.remark(greeting.remark);
            state.last_seen = clock::unix_ns();
            shared.journal.record(record::Record::Opened(opened));
        }
        refuse(&self.agent, &greeting.tables);
        self.identity = greeting.identity;
        self.tables = greeting.tables;
        shared.registry.notify();
        Ok(())
    }

    fn batch(&mut self, shared: &Shared, batch: v1::Batch) -> Result<(), End> {
        if batch.seq == 0 {
            return Err(End::Malformed("a batch without a sequence number".into()));
        }
        if batch.seq <= self.done {
            // Sent again after a reconnect, and already here.
            return Ok(());
        }
        let Some(declared) = self.tables.get(batch.table as usize) else {
            return Err(End::Malformed(format!("a batch of table {}, of {} declared", batch.table, self.tables.len())));
        };
        let from =
            Source { connection: self.connection, seq: batch.seq, table: &declared.name, recorded: batch.recorded };
        if declared.mapping.table().is_none() {
            let why = if declared.refused.is_some() { "table refused" } else { "unknown table" };
            self.agent.lose(&from, u64::from(batch.rows), why, &shared.journal)?;
            self.done = batch.seq;
            return Ok(());
        }
        match Rows::decode(&declared.mapping, &batch, &mut self.strings) {
            Ok(rows) => {
                let keep = Keep { store: &shared.store, journal: &shared.journal };
                self.done = batch.seq;
                self.agent.store(&from, &self.identity, rows, batch, keep)?;
                Ok(())
            }
            Err(error) => {
                let problem = format!("{}: {error}", declared.name);
                if batch.rows as usize > MAX_ROWS || batch.seq - self.done > MAX_GAP {
                    // Its numbers cannot be believed either.
                    return Err(End::Malformed(problem));
                }
                if self.no_more_text {
                    self.agent.lose(&from, u64::from(batch.rows), "no room for text", &shared.journal)?;
                    self.done = batch.seq;
                    return Ok(());
                }
                // Counted and done with: sent again after the reconnect it would be as malformed as it is now.
                self.agent.lose(&from, u64::from(batch.rows), "malformed", &shared.journal)?;
                Err(End::BadBatch(problem))
            }
        }
    }

    /// For whoever goes on after us.
    fn write_down(&self, shared: &Shared, what: said::What) {
        let said = v1::Said { connection: self.connection, what: Some(what), unix_ns: clock::unix_ns() };
        shared.journal.record(record::Record::Said(said));
    }

    /// Says what need not be kept any more, now that the journal is on disk up to `position`. What does not fit the
    /// way down now is said with the next.
    pub(super) fn acknowledge(&mut self, position: u64, downlink: &Downlink) {
        let seq = self.agent.settled(position);
        let ack = collector_frame::Frame::Ack(v1::Ack { seq });
        if seq > self.acknowledged && downlink.try_send(Ok(CollectorFrame { frame: Some(ack) })).is_ok() {
            self.acknowledged = seq;
        }
    }
}

/// Tells the agent which of its program's tables can't be kept.
fn refuse(agent: &Agent, tables: &[DeclaredTable]) {
    for table in tables {
        if let Some(message) = table.refused.clone() {
            let refused = v1::TableRefused { table: table.name.clone(), message };
            // One that has no room on the way down finds it in probe.agents and probe.drops.
            let _ = agent.send(collector_frame::Frame::TableRefused(refused));
        }
    }
}

/// Why ranks differ in a few steps.
fn came_late(late: v1::LatePlan, process: &Identity) -> Event {
    let v1::LatePlan { from_step, until_step } = late;
    let message = format!(
        "the plan of which steps are recorded in detail came late: steps {from_step} to {until_step} may have other detail here than in other processes"
    );
    let details = serde_json::json!({ "from_step": from_step, "until_step": until_step });
    Event::new("detail late", Severity::Info, message).of(process).at_step(from_step).with(&details)
}

impl From<Unwelcome> for End {
    fn from(unwelcome: Unwelcome) -> Self {
        match unwelcome {
            Unwelcome::Malformed(what) => Self::Malformed(what),
            Unwelcome::Refused(message) => Self::Refused(v1::Refused { message, retry: false, retry_after_ms: 0 }),
        }
    }
}
