"""The steps of a capture: the profiler is started at one boundary between two steps and stopped at a later one.

Only the thread that trains uses the profiler, because torch's profiler belongs to a thread. Other threads only request its end:
then it ends at the next boundary, or when the main thread has no call of training open.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from probe_agent import signals
from probe_agent._native import ThreadMode
from probe_agent.capture import session as sessions
from probe_agent.capture.takeover import ProgramsOwn
from probe_agent.eval import boundary, safe_text

# Seconds between two checks whether a capture is to end.
_CHECK_SECONDS = 0.1
# Seconds that the program's start of a profiler waits at most for a collective that began in the capture.
_COLLECTIVE_SECONDS = 5.0
# Seconds after which a capture ends that no command waits for.
_LEASE_SECONDS = 15.0

_ARMED, _WARM, _ON, _OVER = range(4)


class CaptureWindow:
    """One capture in this process."""

    def __init__(self, settings: dict[str, Any], native: Any) -> None:
        self._settings, self._native = settings, native
        self.name: str = settings["capture"]
        self.over = threading.Event()
        #: Whether a command has begun to wait for it.
        self.is_waited_for = False
        #: Steps that were captured whole.
        self.steps_done = 0
        self._state = _ARMED
        self._session: Any = None
        self._thread = 0
        self._first = self._now = -1
        self._step_began = 0.0
        self._seconds: list[float] = []
        self._waited = 0.0
        self._file: str | None = None
        self._problem: str | None = None
        self._note: str | None = None
        self._cancelled: str | None = None
        #: Whether it ended because of its deadline.
        self._late = False
        self._asked = False
        #: Whether the training thread is handling a boundary. Then only that may end the capture.
        self._handles_boundary = False
        self._lock = threading.Lock()
        self._deadline = time.monotonic() + settings["timeout_s"]

    def arm(self) -> None:
        """Begins the capture at the boundary where this is called."""
        boundary.watch(self.at_boundary, self._native)
        threading.Thread(target=self._watch, name="probe-capture", daemon=True).start()

    def report(self) -> dict[str, Any]:
        """The result, once the capture is over."""
        return {
            "first": self._first,
            "seconds": self._seconds,
            "waited": self._waited,
            "file": self._file,
            "problem": self._problem,
            "note": self._note,
            "late": self._late,
        }

    def cancel(self, why: str) -> None:
        """Requests the end of the capture. Any thread may call this."""
        with self._lock:
            if self._cancelled is None:
                self._cancelled = why
        self._discard()

    def at_boundary(self) -> None:
        """Handles a boundary. The calling thread trains and is between two steps. Raises only what is the program's."""
        self._handles_boundary = True
        try:
            self._at_boundary()
        except BaseException as error:
            self._end(f"it could not be recorded: {safe_text.described(error)}")
            if signals.is_of_the_program(error):
                raise
        finally:
            self._handles_boundary = False

    def _at_boundary(self) -> None:
        step = self._native.step()
        if self._state == _OVER:
            boundary.unwatch(self.at_boundary, self._native)
            self._native.set_captured(False)
        elif self._cancelled is not None and self._may_stop():
            self._end(self._cancelled)
        elif step != self._now:
            self._now = step
            if self._state == _ON:
                self._step_ended(step)
            else:
                self._begin(step)

    def _begin(self, step: int) -> None:
        """Starts the profiler; or only prepares it, and the next boundary starts it."""
        before = self._pause()
        try:
            if self._session is None:
                with self._lock:
                    # The watching thread may just have ended it.
                    if self._state == _OVER:
                        return
                    self._thread = threading.get_ident()
                    self._session = sessions.make(self._settings, self._native)
                self._session.prepare()
                if self._session.needs_warmup:
                    self._state = _WARM
                    return
            self._session.start(self._program_starts_own)
            self._state = _ON
        except ProgramsOwn as own:
            self._end(str(own))
        finally:
            self._resume(before)
        if self._state == _ON and self._session is not None:
            self._first = step
            if self._session.steps == 0:
                self._end(None)
                return
            self._native.set_captured(True)
            self._session.begin_step(step)
            self._step_began = time.perf_counter()
            if self._cancelled is not None and self._may_stop():
                self._end(self._cancelled)

    def _step_ended(self, step: int) -> None:
        self._seconds.append(time.perf_counter() - self._step_began)
        self.steps_done += 1
        if self.steps_done >= self._session.steps and self._may_stop():
            self._end(None)
        elif self._session is not None:
            self._session.end_step()
            self._session.begin_step(step)
            self._step_began = time.perf_counter()

    def _may_stop(self) -> bool:
        return self._session is None or self._session.may_stop()

    def _program_starts_own(self) -> None:
        session = self._session
        if session is None:
            return
        if threading.get_ident() != self._thread:
            if session.is_of_all_threads:
                session.abandon()
                self.cancel(session.started_own)
            return
        until = time.monotonic() + _COLLECTIVE_SECONDS
        while not self._may_stop() and time.monotonic() < until:
            time.sleep(_CHECK_SECONDS / 100)
        self._end(session.started_own)

    def _pause(self) -> tuple[ThreadMode, float]:
        return self._native.thread_mode(ThreadMode.SUSPENDED), time.perf_counter()

    def _resume(self, before: tuple[ThreadMode, float]) -> None:
        mode, began = before
        self._waited += time.perf_counter() - began
        self._native.thread_mode(mode)

    def _end(self, problem: str | None) -> None:
        """Stops the profiler, writes the trace if there is no problem, and sets `over`. Called on the thread that trains."""
        if self._state == _OVER:
            return
        session, self._session = self._session, None
        self._state = _OVER
        before = self._pause()
        try:
            if session is not None:
                session.stop(problem is None)
                if problem is None:
                    self._save(session)
        except Exception as error:
            if signals.is_of_the_program(error):
                problem = "training was interrupted"
                raise
            problem = problem or f"it could not be ended: {safe_text.described(error)}"
        except BaseException:
            problem = "training was interrupted"
            raise
        finally:
            # The results are freed here, where training waits anyway.
            del session
            self._resume(before)
            self._problem = problem
            if self._native.boundary_reached():
                boundary.unwatch(self.at_boundary, self._native)
                self._native.set_captured(False)
            if problem is not None:
                self._discard()
            self.over.set()

    def _save(self, session: Any) -> None:
        path = os.path.join(self._settings["directory"], f"{os.getpid()}{session.suffix}")
        self._file = path
        session.save(path)
        self._note = session.note

    def _discard(self) -> None:
        """Removes the file if it will not be read."""
        if self._file is not None and (self._problem is not None or self._cancelled is not None):
            try:
                os.unlink(self._file)
            except OSError:
                pass

    def end_here(self) -> None:
        """Ends the capture if the calling thread is the one that is profiled."""
        if self._session is not None and threading.get_ident() == self._thread and self._may_stop():
            self._end(self._cancelled)

    def _watch(self) -> None:
        """Makes sure that the capture ends. Runs on a thread of its own."""
        began = time.monotonic()
        while not self.over.wait(_CHECK_SECONDS):
            now = time.monotonic()
            if now >= self._deadline:
                self._late = True
                self.cancel(f"its deadline of {self._settings['timeout_s']:g} s passed")
            elif not self.is_waited_for and now - began > _LEASE_SECONDS:
                self.cancel("no command waits for it")
            if self._cancelled is None or self._asked:
                continue
            session = self._session
            if session is not None:
                session.abandon()
            with self._lock:
                if self._session is None and self._state == _ARMED:
                    # Nothing has been started, and nothing will be.
                    boundary.unwatch(self.at_boundary, self._native)
                    self._state, self._problem = _OVER, self._cancelled
                    self.over.set()
            if self._session is not None and self._thread == threading.main_thread().ident:
                self._asked = self._native.on_main_thread(self._on_main_thread)

    def _on_main_thread(self) -> None:
        """Ends the capture on the main thread, because training may never reach a boundary again."""
        self._asked = False
        if not self._handles_boundary and self._native.is_idle() and self._may_stop():
            try:
                self._end(self._cancelled)
            except BaseException as error:
                if signals.is_of_the_program(error):
                    raise
