"""A snippet that the collector asked for: from the command to the Done that answers it.

A snippet that was ended but goes on, in a call that Python cannot interrupt, has two answers: one that says so, and one when
it is over. A snippet runs at most once: :meth:`SnippetJob.begin` comes before running it, and fails once it was withdrawn.
"""

from __future__ import annotations

import enum
import threading
import time
from typing import Any

from probe_agent._native import Outcome
from probe_agent.eval import frames, output, own_variables
from probe_agent.eval.ended import SnippetEnded
from probe_agent.eval.putback import put_back
from probe_agent.eval.sessions import SESSIONS
from probe_agent.eval.snippet import ParsedSnippet, SnippetExecution, SnippetResult, parse, words_of

# Seconds from ending a snippet until it is reported as still running, and between two attempts to end it.
GRACE_SECONDS = 1.0
RETRY_SECONDS = 0.5
# Seconds for which a snippet that is to end may go on because it is importing a module.
MAX_IMPORT_SECONDS = 60.0
# Seconds between two checks whether a snippet was ended, while its output waits for the connection.
ROOM_SECONDS = 0.05

WAITING, RUNNING, OVER = range(3)


class BoundaryDecision(enum.Enum):
    """What training that waits at a boundary is told: to run the snippet there, or to go on to the next boundary."""

    GO = "go"
    NEXT = "next"


class SnippetJob:
    """One command's snippet. Made by :func:`parsed`."""

    def __init__(self, native: Any, command: Any, code: ParsedSnippet) -> None:
        snippet = command.snippet
        self.native = native
        self.connection: int = command.connection
        self.id: int = command.id
        self.step: int = snippet.step
        self.mute: bool = snippet.mute
        self.session: str = snippet.session
        self.end_session: bool = snippet.end_session
        self.frame: int | None = snippet.frame
        # `timeout_s` may have got less on the way here; messages name the time that was requested.
        self.timeout_s: float = snippet.asked_s or snippet.timeout_s
        self.deadline = time.monotonic() + snippet.timeout_s - snippet.waited_s
        #: Seconds that training has waited for the snippet at boundaries where it did not run.
        self.waited = 0.0
        #: How many times the snippet was told to stop at the next boundary.
        self.nexts = 0
        self._stands = False
        self._word: BoundaryDecision | None = None
        self._word_came = threading.Event()
        self.execution = SnippetExecution(snippet.code, filename(command), code)
        self._limit = int(snippet.max_output) or 1 << 62
        self._outlet = output.OutputSender(self._send, self._limit, self._at_limit)
        self._beside = False
        self._lock = threading.Lock()
        self._state = WAITING
        self._answered = False
        self._runs_on = False
        self._verdict: SnippetResult | None = None
        self._ended_at = 0.0
        self._last_attempt = 0.0

    @property
    def tree(self) -> Any:
        """The syntax tree."""
        return self.execution.parsed.tree

    def is_waiting(self) -> bool:
        """Whether the snippet has neither begun nor been withdrawn."""
        return self._state == WAITING

    def is_over(self) -> bool:
        """Whether nothing of the snippet runs any more, nor will."""
        return self._state == OVER

    def progress(self) -> str:
        """How far the snippet is, for a message."""
        if self.was_ended():
            return "still running"
        left = max(0.0, self.deadline - time.monotonic())
        return f"{'waiting' if self.is_waiting() else 'running'} (for {left:.0f} s more at most)"

    def arrive(self, groups: list[tuple[str, int]]) -> None:
        """Reports the boundary at which training waits for the snippet, unless it was withdrawn. `groups`: how far each process
        group is."""
        with self._lock:
            if self._state == WAITING:
                self._stands = True
                self.native.reply_arrived(self.connection, self.id, self.native.step(), groups, self.nexts)

    def go(self) -> None:
        """Runs the snippet where training waits: all ranks wait at the same boundary."""
        with self._lock:
            self._give_word(BoundaryDecision.GO)

    def stop_at_next(self) -> None:
        """Stops at the next boundary, whatever the snippet's step; if training waits at one, at the boundary after that."""
        with self._lock:
            self.nexts += 1
            self.step = 0
            self._give_word(BoundaryDecision.NEXT)

    def _give_word(self, word: BoundaryDecision) -> None:
        if self._stands:
            self._stands, self._word = False, word
            self._word_came.set()

    def take_word(self, timeout_s: float) -> BoundaryDecision | None:
        """Waits for a word, without the GIL; None if no word came in time, or the snippet was withdrawn."""
        self._word_came.wait(timeout_s)
        with self._lock:
            word, self._word = self._word, None
            if self._state == WAITING:
                self._word_came.clear()
        return word

    def begin(self) -> bool:
        """Claims the snippet for running it now; False if it was withdrawn."""
        with self._lock:
            if self._state != WAITING:
                return False
            self._state = RUNNING
            return True

    def run(self, names: dict[str, Any], waited_from: float | None = None) -> None:
        """Runs the snippet after :meth:`begin` and answers. `waited_from`: since when (perf_counter) training waits for it."""
        self._beside = waited_from is None
        try:
            # The streams are restored before the answer is sent, because the next snippet may begin then.
            with output.captured(self._outlet, self.say, output.replaces_streams(self.tree)):
                ending = self._run(names, self._beside)
        finally:
            with self._lock:
                self._state = OVER
        waited = 0.0 if waited_from is None else self.waited + time.perf_counter() - waited_from
        if self._runs_on or self._outlet.left_out:
            # The snippet was reported as still running, and is over now; or a part of its output is missing.
            ending = self._verdict
        if ending is not None and ending.outcome == Outcome.OUTPUT_LIMIT:
            # It may have printed more since the verdict.
            ending = self._over_limit()
        self._answer(ending or self._verdict or SnippetResult(Outcome.CANCELLED), self.execution.seconds, waited)

    def fail(self, error: frames.NoFrameError) -> None:
        """Answers that the snippet can't run, before or after :meth:`begin`; it never runs."""
        with self._lock:
            self._state = OVER
        self._answer(SnippetResult(Outcome.ERROR, str(error)), 0.0, 0.0, hint=error.hint)

    def _run(self, names: dict[str, Any], beside: bool) -> SnippetResult | None:
        if beside:
            return self._run_in_session(names, beside)
        with put_back(self.say):
            return self._run_in_session(names, beside)

    def _run_in_session(self, names: dict[str, Any], beside: bool) -> SnippetResult | None:
        if not self.session:
            in_vain = own_variables.in_vain(self.execution.parsed.assigned, names)
            result = self.execution.run(names, beside)
            if in_vain is not None and result is not None and result.outcome == Outcome.OK:
                self.say(in_vain)
            return result
        for line in SESSIONS.open(self.session):
            self.say(line)
        try:
            with SESSIONS.lent(self.session, names) as lent:
                return self.execution.run(lent, beside)
        finally:
            if self.end_session:
                SESSIONS.end(self.session)

    def say(self, line: str) -> None:
        """Sends a message of the agent on the snippet's standard error. It does not count towards the output limit."""
        if not self.mute and not self._answered:
            self.native.reply_output(self.connection, self.id, True, f"probe: {line}\n".encode())

    def withdraw(self, ending: SnippetResult) -> bool:
        """Answers with `ending`, and the snippet never runs; False if it has begun."""
        with self._lock:
            if self._state != WAITING:
                return False
            self._state = OVER
        self._word_came.set()
        self._answer(ending, 0.0, 0.0)
        return True

    def end(self, ending: SnippetResult) -> None:
        """Withdraws the snippet, or ends it if it runs; then `ending` is the answer once it has ended."""
        if not self.withdraw(ending):
            with self._lock:
                if self._verdict is None:
                    self._verdict, self._ended_at = ending, time.monotonic()
            self.press()

    def press(self) -> None:
        """Tries again to end a snippet that :meth:`end` was called for; after a while reports that it is still running."""
        verdict, now = self._verdict, time.monotonic()
        if verdict is None or self._state != RUNNING:
            return
        if now - self._last_attempt >= RETRY_SECONDS:
            self._last_attempt = now
            self.execution.end(within_imports=now - self._ended_at > MAX_IMPORT_SECONDS)
        if now - self._ended_at > GRACE_SECONDS and not self._answered:
            self._answer(verdict, self.execution.seconds, 0.0, still_running=True)

    def was_ended(self) -> bool:
        """Whether :meth:`end` was called while it ran."""
        return self._verdict is not None

    def _send(self, stderr: bool, piece: bytes) -> None:
        """Sends a piece of the output. Beside training this waits for a slow connection; on the training thread it does not."""
        while not self.mute and not self._answered:
            if not self._beside or self.native.wait_for_room(self.connection, ROOM_SECONDS):
                self.native.reply_output(self.connection, self.id, stderr, piece)
                return

    def _at_limit(self) -> None:
        """Ends a snippet that has printed more than its limit."""
        ending = self._over_limit()
        with self._lock:
            if self._verdict is None:
                self._ended_at = time.monotonic()
            if self._verdict is None or self._verdict.outcome == ending.outcome:
                self._verdict = ending
        if not self.execution.is_importing():
            raise SnippetEnded

    def _over_limit(self) -> SnippetResult:
        words = f"it printed more than its limit of {self._limit} bytes"
        return SnippetResult(Outcome.OUTPUT_LIMIT, f"{words}, and the last {self._outlet.left_out} bytes are left out")

    def _answer(
        self, ending: SnippetResult, seconds: float, waited: float, still_running: bool = False, hint: str = ""
    ) -> None:
        with self._lock:
            if self._answered and (still_running or not self._runs_on):
                return
            self._answered, self._runs_on = True, still_running
        answer = (self.connection, self.id, ending.outcome, ending.error, seconds, waited, self.native.step())
        self.native.reply_done(*answer, still_running, hint)


def filename(command: Any) -> str:
    """What tracebacks call a snippet's text."""
    return f"<probe eval {command.id}>"


def parsed(native: Any, command: Any) -> SnippetJob | None:
    """The job of a command. None if its snippet does not compile; that is answered here."""
    try:
        return SnippetJob(native, command, parse(command.snippet.code, filename(command)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        text = words_of(error.with_traceback(None))
        native.reply_done(command.connection, command.id, Outcome.ERROR, text, 0.0, 0.0, native.step())
        return None
