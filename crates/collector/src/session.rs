//! [`AgentSession`]: takes in what one connection of an agent says, and answers. What a process that is gone had recorded and
//! not sent comes in the same way.

use std::sync::Arc;

use probe_common::clock;
use probe_proto::VERSION;
use probe_proto::v1::{self, CollectorFrame, agent_frame, collector_frame, record};
use probe_store::ProcessIdentity;
use tonic::Status;

use super::agent::batches::{ConnectionSuperseded, RowDestination};
use super::agent::{Agent, Downlink, NotWelcomed, truncate_status};
use super::events::{RunEvent, Severity};
use super::hello::{AcceptedHello, DeclaredTable, HelloRefusal, truncate_hello, understand};
use super::ingest::{AgentDestination, IngestError, IngestSession};
use super::settings::offset_among_ranks;
use super::shared::CollectorState;
use crate::truncate::{MAX_TEXT, truncate};

/// How a stream ends.
#[derive(Debug)]
pub(super) enum StreamEnd {
    /// The agent said Bye.
    Bye,
    /// The agent is gone.
    Broken,
    /// The stream is closed with this status, and the agent may come back.
    Closed(Status),
    /// The agent sent a malformed frame, of which it is not known how many rows it had.
    Malformed(String),
    /// The agent sent a malformed batch, whose rows are counted as lost.
    BadBatch(String),
    /// The agent is told to come back later, or never.
    Refused(v1::Refused),
}

impl From<ConnectionSuperseded> for StreamEnd {
    fn from(_: ConnectionSuperseded) -> Self {
        Self::Closed(Status::aborted("a newer connection of the same agent took over"))
    }
}

impl From<IngestError> for StreamEnd {
    fn from(error: IngestError) -> Self {
        match error {
            IngestError::Superseded => ConnectionSuperseded.into(),
            IngestError::Malformed(problem) => Self::Malformed(problem),
            IngestError::BadBatch(problem) => Self::BadBatch(problem),
        }
    }
}

/// A connection of an agent after its first Hello.
pub(super) struct AgentSession {
    pub(super) agent: Arc<Agent>,
    ingest: IngestSession,
    /// Newest sequence number that was acknowledged to the agent.
    acknowledged: u64,
}

impl AgentSession {
    pub(super) fn begin(
        shared: &CollectorState,
        hello: v1::Hello,
        downlink: &Downlink,
        connection: u64,
    ) -> Result<Self, StreamEnd> {
        let hello = truncate_hello(hello);
        let AcceptedHello { declaration, about, unix_ns, remark } =
            understand(hello.clone(), &shared.run, &shared.store)?;
        let connected =
            shared.registry.connect(&declaration.instance, Arc::clone(&declaration.identity), about, connection);
        let Ok((agent, acknowledged)) = connected else {
            return Err(StreamEnd::Refused(v1::Refused {
                message: "too many agents are connected to this collector".into(),
                retry: true,
                retry_after_ms: 2000,
            }));
        };
        let done = agent.state().done_seq;
        let ingest = IngestSession::open(connection, hello.clone(), declaration, done, &destination(&agent, shared));
        {
            let mut state = agent.state();
            state.last_seen = clock::unix_ns();
            state.clock_offset = Some(clock::seconds(unix_ns.saturating_sub(state.last_seen)));
            state.note_problem(remark);
            state.hello = v1::Hello { tables: Vec::new(), ..hello };
        }
        // Read before the settings are locked, because their lock is taken before those of agents.
        let offset = offset_among_ranks(&agent.state());
        let welcomed = shared.settings.tell_all(offset, |config, plan| {
            let welcome = v1::Welcome {
                collector_version: VERSION.into(),
                run: shared.run.to_string(),
                acked_seq: acknowledged,
                unix_ns: clock::unix_ns(),
                config,
                plan,
            };
            shared.registry.welcome(&agent, connection, downlink.clone(), welcome)
        });
        match welcomed {
            Ok(()) => {}
            Err(NotWelcomed::Superseded) => return Err(ConnectionSuperseded.into()),
            Err(NotWelcomed::Gone) => {
                shared.registry.disconnect(&agent, connection, false);
                return Err(StreamEnd::Broken);
            }
        }
        refuse(&agent, ingest.tables());
        Ok(Self { agent, ingest, acknowledged })
    }

    /// A session without a connection: it takes what a process left that is gone, as if the process had sent it.
    pub(super) fn take_over(
        shared: &CollectorState,
        agent: &Arc<Agent>,
        tables: Vec<v1::TableSchema>,
    ) -> Result<Self, StreamEnd> {
        let connection = shared.registry.new_connection();
        let hello = v1::Hello { tables, ..agent.state().hello.clone() };
        let greeting = understand(hello.clone(), &shared.run, &shared.store)?;
        agent.take_over(connection);
        let done = agent.state().done_seq;
        let to = destination(agent, shared);
        let ingest = IngestSession::open(connection, hello, greeting.declaration, done, &to);
        Ok(Self { agent: Arc::clone(agent), ingest, acknowledged: done })
    }

    /// Keeps in the agent's state what was wrong with its frames.
    pub(super) fn note_end(&self, end: &StreamEnd, shared: &CollectorState) {
        let (StreamEnd::Malformed(problem) | StreamEnd::BadBatch(problem)) = end else { return };
        let mut state = self.agent.state();
        state.note_problem(truncate(format!("sent a malformed frame: {problem}"), MAX_TEXT));
        if matches!(end, StreamEnd::Malformed(_)) {
            state.count_loss("(unknown)", "malformed", 0);
            shared.journal.record(record::Record::Lost(v1::Lost {
                instance: self.agent.instance.to_string(),
                table: "(unknown)".into(),
                reason: "malformed".into(),
                unix_ns: clock::unix_ns(),
                ..v1::Lost::default()
            }));
        }
    }

    /// Whether the batch of this number is done with.
    pub(super) fn is_done(&self, seq: u64) -> bool {
        self.ingest.is_done(seq)
    }

    /// Takes in a frame.
    pub(super) fn receive(&mut self, shared: &CollectorState, frame: agent_frame::Frame) -> Result<(), StreamEnd> {
        use agent_frame::Frame;
        match frame {
            Frame::Batch(batch) => Ok(self.ingest.batch(batch, &mut destination(&self.agent, shared))?),
            Frame::Strings(strings) => self.strings(shared, strings),
            Frame::Flush(_) => {
                shared.journal.sync_now();
                Ok(())
            }
            Frame::Status(status) => {
                if self.agent.state().connection != self.ingest.connection() {
                    return Err(ConnectionSuperseded.into());
                }
                let status = truncate_status(status);
                for late in self.agent.report(status.clone()) {
                    shared.events.record(came_late(late, self.ingest.identity()));
                }
                self.ingest.status(status, &shared.journal);
                shared.registry.notify();
                Ok(())
            }
            Frame::Eval(reply) => {
                self.agent.state().last_seen = clock::unix_ns();
                shared.routes.deliver(self.agent.key, reply);
                Ok(())
            }
            Frame::Hello(hello) => self.renew(shared, hello),
            Frame::Bye(bye) => {
                tracing::debug!(reason = bye.reason, last_seq = bye.last_seq, "an agent said goodbye");
                Err(StreamEnd::Bye)
            }
        }
    }

    /// Takes strings where there is room for them. After a connection has brought too many, it gets no later ones in either.
    fn strings(&mut self, shared: &CollectorState, strings: v1::Strings) -> Result<(), StreamEnd> {
        let bytes = strings.values.iter().map(String::len).sum();
        if self.ingest.lacks_text() {
            return Ok(());
        }
        if shared.store.has_room_for_text(bytes) && shared.journal.has_room_for_text(bytes) {
            return Ok(self.ingest.strings(strings, &destination(&self.agent, shared))?);
        }
        self.ingest.leave_out_text();
        let what = "rows with new text are not kept: the text of all processes together takes what PROBE_MEMORY and \
                    PROBE_DISK have for it";
        self.agent.state().note_problem(what.into());
        Ok(())
    }

    /// Takes a new Hello, by which more of the identity is known: rows from now on belong to the new identity.
    fn renew(&mut self, shared: &CollectorState, hello: v1::Hello) -> Result<(), StreamEnd> {
        let hello = truncate_hello(hello);
        let AcceptedHello { declaration, about, remark, .. } = understand(hello.clone(), &shared.run, &shared.store)?;
        if declaration.instance != *self.agent.instance {
            return Err(StreamEnd::Malformed("a second Hello is of another instance".into()));
        }
        {
            let mut state = self.agent.state();
            if state.connection != self.ingest.connection() {
                return Err(ConnectionSuperseded.into());
            }
            state.identity = Arc::clone(&declaration.identity);
            state.about = about;
            state.hello = v1::Hello { tables: Vec::new(), ..hello.clone() };
            state.note_problem(remark);
            state.last_seen = clock::unix_ns();
            // With the state locked, so that the journal has this before a newer connection.
            self.ingest.renew(hello, declaration, &destination(&self.agent, shared));
        }
        refuse(&self.agent, self.ingest.tables());
        shared.registry.notify();
        Ok(())
    }

    /// Ends the session. `bye`: the agent said Bye.
    pub(super) fn close(&self, bye: bool, shared: &CollectorState) {
        self.ingest.close(bye, &shared.journal);
    }

    /// Acknowledges the batches that need not be sent again, now that the journal is on disk up to `position`. Where the channel
    /// is full, the next acknowledgement covers them.
    pub(super) fn acknowledge(&mut self, position: u64, downlink: &Downlink) {
        let seq = self.agent.settled(position);
        let ack = collector_frame::Frame::Ack(v1::Ack { seq });
        if seq > self.acknowledged && downlink.try_send(Ok(CollectorFrame { frame: Some(ack) })).is_ok() {
            self.acknowledged = seq;
        }
    }
}

/// Where the agent's batches go.
fn destination<'a>(agent: &'a Agent, shared: &'a CollectorState) -> AgentDestination<'a> {
    AgentDestination { agent, keep: RowDestination { store: &shared.store, journal: &shared.journal } }
}

/// Tells the agent which tables of its program can't be kept.
fn refuse(agent: &Agent, tables: &[DeclaredTable]) {
    for table in tables {
        if let Some(message) = table.refused.clone() {
            let refused = v1::TableRefused { table: table.name.clone(), message };
            // Where the channel is full, probe.agents and probe.drops say it.
            let _ = agent.send(collector_frame::Frame::TableRefused(refused));
        }
    }
}

/// The event of an agent that heard of a plan too late: ranks differ in detail for a few steps.
fn came_late(late: v1::LatePlan, process: &ProcessIdentity) -> RunEvent {
    let v1::LatePlan { from_step, until_step } = late;
    let message = format!(
        "the plan of which steps are recorded in detail came late: steps {from_step} to {until_step} may have other detail here than in other processes"
    );
    let details = serde_json::json!({ "from_step": from_step, "until_step": until_step });
    RunEvent::new("detail late", Severity::Info, message).of_process(process).at_step(from_step).with_details(&details)
}

impl From<HelloRefusal> for StreamEnd {
    fn from(unwelcome: HelloRefusal) -> Self {
        match unwelcome {
            HelloRefusal::Malformed(what) => Self::Malformed(what),
            HelloRefusal::Refused(message) => Self::Refused(v1::Refused { message, retry: false, retry_after_ms: 0 }),
        }
    }
}
