"""Takes the collector's commands, one snippet at a time, on a thread of its own that never runs one itself.

A snippet beside training gets a fresh thread, so that it has torch's modes as a thread begins with them and the
commands that end it are heard meanwhile; one between two steps runs on the training thread (:mod:`boundary`).
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from typing import Any

from probe_agent._native import At, CommandKind, Outcome, ThreadMode
from probe_agent.eval import boundary, complete, frames, guard, namespace, safe_text
from probe_agent.eval.job import SnippetJob, parsed
from probe_agent.eval.placement import Placement, place
from probe_agent.eval.sessions import SESSIONS
from probe_agent.eval.snippet import SnippetResult

#: Packages that replace threads by greenlets. crates/inspect/src/attach/bootstrap.py, which runs before this package, has them too.
_GREENLETS = ("gevent", "eventlet")

# Seconds between two checks of a snippet's deadline.
TICK_SECONDS = 0.1

#: The thread's identifier, and what it sets as it ends. None before the first start.
_started: tuple[int, threading.Event] | None = None


def why_no_snippets() -> str | None:
    """Why this process can run no snippet; None where it can.

    gevent and eventlet replace the function that starts threads: a new "thread" is a greenlet of the calling thread, which trains,
    and training would stand still while it waits for commands. Debuggers replace that function too, but start a thread.
    """
    by = str(getattr(_thread.start_new_thread, "__module__", "")).partition(".")[0]
    if by not in _GREENLETS:
        return None
    return f"threads are replaced by {by} in this process, so no snippet can run beside training"


def start() -> None:
    """Starts the thread, where this process can run snippets; the uplink must have been started.

    `threading` does not know it: programs wait for all threads that `threading.enumerate()` has, or until there is one left.
    """
    global _started
    from probe_agent import _native

    if why_no_snippets() is not None:
        return
    _native.set_beside_message(guard.MESSAGE)
    _native.set_boundary_callback(boundary.run_pending)
    ended = threading.Event()

    def serve() -> None:
        _native.name_thread("probe-eval")
        try:
            Runner(_native).serve()
        finally:
            ended.set()

    _started = (_thread.start_new_thread(serve, ()), ended)


def begin_in_child() -> None:
    """Forgets what the parent ran, in a forked child that becomes an agent."""
    global _started
    _started = None
    boundary.begin_in_child()
    guard.begin_in_child()
    SESSIONS.clear()


def join() -> None:
    """Waits until the thread has ended, after the uplink was stopped, so that it is not in native code when Python ends."""
    if _started is not None:
        thread, ended = _started
        if thread != _thread.get_ident():
            ended.wait(1.0)


class Runner:
    """The work of the thread. `native` is the native half, or a smaller stand-in in tests."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.job: SnippetJob | None = None
        self.allowed = os.environ.get("PROBE_EVAL", "on") != "off"

    def serve(self) -> None:
        """Takes commands until the uplink ends."""
        while True:
            busy = self.job is not None and not self.job.is_over()
            try:
                command = self.native.next_command(TICK_SECONDS if busy else 3600.0)
            except EOFError:
                if self.job is not None and not self.job.is_over():
                    self.end(self.job, SnippetResult(Outcome.CANCELLED, "the process is ending"))
                return
            try:
                if command is not None:
                    self.take(command)
                self.tick()
            except Exception as error:
                self.native.set_problem(f"probe eval: {safe_text.described(error)}")

    def take(self, command: Any) -> None:
        """Carries out a command."""
        job = self.job if self.job is not None and not self.job.is_over() else None
        if command.snippet is not None:
            self.take_snippet(command, job)
        elif job is None or job.connection != command.connection:
            return
        elif command.kind == CommandKind.DISCONNECTED:
            self.end(job, SnippetResult(Outcome.CANCELLED, "the collector is gone"))
        elif job.id != command.id:
            return
        elif command.kind == CommandKind.GO:
            job.go()
        elif command.kind == CommandKind.NEXT:
            job.stop_at_next()
        elif command.kind == CommandKind.CANCEL:
            self.end(job, SnippetResult(Outcome.CANCELLED, command.reason or "cancelled"))

    def take_snippet(self, command: Any, job: SnippetJob | None) -> None:
        """Takes a snippet, unless `job` runs or waits here."""
        snippet = command.snippet
        replaced = why_no_snippets()  # They may have been replaced since the start.
        if not self.allowed:
            self.refuse(command, "this process runs no snippets (PROBE_EVAL=off)")
        elif replaced is not None:
            self.refuse(command, replaced)
        elif snippet.complete:
            self.complete(command)
        elif job is not None:
            hint = "SELECT * FROM probe.evals WHERE status = 'running' shows it; Ctrl-C in its terminal ends it"
            self.refuse(command, f"an earlier snippet is {job.progress()} in this process", hint)
        elif command.kind == CommandKind.DECIDE:
            self.decide(command)
        elif snippet.step >= 0 and not snippet.hears_arrived:
            # Such a collector would have each rank run the snippet at another step.
            hint = "probe serve --resume starts one with this agent's wheel"
            why = "the collector is older than this agent and can't bring ranks to the same step"
            self.refuse(command, why, hint)
        else:
            self.arm(command)

    def tick(self) -> None:
        """Ends the snippet that waits or runs if its deadline has passed."""
        job = self.job
        if job is None or job.is_over():
            self.job = None
            return
        if job.was_ended():
            job.press()
        elif time.monotonic() >= job.deadline:
            if job.is_waiting():
                self.end(job, SnippetResult(Outcome.NO_BOUNDARY, self.no_boundary(job)))
            else:
                why = f"it took longer than its deadline of {job.timeout_s:.10g} s"
                self.end(job, SnippetResult(Outcome.TIMEOUT, why))

    def end(self, job: SnippetJob, ending: SnippetResult) -> None:
        """Ends a snippet that waits or runs. It needs no boundary from here on: a running one has had its own. It is disarmed
        before it is answered."""
        boundary.disarm(job)
        job.end(ending)

    def no_boundary(self, job: SnippetJob) -> str:
        """The error of a snippet that waited for a boundary in vain."""
        location = namespace.where(namespace.training_thread())
        return f"no boundary between two steps came within {job.timeout_s:.10g} s; the training thread is at {location}"

    def refuse(self, command: Any, why: str, hint: str = "") -> None:
        """Answers a snippet that may not run here."""
        step = self.native.step()
        self.native.reply_done(command.connection, command.id, Outcome.REFUSED, why, 0.0, 0.0, step, False, hint)

    def complete(self, command: Any) -> None:
        """Completes a name. This runs no code, so it is allowed while a snippet runs."""
        snippet, request = command.snippet, (command.connection, command.id)
        self.native.reply_placed(*request, At.NOW, "it only looks")
        try:
            known = frames.names(namespace.training_thread(), snippet.frame)
        except frames.NoFrameError:
            known = {}
        found = complete.names(snippet.complete, {**known, **SESSIONS.variables(snippet.session)})
        text = "".join(f"{name}\n" for name in found)
        self.native.reply_output(*request, False, text.encode())
        self.native.reply_done(*request, Outcome.OK, "", 0.0, 0.0, self.native.step())

    def decide(self, command: Any) -> None:
        """Says where a snippet belongs, and runs it where that is beside training."""
        job = parsed(self.native, command)
        if job is None:
            return
        if time.monotonic() >= job.deadline:
            # The command waited for the GIL until after its deadline.
            job.withdraw(SnippetResult(Outcome.TIMEOUT, "its deadline had passed when this process could take it"))
            return
        try:
            names = frames.names(namespace.training_thread(), job.frame)
        except frames.NoFrameError as error:
            job.fail(error)
            return
        seen = {**names, **SESSIONS.variables(job.session)}
        asked_for = command.snippet.at == At.NOW
        placed = Placement(At.NOW, "it was asked for") if asked_for else place(job.tree, seen)
        self.native.reply_placed(command.connection, command.id, placed.at, placed.why)
        if placed.at == At.NOW and job.begin():
            self.job = job
            threading.Thread(target=self.beside, args=(job, names), name="probe-snippet", daemon=True).start()

    def beside(self, job: SnippetJob, names: dict[str, Any]) -> None:
        """Runs a snippet on the calling thread, which is its own."""
        self.native.thread_mode(ThreadMode.BESIDE)
        with guard.guarded(self.native.layers(), self.native.set_problem):
            job.run(names)

    def arm(self, command: Any) -> None:
        """Takes a snippet that runs at a boundary, and reports that."""
        job = parsed(self.native, command)
        if job is None:
            return
        self.job = job
        # The reply is sent before training can report anything about the snippet.
        self.native.reply_armed(command.connection, command.id, self.native.step())
        boundary.arm(job)
