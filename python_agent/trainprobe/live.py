"""A live view of a run in a notebook: a widget that follows a watch.

A thread reads the answers, so that cells run meanwhile, and sends each to the browser, which says that it has seen it. Past
MAX_AHEAD answers that no browser has seen (it was closed, its page is hidden, or a cell keeps the kernel from hearing it) the
thread and its command end; they begin again when a browser says something. So one question is in flight at most, and a view
that is not looked at asks nothing.
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

#: Answers that are sent before one of them was seen.
MAX_AHEAD = 30
#: Times that a run which does not answer and has not ended is asked again.
MAX_RETRIES = 5

#: States of a run that does not go on.
_OVER = ("ended", "lost")
_HERE = pathlib.Path(__file__).parent


class Answered(Protocol):
    """One answer."""

    _columns: Sequence[Column]
    rows: list[tuple[Any, ...]]


class Source(Protocol):
    """What it follows: :class:`trainprobe.Watch`."""

    every: float

    @property
    def name(self) -> str:
        """What is asked."""

    def again(self) -> Source:
        """The same question anew."""

    def kill(self) -> None:
        """Ends it from another thread."""

    def close(self) -> None:
        """Ends it."""

    def once(self) -> Answered:
        """One answer alone."""

    def state(self) -> str | None:
        """Whether the run is live, ended or lost."""

    def __next__(self) -> Answered:
        """The next answer."""


class Live(anywidget.AnyWidget):
    """Charts and a table of a run that follow it; made by :meth:`trainprobe.Run.live` and :meth:`trainprobe.Watch.live`. A notebook
    shows it. :meth:`close` ends it and takes it away."""

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
        #: Of what follows. The thread says something only while it is not stopped.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watch: Source | None = None
        self._stopped = threading.Event()
        self._answer: tuple[dict[str, Any], list[bytes]] | None = None
        self._status = _status("live", f"asking {source.name}")
        self._sent = self._seen = 0
        self.on_msg(self._hear)

    def _hear(self, _: object, content: dict[str, Any], buffers: object) -> None:
        """What a browser says. Nothing here waits for a run."""
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
            # Another browser that looks at it says that it has seen what was sent.
            self.send({"kind": "who"})
        self._begin()

    def close(self) -> None:
        """Ends it and takes it away."""
        # One that could not be made is closed too.
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
        """Ends the thread, and what it waits for; it says nothing any more."""
        with self._lock:
            self._stopped.set()
            self._status = status or self._status
            if self._watch is not None:
                self._watch.kill()
        if status is not None and status["state"] != "closed":
            self.send(status)

    def _follow(self) -> None:
        """What the thread does."""
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
            # It may be wanted again since it was stopped.
            self._begin()

    def _read(self) -> None:
        """Shows answers until none is wanted or the run has ended."""
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
        """How a run is that did not answer, after a pause. A collector that was killed is started again by the agents of its
        run, which is lost only until then."""
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
