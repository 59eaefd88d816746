"""Captures what a snippet prints, and gives it no input; the streams of other threads are what they always were.

`sys.stdout`, `sys.stderr` and `sys.stdin` are stand-ins only while a snippet runs, and afterwards the same objects as before. A reference
to a stand-in that code keeps longer writes to the stream that it stood for.
"""

from __future__ import annotations

import ast
import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_OUTPUTS = ("stdout", "stderr")
_NAMES = (*_OUTPUTS, "stdin")
# Characters of a text, and bytes of binary output, that are sent at a time.
PIECE = 1 << 14
PIECE_BYTES = 1 << 16


class OutputSender:
    """Takes what a snippet prints, in writes of any size. Sends it in pieces (`stderr`, bytes) up to a limit, counts the bytes
    beyond it, and then calls `at_limit`, which ends the snippet."""

    def __init__(self, send: Callable[[bool, bytes], object], limit: int, at_limit: Callable[[], object]) -> None:
        self._send, self._left, self._at_limit = send, limit, at_limit
        #: Bytes that were not sent.
        self.left_out = 0

    def text(self, stderr: bool, text: str) -> int:
        """Writes a text. Calls only `str`'s own methods, because the text may be of a class of the snippet's."""
        length = str.__len__(text)
        for start in range(0, length, PIECE):
            part = str.__getitem__(text, slice(start, start + PIECE))
            self._take(stderr, part.encode("utf-8", "backslashreplace"), whole_characters=True)
        self._look_at_limit()
        return length

    def data(self, stderr: bool, data: Any) -> int:
        """Writes bytes, or another object with a buffer."""
        with memoryview(data) as view:
            length = view.nbytes
            octets = view.cast("B") if length else view
            for start in range(0, length, PIECE_BYTES):
                self._take(stderr, bytes(octets[start : start + PIECE_BYTES]), whole_characters=False)
        self._look_at_limit()
        return length

    def _take(self, stderr: bool, piece: bytes, whole_characters: bool) -> None:
        fits = min(self._left, len(piece))
        while whole_characters and 0 < fits < len(piece) and piece[fits] & 0xC0 == 0x80:
            fits -= 1
        # After output that was left out, all further output is left out too.
        self._left = self._left - fits if fits == len(piece) else 0
        self.left_out += len(piece) - fits
        if fits:
            self._send(stderr, piece[:fits])

    def _look_at_limit(self) -> None:
        if self.left_out:
            self._at_limit()


class _Nowhere(io.TextIOBase):
    """The stream where there is none, as without a console: it drops its text."""

    def write(self, text: str) -> int:
        return len(text)

    def writable(self) -> bool:
        return True


class _Captured(io.TextIOBase):
    """The stream that a snippet sees."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, outlet: OutputSender, stderr: bool, original: Any) -> None:
        self._outlet: OutputSender | None = outlet
        self._stderr, self._original = stderr, original
        self.buffer = _Bytes(outlet, stderr, original)

    def release(self) -> None:
        """Ends the capture with the snippet: further writes go to the original stream."""
        self._outlet = self.buffer.outlet = None

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        outlet = self._outlet
        if outlet is None:
            return int(self._original.write(text))
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        return outlet.text(self._stderr, text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer` of a snippet."""

    def __init__(self, outlet: OutputSender, stderr: bool, original: Any) -> None:
        self.outlet: OutputSender | None = outlet
        self._stderr, self._original = stderr, original

    def write(self, data: Any) -> int:
        outlet = self.outlet
        if outlet is None:
            return int(self._original.buffer.write(data))
        return outlet.data(self._stderr, data)

    def writable(self) -> bool:
        return True


class _NoInput(io.TextIOBase):
    """The input that a snippet sees: at its end. To close it, as `exit()` does, closes nothing of the program's."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self._is_over = False
        self.buffer = io.BytesIO()

    def release(self) -> None:
        """Ends with the snippet: further reads go to the original stream."""
        self._is_over = True

    def read(self, size: int | None = -1) -> str:
        return str(self._original.read(size)) if self._is_over else ""

    def readline(self, size: int = -1) -> str:  # type: ignore[override]  # typeshed's has a positional-only name
        return str(self._original.readline(size)) if self._is_over else ""

    def close(self) -> None:
        """Does nothing: `exit()` in a snippet closes its input."""

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False


class _ByThread:
    """A stand-in for a stream: captured on one thread, the original on every other."""

    def __init__(self, original: Any, captured: _Captured | _NoInput, thread: int) -> None:
        self.stand_for(original, captured, thread)

    def stand_for(self, original: Any, captured: _Captured | _NoInput, thread: int) -> None:
        """Begins, or begins anew."""
        self.__dict__.update(_original=original, _captured=captured, _thread=thread)

    def release(self) -> None:
        """The snippet has ended. Its thread may train, and another may get its number."""
        self.__dict__["_thread"] = None
        self.__dict__["_captured"].release()

    def behind(self) -> Any:
        """The stream that it stood for, once its snippet has ended; until then itself."""
        return self if self._thread is not None else self._original

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


#: All stand-ins, by the stream's name. None of them is ever freed: `print()` of CPython holds no reference to `sys.stdout`
#: while it writes to it, so another thread may be about to write to a stand-in whose snippet has ended.
_stand_ins: dict[str, list[_ByThread]] = {name: [] for name in _NAMES}
# Stand-ins that are tried before a new one is made.
_TRIED = 8


def _references_of_a_local() -> int:
    alone = object()
    return sys.getrefcount(alone)


_ALONE = _references_of_a_local()


def _stand_in(name: str, original: Any, captured: _Captured | _NoInput, thread: int) -> _ByThread:
    """A stand-in without other references, or a new one. Code that keeps a stand-in may put it behind `original`."""
    known = _stand_ins[name]
    for _ in range(min(len(known), _TRIED)):
        try:
            stand_in = known.pop(0)
        except IndexError:
            break
        is_kept = sys.getrefcount(stand_in) != _ALONE
        known.append(stand_in)
        if not is_kept:
            stand_in.stand_for(original, captured, thread)
            return stand_in
    stand_in = _ByThread(original, captured, thread)
    known.append(stand_in)
    return stand_in


def _stream_now(name: str) -> Any:
    """The present stream behind stand-ins of ended snippets. Such a stand-in is `sys.stdout` if training replaced the stream
    during a snippet and has since put back what it found there."""
    stream = getattr(sys, name, None)
    while type(stream) is _ByThread and (behind := stream.behind()) is not stream:
        stream = behind
    return stream


def replaces_streams(tree: ast.AST) -> bool:
    """Whether a snippet assigns to `sys.stdout`, `sys.stderr` or `sys.stdin`, or deletes one."""
    return any(
        isinstance(node, ast.Attribute) and node.attr in _NAMES and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(tree)
    )


@contextmanager
def captured(outlet: OutputSender, say: Callable[[str], object], replaced: bool = False) -> Iterator[None]:
    """Sends what the calling thread prints to `outlet`; threads that it starts are not captured.

    A stream that other code replaced meanwhile stays. If the snippet itself has `replaced` it, or there is none any more, the
    stream from before is put back, with a message by `say`.
    """
    thread = threading.get_ident()
    before = {name: _stream_now(name) for name in _NAMES}
    stand_ins = {}
    for name in _NAMES:
        original = before[name] if before[name] is not None else _Nowhere()
        of_snippet = _Captured(outlet, name == "stderr", original) if name in _OUTPUTS else _NoInput(original)
        stand_in = _stand_in(name, original, of_snippet, thread)
        stand_ins[name] = stand_in
        setattr(sys, name, stand_in)
    try:
        yield
    finally:
        for name in _NAMES:
            stand_ins[name].release()
            now = getattr(sys, name, None)
            if now is stand_ins[name] or now is None or replaced:
                setattr(sys, name, before[name])
            if now is None or (replaced and now is not stand_ins[name]):
                say(f"put back: sys.{name}, which the snippet had replaced")
