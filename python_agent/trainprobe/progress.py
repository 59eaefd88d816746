"""A line that says that a question is still being answered, and how to cancel it."""

from __future__ import annotations

import sys
import threading
import time
from typing import IO


class Progress:
    """Shows `what` and the seconds so far while its block runs, again every `pause` seconds. The line goes when the block
    ends."""

    def __init__(self, what: str, out: IO[str] | None = None, pause: float = 1.0) -> None:
        self._what, self._out, self._pause = what, out or sys.stderr, pause
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._thread.join()

    def _show(self) -> None:
        began, shown = time.monotonic(), 0
        while not self._done.wait(self._pause):
            line = f"{self._what}: {time.monotonic() - began:.0f} s; interrupt to cancel"
            self._write(f"\r{line}")
            shown = len(line)
        if shown:
            self._write(f"\r{' ' * shown}\r")

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):
            # Nobody reads it.
            pass
