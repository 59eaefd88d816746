"""A live view of a run in a notebook: a widget that follows a watch.

A thread reads the answers, so that cells can run meanwhile, and sends each to the browser, which acknowledges it. After MAX_AHEAD
answers without an acknowledgement (the browser was closed, its page is hidden, or a cell keeps the kernel busy) the thread and
its command end. They begin again with the next message of a browser. So at most one query is in flight, and a view that is
not visible sends none.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import anywidget
import traitlets

from trainprobe.errors import ProbeError, Unreachable
from trainprobe.figures import Figure
from trainprobe.rows import Column

#: Answers that are sent without an acknowledgement.
MAX_AHEAD = 30
#: Retries with a run that does not answer and has not ended.
MAX_RETRIES = 5

#: States of a run that is over.
_OVER = ("ended", "lost")
_HERE = pathlib.Path(__file__).parent


class Answered(Protocol):
    """One answer."""

    _columns: Sequence[Column]
    rows: list[tuple[Any, ...]]


class Source(Protocol):
    """The watch that a live view follows: :class:`trainprobe.Watch`."""

    every: float

    @property
    def name(self) -> str:
        """The run's name."""

    def again(self) -> Source:
        """A new watch of the same query."""

    def kill(self) -> None:
        """Ends the watch from another thread."""

    def close(self) -> None:
        """Ends the watch."""

    def once(self) -> Answered:
        """A single answer."""

    def state(self) -> str | None:
        """Whether the run is live, ended or lost."""

    def __next__(self) -> Answered:
        """The next answer."""


class Live(anywidget.AnyWidget):
    """Charts and a table that follow a run; made by :meth:`trainprobe.Run.live` and :meth:`trainprobe.Watch.live`. A notebook
    shows it. :meth:`close` ends and removes it."""

    _esm = _HERE / "live.js"
    _css = _HERE / "live.css"

    name = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    every = traitlets.Float().tag(sync=True)

    def __init__(
        self, source: Source, draw: Callable[[Sequence[Column], Sequence[Sequence[Any]]], Figure], title: str
    ) -> None:
        super().__init__(name=source.name, title=title, every=source.every)
        self._source, self._draw = source, draw
        #: Guards the fields below. The thread sends a message only while it is not stopped.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watch: Source | None = None
        self._stopped = threading.Event()
        self._answer: tuple[dict[str, Any], list[bytes]] | None = None
        self._status = _status("live", f"asking {source.name}")
        self._sent = self._seen = 0
        self.on_msg(self._hear)

    def _hear(self, _: object, content: dict[str, Any], buffers: object) -> None:
        """Handles a message of a browser. This never waits for the run."""
        kind, state = content.get("kind"), self._status["state"]
        if kind == "hello":
            if self._answer is not None:
                self.send(*self._answer)
            self.send(self._status)
            self._seen = self._sent
        elif kind == "seen":
            self._seen = max(self._seen, min(int(content.get("n", 0)), self._sent))
        elif kind == "pause" and state == "live":
            self._stop(_status("paused", "paused"))
        elif kind == "resume" and state in ("paused", "failed"):
            self._stop(_status("live", f"asking {self.name}"))
            self._seen = self._sent
        elif kind == "gone":
            self._seen = self._sent - MAX_AHEAD
            self._stop()
            # Another browser that shows the view acknowledges the answers again.
            self.send({"kind": "who"})
        self._begin()

    def close(self) -> None:
        """Ends and removes the view."""
        # close() is also called for a view whose __init__ failed.
        if hasattr(self, "_lock"):
            self._stop(_status("closed", "closed"))
        super().close()

    def __repr__(self) -> str:
        return f"<live view of {self.name}, which a notebook shows>"

    def _wanted(self) -> bool:
        return self._status["state"] == "live" and self._sent - self._seen < MAX_AHEAD

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and self._wanted():
                self._stopped.clear()
                self._watch = self._source.again()
                self._thread = threading.Thread(target=self._follow, name=f"live view of {self.name}", daemon=True)
                self._thread.start()

    def _stop(self, status: dict[str, str] | None = None) -> None:
        """Ends the thread and its watch; it sends no message any more."""
        with self._lock:
            self._stopped.set()
            self._status = status or self._status
            if self._watch is not None:
                self._watch.kill()
        if status is not None and status["state"] != "closed":
            self.send(status)

    def _follow(self) -> None:
        """The work of the thread."""
        try:
            if self._source.state() in _OVER:
                self._end()
            else:
                self._read()
        except ProbeError as error:
            self._say("failed", f"{error.message}{f' ({error.hint})' if error.hint else ''}")
        except Exception as error:
            self._say("failed", f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                watch, self._thread, self._watch = self._watch, None, None
            if watch is not None:
                watch.close()
            # A browser may have asked again since the stop.
            self._begin()

    def _read(self) -> None:
        """Shows answers until no more are wanted or the run has ended."""
        retries, watch = 0, self._watch
        while watch is not None and self._wanted() and not self._stopped.is_set():
            try:
                answer = next(watch)
            except Unreachable:
                if self._state_since() in _OVER:
                    return self._end()
                retries += 1
                if retries > MAX_RETRIES:
                    raise
                with self._lock:
                    watch = self._watch = None if self._stopped.is_set() else self._source.again()
                continue
            retries = 0
            self._show(answer)
            if self._status["said"]:
                self._say("live", "")
        return None

    def _state_since(self) -> str | None:
        """The state of a run that did not answer, after a pause. The agents of a run start a killed collector again, so the run
        is lost only until then."""
        for _ in range(MAX_RETRIES):
            state = self._source.state()
            if state == "ended" or self._stopped.is_set():
                return state
            self._say("live", f"{self.name} does not answer; asking again")
            self._stopped.wait(self.every)
            if state != "lost":
                break
        return state

    def _end(self) -> None:
        """Shows the last values of a run that is not live, and says so."""
        lost = self._source.state() == "lost"
        how = f"{self.name} {'was lost: its collector was killed' if lost else 'has ended'}"
        try:
            self._show(self._source.once())
        except ProbeError as error:
            self._say("ended", f"{how}; its last values can't be had: {error.message}")
        else:
            self._say("ended", f"{how}; these are its last values")

    def _show(self, answer: Answered) -> None:
        figure = self._draw(answer._columns, answer.rows)
        with self._lock:
            if self._stopped.is_set():
                return
            self._sent += 1
            self._answer = {"kind": "answer", "n": self._sent, **figure.content}, figure.buffers
        self.send(*self._answer)

    def _say(self, state: str, said: str) -> None:
        with self._lock:
            if self._stopped.is_set():
                return
            self._status = _status(state, said)
        self.send(self._status)


def _status(state: str, said: str) -> dict[str, str]:
    return {"kind": "status", "state": state, "said": said}
