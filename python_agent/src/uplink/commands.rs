//! Queues of snippets for Python, and of the replies to the collector.
//!
//! Two queues behind locks that training's thread takes only while it runs a snippet. A command carries the number of
//! the connection that it came on, and a reply is discarded when that connection is no longer the current one: a restarted
//! collector may use the same identifiers again.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use probe_proto::v1::{self, EvalReply, eval_reply::Reply};
use pyo3::prelude::*;

use super::snippet_words::At;
use crate::shared::lock;

/// Largest frame of a snippet's output (bytes). Output is joined up to this where the connection is slower than the output.
const OUTPUT_FRAME: usize = 64 << 10;
/// Bytes of waiting output from which on a snippet that can wait does.
const OUTPUT_AHEAD: usize = 1 << 20;

/// What is to be done about a snippet.
#[pyclass(frozen, eq, module = "probe_agent._native")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandKind {
    /// Reply where the snippet belongs, and run it if that is beside training.
    #[pyo3(name = "DECIDE")]
    Decide,
    /// Accept the snippet for a boundary between two steps.
    #[pyo3(name = "ARM")]
    Arm,
    /// Run the snippet: all ranks wait at the same boundary.
    #[pyo3(name = "GO")]
    Go,
    /// Go on to the next boundary.
    #[pyo3(name = "NEXT")]
    Next,
    /// End the snippet.
    #[pyo3(name = "CANCEL")]
    Cancel,
    /// End all snippets of the connection, which is gone.
    #[pyo3(name = "DISCONNECTED")]
    Disconnected,
}

/// What the collector asks Python to do.
#[pyclass(frozen, get_all, module = "probe_agent._native")]
#[derive(Debug, Clone)]
pub struct Command {
    /// What is to be done.
    pub kind: CommandKind,
    /// Number of the connection that the command came on.
    pub connection: u64,
    /// The snippet's identifier on that connection.
    pub id: u64,
    /// The snippet, if the command has one.
    pub snippet: Option<Snippet>,
    /// Why the snippet is cancelled.
    pub reason: String,
}

impl Command {
    /// A command about the snippet `id` without the snippet itself.
    pub fn of(kind: CommandKind, connection: u64, id: u64) -> Self {
        Self { kind, connection, id, snippet: None, reason: String::new() }
    }
}

/// A snippet, and how it is to run.
#[pyclass(frozen, get_all, module = "probe_agent._native")]
#[derive(Debug, Clone)]
pub struct Snippet {
    /// Python code to run.
    pub code: String,
    /// Where the snippet is to run.
    pub at: At,
    /// Number of finished steps at the first boundary to wait at; negative: runs at the next boundary without waiting.
    pub step: i64,
    /// Whether the collector compares where the ranks wait.
    pub hears_arrived: bool,
    /// Seconds that the snippet may take.
    pub timeout_s: f64,
    /// Seconds of `timeout_s` that had passed before Python took the snippet.
    pub waited_s: f64,
    /// Seconds that the request gave the snippet in all, of which `timeout_s` are left; 0: not known.
    pub asked_s: f64,
    /// Bytes that the snippet may print.
    pub max_output: u64,
    /// Whether the snippet runs without its output being sent.
    pub mute: bool,
    /// Name of the session whose variables the snippet sees; empty: none.
    pub session: String,
    /// Whether the session's variables are forgotten after the snippet.
    pub end_session: bool,
    /// Number, from the outermost, of the one frame of the training thread whose names the snippet sees; None: all frames of the
    /// user.
    pub frame: Option<u32>,
    /// The name to complete instead of running anything; empty: none.
    pub complete: String,
}

impl Snippet {
    /// A snippet to be placed by what it does, or to be run beside training.
    pub fn to_decide(decide: v1::EvalDecide) -> Self {
        let at = At(decide.at());
        let v1::EvalDecide { code, timeout_s, max_output, scope, .. } = decide;
        Self::in_scope(code, at, timeout_s, max_output, scope)
    }

    /// A snippet to be run between two steps.
    pub fn to_arm(arm: v1::EvalArm) -> Self {
        let v1::EvalArm { code, step, timeout_s, max_output, mute, scope, hears_arrived, .. } = arm;
        let snippet = Self::in_scope(code, At(v1::At::Step), timeout_s, max_output, scope);
        Self { step, mute, hears_arrived, ..snippet }
    }

    fn in_scope(code: String, at: At, timeout_s: f64, max_output: u64, scope: Option<v1::EvalScope>) -> Self {
        let v1::EvalScope { session, end_session, frame, complete, asked_s } = scope.unwrap_or_default();
        let (step, hears_arrived, mute, waited_s) = (0, false, false, 0.0);
        Self {
            code,
            at,
            step,
            hears_arrived,
            timeout_s,
            waited_s,
            asked_s,
            max_output,
            mute,
            session,
            end_session,
            frame,
            complete,
        }
    }
}

/// The queue of commands and the queue of replies.
#[derive(Debug, Default)]
pub struct CommandQueues {
    waiting: Mutex<WaitingCommands>,
    arrived: Condvar,
    replies: Mutex<WaitingReplies>,
    sent: Condvar,
}

#[derive(Debug, Default)]
struct WaitingCommands {
    /// Commands with their times of arrival.
    commands: VecDeque<(Instant, Command)>,
    closed: bool,
}

#[derive(Debug, Default)]
struct WaitingReplies {
    connection: u64,
    frames: VecDeque<EvalReply>,
    /// Bytes of output in `frames`.
    output: usize,
}

impl CommandQueues {
    /// Adds a command for Python.
    pub fn push(&self, command: Command) {
        lock(&self.waiting).commands.push_back((Instant::now(), command));
        self.arrived.notify_all();
    }

    /// Ends the commands: a thread that waits for one gets none.
    pub fn close(&self) {
        lock(&self.waiting).closed = true;
        self.arrived.notify_all();
    }

    /// Whether [`CommandQueues::close`] was called.
    pub fn is_closed(&self) -> bool {
        lock(&self.waiting).closed
    }

    /// Waits up to `timeout` until there is a command, or there will be no more.
    pub fn wait(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut waiting = lock(&self.waiting);
        while waiting.commands.is_empty() && !waiting.closed {
            let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
            let Some(left) = left else { return };
            let waited = self.arrived.wait_timeout(waiting, left);
            waiting = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Takes the next command. Its snippet has the seconds that it has waited.
    pub fn take_next(&self) -> Option<Command> {
        let (came, mut command) = lock(&self.waiting).commands.pop_front()?;
        if let Some(snippet) = &mut command.snippet {
            snippet.waited_s = came.elapsed().as_secs_f64();
        }
        Some(command)
    }

    /// Waits up to `timeout` for the next command and takes it.
    pub fn next(&self, timeout: Duration) -> Option<Command> {
        self.wait(timeout);
        self.take_next()
    }

    /// Removes a snippet that Python has not taken, so that it will not run. False where Python has taken it.
    pub fn withdraw(&self, connection: u64, id: u64) -> bool {
        let mut waiting = lock(&self.waiting);
        let before = waiting.commands.len();
        waiting
            .commands
            .retain(|(_, command)| (command.connection, command.id) != (connection, id) || command.snippet.is_none());
        waiting.commands.len() < before
    }

    /// Begins a connection: replies from now on belong to `connection`, and older ones are discarded.
    pub fn begin(&self, connection: u64) {
        *lock(&self.replies) = WaitingReplies { connection, ..WaitingReplies::default() };
        self.sent.notify_all();
    }

    /// Ends a connection: Python ends the snippets that run for it.
    pub fn end(&self, connection: u64) {
        self.begin(0);
        // Commands that Python has not taken are discarded, because their results would have no receiver.
        lock(&self.waiting).commands.retain(|(_, command)| command.connection != connection);
        self.push(Command::of(CommandKind::Disconnected, connection, 0));
    }

    /// Appends a reply; false where its connection is gone.
    pub fn reply(&self, connection: u64, id: u64, reply: Reply) -> bool {
        let mut replies = lock(&self.replies);
        if replies.connection != connection {
            return false;
        }
        match reply {
            Reply::Output(output) => replies.output(id, output),
            reply => replies.frames.push_back(EvalReply { id, reply: Some(reply) }),
        }
        true
    }

    /// Waits up to `timeout` until little output waits to be sent on this connection, or the connection is gone. False on
    /// timeout.
    pub fn wait_for_room(&self, connection: u64, timeout: Duration) -> bool {
        let is_full = |replies: &mut WaitingReplies| replies.connection == connection && replies.output >= OUTPUT_AHEAD;
        let waited = self.sent.wait_timeout_while(lock(&self.replies), timeout, is_full);
        !waited.unwrap_or_else(std::sync::PoisonError::into_inner).1.timed_out()
    }

    /// Whether a reply waits to be sent.
    pub fn has_reply(&self) -> bool {
        !lock(&self.replies).frames.is_empty()
    }

    /// The next reply to send.
    pub fn next_reply(&self) -> Option<EvalReply> {
        let mut replies = lock(&self.replies);
        let reply = replies.frames.pop_front()?;
        if let Some(Reply::Output(output)) = &reply.reply {
            replies.output -= output.data.len();
            self.sent.notify_all();
        }
        Some(reply)
    }
}

impl WaitingReplies {
    /// Appends output, in frames of which all but the last are full.
    fn output(&mut self, id: u64, output: v1::Output) {
        let v1::Output { stderr, mut data } = output;
        self.output += data.len();
        if let Some(EvalReply { id: last_id, reply: Some(Reply::Output(last)) }) = self.frames.back_mut()
            && *last_id == id
            && last.stderr == stderr
            && last.data.len() < OUTPUT_FRAME
        {
            let more = data.split_to(data.len().min(OUTPUT_FRAME - last.data.len()));
            // Data that was joined before is not shared, so it is extended without a copy.
            let mut joined =
                std::mem::take(&mut last.data).try_into_mut().unwrap_or_else(|last| BytesMut::from(&*last));
            joined.extend_from_slice(&more);
            last.data = joined.freeze();
        }
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(OUTPUT_FRAME));
            self.frames.push_back(EvalReply { id, reply: Some(Reply::Output(v1::Output { stderr, data: piece })) });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn output(text: &str, stderr: bool) -> Reply {
        Reply::Output(v1::Output { stderr, data: Bytes::copy_from_slice(text.as_bytes()) })
    }

    #[test]
    fn output_in_a_row_is_joined_and_its_order_kept() {
        let commands = CommandQueues::default();
        commands.begin(1);
        for (text, stderr) in [("a", false), ("b", false), ("c", true), ("d", false)] {
            assert!(commands.reply(1, 7, output(text, stderr)));
        }
        let sent: Vec<_> = std::iter::from_fn(|| commands.next_reply()).filter_map(|r| r.reply).collect();
        assert_eq!(sent, [output("ab", false), output("c", true), output("d", false)]);
    }

    #[test]
    fn output_of_any_size_is_cut_and_whoever_can_wait_for_room() {
        let commands = CommandQueues::default();
        commands.begin(1);
        assert!(commands.reply(1, 7, output("a", false)));
        assert!(commands.wait_for_room(1, Duration::ZERO));
        let large = "b".repeat(2 * OUTPUT_AHEAD);
        assert!(commands.reply(1, 7, output(&large, false)));
        assert!(!commands.wait_for_room(1, Duration::ZERO), "there is too much");
        assert!(commands.wait_for_room(2, Duration::ZERO), "of another connection");
        let mut sent = Vec::new();
        while let Some(EvalReply { reply: Some(Reply::Output(piece)), .. }) = commands.next_reply() {
            assert!(piece.data.len() <= OUTPUT_FRAME);
            sent.extend_from_slice(&piece.data);
        }
        assert_eq!(sent, format!("a{large}").into_bytes());
        assert!(commands.wait_for_room(1, Duration::ZERO));
        assert!(commands.reply(1, 7, output(&large, false)));
        commands.end(1);
        assert!(commands.wait_for_room(1, Duration::ZERO), "nobody takes it any more");
    }

    #[test]
    fn replies_to_a_connection_that_is_gone_are_not_sent_on_the_next() {
        let commands = CommandQueues::default();
        commands.begin(1);
        assert!(commands.reply(1, 1, output("old", false)));
        commands.end(1);
        commands.begin(2);
        assert!(!commands.reply(1, 1, output("late", false)));
        assert_eq!(commands.next_reply(), None);
        assert_eq!(commands.take_next().map(|c| c.kind), Some(CommandKind::Disconnected));
    }

    #[test]
    fn a_snippet_can_be_taken_back_until_it_is_taken() {
        let commands = CommandQueues::default();
        let decide = |id| {
            let snippet = Snippet::to_decide(v1::EvalDecide::default());
            Command { snippet: Some(snippet), ..Command::of(CommandKind::Decide, 1, id) }
        };
        commands.push(decide(1));
        commands.push(Command::of(CommandKind::Go, 1, 2));
        assert!(!commands.withdraw(1, 2) && !commands.withdraw(2, 1), "no snippet, and another connection's");
        assert!(commands.withdraw(1, 1) && !commands.withdraw(1, 1));
        assert_eq!(commands.take_next().map(|c| c.id), Some(2));
        commands.push(decide(3));
        commands.end(1);
        assert_eq!(commands.take_next().map(|c| c.kind), Some(CommandKind::Disconnected), "who asked for it is gone");
    }

    #[test]
    fn closing_wakes_whoever_waits() {
        let commands = std::sync::Arc::new(CommandQueues::default());
        let waiting = std::thread::spawn({
            let commands = std::sync::Arc::clone(&commands);
            move || {
                commands.wait(Duration::from_secs(60));
                commands.take_next().is_none()
            }
        });
        commands.close();
        assert!(waiting.join().unwrap());
    }
}
