"""What a snippet prints goes to whoever asked; what other threads print goes where it always went.

`sys.stdout` and `sys.stderr` are stand-ins only while a snippet runs, and afterwards the very objects they were before.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Called with (stderr, data); raises to end the snippet.
Sink = Callable[[bool, bytes], None]


class _Captured(io.TextIOBase):
    """The stream that a snippet sees."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, sink: Sink, stderr: bool) -> None:
        self._sink, self._stderr = sink, stderr
        self.buffer = _Bytes(sink, stderr)

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            self._sink(self._stderr, text.encode("utf-8", "backslashreplace"))
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer` of a snippet."""

    def __init__(self, sink: Sink, stderr: bool) -> None:
        self._sink, self._stderr = sink, stderr

    def write(self, data: Any) -> int:
        data = bytes(data)
        if data:
            self._sink(self._stderr, data)
        return len(data)

    def writable(self) -> bool:
        return True


class _ByThread:
    """Stands for a stream: captured on one thread, the original on every other."""

    def __init__(self, original: Any, captured: _Captured, thread: int) -> None:
        self.__dict__.update(_original=original, _captured=captured, _thread=thread)

    def _stream(self) -> Any:
        return self._captured if threading.get_ident() == self._thread else self._original

    def write(self, text: str) -> int:
        written: int = self._stream().write(text)
        return written

    def flush(self) -> None:
        self._stream().flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._stream(), name, value)

    def __iter__(self) -> Any:
        return iter(self._stream())


@contextmanager
def captured(sink: Sink) -> Iterator[None]:
    """Sends what the calling thread prints to `sink`. Threads that it starts are not captured."""
    thread = threading.get_ident()
    names = ("stdout", "stderr")
    before = {name: getattr(sys, name) for name in names}
    stand_ins = {}
    for name in names:
        # Without a console there may be no stream at all.
        original = before[name] if before[name] is not None else _Captured(lambda stderr, data: None, False)
        stand_in = _ByThread(original, _Captured(sink, name == "stderr"), thread)
        stand_ins[name] = stand_in
        setattr(sys, name, stand_in)
    try:
        yield
    finally:
        for name in names:
            # Somebody else may have put another stream there meanwhile: theirs stays.
            if getattr(sys, name) is stand_ins[name]:
                setattr(sys, name, before[name])
