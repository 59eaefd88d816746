"""A pipe whose reader notices Ctrl-C while it waits.

A signal that another thread takes, or that comes just before a read begins, does not wake the read: Python would notice it with
the next bytes, and those of a long query may never come. So the reader waits in short turns.
"""

from __future__ import annotations

import io
import select
from typing import IO, Any, cast

#: Milliseconds of a turn.
_TURN = 100


class _Patient(io.RawIOBase):
    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = cast("io.FileIO", pipe)
        self._poll = select.poll()
        self._poll.register(pipe.fileno(), select.POLLIN | select.POLLHUP)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        while not self._pipe.closed and not self._poll.poll(_TURN):
            pass
        return self._pipe.readinto(buffer)

    def close(self) -> None:
        self._pipe.close()
        super().close()


def interruptible(pipe: IO[bytes]) -> IO[bytes]:
    """A reader of `pipe`, which has no buffer of its own."""
    return io.BufferedReader(_Patient(pipe), 1 << 16)
