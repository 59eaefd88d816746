//! One connection to a collector, from Hello to its end.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use probe_proto::table::Text;
use probe_proto::v1::eval_reply::Reply;
use probe_proto::v1::{self, AgentFrame, CollectorFrame, agent_frame, collector_frame};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use crate::address::CollectorAddress;
use crate::recording::config;
use crate::shared::set_problem;

use super::commands::{Command, CommandKind, Snippet};
use super::connect::CollectorConnection;
use super::fitting::fitting;
use super::link::{Uplink, UplinkPhase};
use super::outbox::Outbox;
use super::status::StatusReporter;

/// The connection is given up and tried again when Hello is not answered for this long.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// How long, after Bye, the collector may take to close its side.
const BYE_TIMEOUT: Duration = Duration::from_millis(500);
/// Frames that may wait between the session and the socket; others wait in the buffer, whose size is bounded.
const FRAMES_AHEAD: usize = 4;
/// Approximate bytes of strings in one frame.
const STRINGS_FRAME: usize = 1 << 20;

/// How a connection ended.
#[derive(Debug)]
pub enum ConnectionEnd {
    /// Everything was acknowledged and Bye was sent.
    Finished,
    /// The connection broke, for this reason.
    Lost(String),
    /// The collector refused this agent, for this reason: for this long, or (None) for ever.
    Refused(String, Option<Duration>),
}

struct UplinkSession<'a> {
    link: &'a Uplink,
    outbox: &'a RefCell<Outbox>,
    number: u64,
    reporter: StatusReporter,
    strings_sent: usize,
    identity_sent: u64,
    /// Number of tables that the newest Hello declared.
    tables_sent: usize,
    flush_sent: bool,
    /// The [`Outbox::awaited`] exceptions for which the newest Flush was sent.
    flushed_for: Option<(u64, u64)>,
    bye_sent: bool,
}

/// Runs a session with the collector until the connection ends. `number` is that of the connection, from 1. The second value is
/// whether the collector welcomed the agent.
pub async fn run(
    link: &Uplink,
    outbox: &RefCell<Outbox>,
    connected: CollectorConnection,
    number: u64,
) -> (ConnectionEnd, bool) {
    let CollectorConnection { mut client, authorization } = connected;
    let (frames, receiver) = mpsc::channel(FRAMES_AHEAD);
    let mut session = UplinkSession {
        link,
        outbox,
        number,
        reporter: StatusReporter::default(),
        strings_sent: 0,
        identity_sent: link.identity_version(),
        tables_sent: 0,
        flush_sent: false,
        flushed_for: None,
        bye_sent: false,
    };
    let hello = session.hello();
    // The channel has room: this is its first frame.
    let _ = frames.try_send(hello);
    let mut request = Request::new(ReceiverStream::new(receiver));
    if let Some(value) = authorization {
        request.metadata_mut().insert("authorization", value);
    }
    let opened = timeout(WELCOME_TIMEOUT, async {
        let mut inbound = client.session(request).await?.into_inner();
        let first = inbound.message().await?;
        Ok::<_, Status>((inbound, first))
    });
    let (mut inbound, first) = match opened.await {
        Ok(Ok(opened)) => opened,
        Ok(Err(status)) => return (ConnectionEnd::Lost(words(&status)), false),
        Err(_) => return (ConnectionEnd::Lost("it does not answer".into()), false),
    };
    match first.and_then(|frame| frame.frame) {
        Some(collector_frame::Frame::Welcome(welcome)) => session.welcome(welcome),
        Some(collector_frame::Frame::Refused(refused)) => return (refusal(refused), false),
        other => return (ConnectionEnd::Lost(format!("its first frame was {other:?}, not Welcome")), false),
    }
    let end = session.speak(&mut inbound, frames).await;
    link.commands.end(number);
    (end, true)
}

impl UplinkSession<'_> {
    fn hello(&mut self) -> AgentFrame {
        let tables: Vec<_> = self.outbox.borrow().sink.tables().map(|table| table.wire_schema()).collect();
        self.tables_sent = tables.len();
        AgentFrame { frame: Some(agent_frame::Frame::Hello(self.link.hello(tables))) }
    }

    fn welcome(&mut self, welcome: v1::Welcome) {
        {
            let mut outbox = self.outbox.borrow_mut();
            outbox.buffer.restart(welcome.acked_seq);
            outbox.acknowledge(welcome.acked_seq);
        }
        self.configure(&v1::Configure { values: welcome.config, plan: welcome.plan, watch_operators: 0 });
        self.link.commands.begin(self.number);
        self.link.set_phase(UplinkPhase::Connected(welcome.run));
    }

    async fn speak(
        &mut self,
        inbound: &mut Streaming<CollectorFrame>,
        frames: mpsc::Sender<AgentFrame>,
    ) -> ConnectionEnd {
        loop {
            let work = self.has_frame();
            tokio::select! {
                message = inbound.message() => match message {
                    Ok(Some(frame)) => if let Some(end) = self.take(frame) { return end },
                    Ok(None) if self.bye_sent => return ConnectionEnd::Finished,
                    Ok(None) => return ConnectionEnd::Lost("it closed the connection".into()),
                    Err(status) => return ConnectionEnd::Lost(words(&status)),
                },
                permit = frames.reserve(), if work => match permit {
                    Ok(permit) => if let Some(frame) = self.next_frame() {
                        permit.send(AgentFrame { frame: Some(fitting(frame)) });
                    },
                    Err(_) => return ConnectionEnd::Lost("the connection is gone".into()),
                },
                () = self.link.woken.notified(), if !work => {}
            }
            if self.bye_sent {
                drop(frames);
                return self.part(inbound).await;
            }
        }
    }

    /// Waits after Bye for the collector to close its side, so that Bye has arrived before the process ends.
    async fn part(&mut self, inbound: &mut Streaming<CollectorFrame>) -> ConnectionEnd {
        let closing = timeout(BYE_TIMEOUT, async { while let Ok(Some(_)) = inbound.message().await {} });
        // Everything was acknowledged before: a collector that does not close loses nothing.
        let _ = closing.await;
        ConnectionEnd::Finished
    }

    fn has_frame(&self) -> bool {
        let outbox = self.outbox.borrow();
        self.has_news(&outbox)
            || self.link.commands.has_reply()
            || self.reporter.is_due()
            || self.strings_sent < outbox.strings_ready
            || outbox.buffer.has_unsent()
            || outbox.is_waiting() && !self.flush_sent
            || outbox.wants_word() && self.flushed_for != outbox.awaited
            || outbox.is_done()
    }

    /// Whether Hello has changed: the identity of this process, or the tables of its program.
    fn has_news(&self, outbox: &Outbox) -> bool {
        self.identity_sent != self.link.identity_version() || self.tables_sent != outbox.sink.tables().count()
    }

    /// The most urgent frame. Strings come before the batches that use them, and Bye when nothing else is left.
    fn next_frame(&mut self) -> Option<agent_frame::Frame> {
        if self.has_news(&self.outbox.borrow()) {
            self.identity_sent = self.link.identity_version();
            return self.hello().frame;
        }
        if let Some(reply) = self.link.commands.next_reply() {
            return Some(agent_frame::Frame::Eval(reply));
        }
        let mut outbox = self.outbox.borrow_mut();
        let done = outbox.is_done();
        if self.reporter.is_due() && !done {
            let status = self.reporter.report(&outbox.pace, outbox.buffer.last_sent(), &outbox.sink);
            return Some(agent_frame::Frame::Status(status));
        }
        if self.strings_sent < outbox.strings_ready {
            let (first, mut bytes, mut values) = (self.strings_sent, 0, Vec::new());
            while self.strings_sent < outbox.strings_ready && bytes < STRINGS_FRAME {
                let text = outbox.sink.strings.get(Text(self.strings_sent as u32)).unwrap_or_default();
                bytes += text.len();
                values.push(text.to_owned());
                self.strings_sent += 1;
            }
            return Some(agent_frame::Frame::Strings(v1::Strings { first: first as u32, values }));
        }
        if let Some(batch) = outbox.buffer.next_unsent() {
            return Some(agent_frame::Frame::Batch(batch));
        }
        if outbox.is_waiting() && !self.flush_sent {
            self.flush_sent = true;
            return Some(agent_frame::Frame::Flush(v1::Flush {}));
        }
        if outbox.wants_word() && self.flushed_for != outbox.awaited {
            self.flushed_for = outbox.awaited;
            return Some(agent_frame::Frame::Flush(v1::Flush {}));
        }
        if !done {
            return None;
        }
        if !outbox.last_report_sent {
            // Drops of the last drain, and the last step, before Bye.
            outbox.last_report_sent = true;
            let status = self.reporter.report(&outbox.pace, outbox.buffer.last_sent(), &outbox.sink);
            return Some(agent_frame::Frame::Status(status));
        }
        self.bye_sent = true;
        let reason = self.link.stop_requested().map_or("exit", |stop| stop.reason);
        Some(agent_frame::Frame::Bye(v1::Bye { reason: reason.into(), last_seq: outbox.buffer.last_sent() }))
    }

    /// Handles a frame. Returns Some if it ends the connection.
    fn take(&mut self, frame: CollectorFrame) -> Option<ConnectionEnd> {
        use collector_frame::Frame;
        let frame = frame.frame?;
        if let Some((id, why)) = self.refuses(&frame) {
            let error = why.to_owned();
            let done = v1::Done { outcome: v1::Outcome::Refused as i32, error, ..Default::default() };
            self.link.commands.reply(self.number, id, Reply::Done(done));
            return None;
        }
        let command = match frame {
            Frame::Ack(ack) => {
                let mut outbox = self.outbox.borrow_mut();
                let sent = outbox.buffer.last_sent();
                outbox.acknowledge(ack.seq.min(sent));
                return None;
            }
            Frame::Configure(values) => {
                self.configure(&values);
                return None;
            }
            Frame::Refused(refused) => return Some(refusal(refused)),
            Frame::TableRefused(refused) => {
                crate::recording::tables::refuse(&refused.table, &refused.message);
                return None;
            }
            // Welcome comes once, at the beginning; a second one changes nothing.
            Frame::Welcome(_) => return None,
            Frame::EvalDecide(decide) => {
                let command = Command::of(CommandKind::Decide, self.number, decide.id);
                Command { snippet: Some(Snippet::to_decide(decide)), ..command }
            }
            Frame::EvalArm(arm) => {
                let command = Command::of(CommandKind::Arm, self.number, arm.id);
                Command { snippet: Some(Snippet::to_arm(arm)), ..command }
            }
            Frame::EvalGo(go) => Command::of(CommandKind::Go, self.number, go.id),
            Frame::EvalNext(next) => Command::of(CommandKind::Next, self.number, next.id),
            Frame::EvalCancel(cancel) => {
                if self.link.commands.withdraw(self.number, cancel.id) {
                    // Python has not taken the snippet, so the reply is made here.
                    let (outcome, step) = (v1::Outcome::Cancelled as i32, crate::shared::STEP.load(Ordering::Relaxed));
                    let done = v1::Done { outcome, error: cancel.reason, step, ..v1::Done::default() };
                    self.link.commands.reply(self.number, cancel.id, Reply::Done(done));
                    return None;
                }
                let command = Command::of(CommandKind::Cancel, self.number, cancel.id);
                Command { reason: cancel.reason, ..command }
            }
        };
        self.link.commands.push(command);
        None
    }

    /// The identifier of a snippet that this process does not run, and why.
    fn refuses(&self, frame: &collector_frame::Frame) -> Option<(u64, &str)> {
        let (id, over_tcp) = match frame {
            collector_frame::Frame::EvalDecide(decide) => (decide.id, decide.over_tcp),
            collector_frame::Frame::EvalArm(arm) => (arm.id, arm.over_tcp),
            _ => return None,
        };
        if let Some(why) = &self.link.settings.no_snippets {
            return Some((id, why));
        }
        // To the collector, or from it.
        let came_far = over_tcp || matches!(self.link.address, CollectorAddress::Tcp(_));
        let why = "this process runs no snippets that come over TCP (PROBE_EVAL=tcp lets them)";
        (came_far && !self.link.settings.eval_over_tcp).then_some((id, why))
    }

    fn configure(&self, values: &v1::Configure) {
        if let Err(problem) = config::apply(&values.values, values.plan.as_ref()) {
            set_problem(format!("a setting was refused: {problem}"));
        }
        if values.watch_operators > 0 {
            crate::recording::operators::watch(values.watch_operators);
        }
    }
}

fn refusal(refused: v1::Refused) -> ConnectionEnd {
    let delay = Duration::from_millis(u64::from(refused.retry_after_ms));
    ConnectionEnd::Refused(refused.message, refused.retry.then_some(delay))
}

fn words(status: &Status) -> String {
    match status.message() {
        "" => format!("{:?}", status.code()),
        message => message.to_owned(),
    }
}

// A frame of strings is never too large, even if its last string has the greatest length.
const _: () = assert!(STRINGS_FRAME + probe_proto::MAX_STRING < probe_proto::MAX_FRAME / 2);
