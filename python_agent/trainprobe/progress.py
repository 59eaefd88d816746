"""A line that says that a query or snippet still runs, and how to cancel it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import IO


class Progress:
    """Shows `what` and the seconds so far while its block runs, again every `pause` seconds. The line is
    removed when the block ends.

    :param clear: removes the line; without it the line is overwritten with blanks, which may leave an empty line.
    """

    def __init__(
        self, what: str, out: IO[str] | None = None, pause: float = 1.0, clear: Callable[[], object] | None = None
    ) -> None:
        self._what, self._out, self._pause, self._clear = what, out or sys.stderr, pause, clear
        self._shown = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._thread.join()
        if self._shown and self._clear is not None:
            self._clear()
        elif self._shown:
            self._write(f"\r{' ' * self._shown}\r")

    def _show(self) -> None:
        began = time.monotonic()
        while not self._done.wait(self._pause):
            line = f"{self._what}: {time.monotonic() - began:.0f} s; interrupt to cancel"
            self._write(f"\r{line}")
            self._shown = len(line)

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):
            # The stream is closed.
            pass
