"""A program on a terminal of its own: keys go in, and what the terminal got is looked at as text."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable

import pytest

from conftest import PATIENCE

UP, TAB, CTRL_C, CTRL_D = "\x1b[A", "\t", "\x03", "\x04"
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])")


class Terminal:
    """`command` on a pseudo-terminal."""

    def __init__(self, command: list[str], environment: dict[str, str], width: int = 100, height: int = 40) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command],
            env={**environment, "TERM": "xterm"}, stdin=slave, stdout=slave, stderr=slave,
        )  # fmt: skip
        os.close(slave)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._looked = 0

    def type(self, keys: str) -> None:
        """Types keys. :meth:`until` looks only at output from now on."""
        self.read(0)
        self._looked = len(self._text)
        self.press(keys)

    def press(self, keys: str) -> None:
        """Types keys that belong to the last ones: :meth:`until` still looks at the output since those."""
        os.write(self.master, keys.encode())

    @property
    def seen(self) -> str:
        """The output since the last :meth:`type`, without escape sequences."""
        return _ESCAPES.sub("", self._text[self._looked :]).replace("\r", "")

    @property
    def everything(self) -> str:
        """All output since the program began, with its escape sequences."""
        return self._text

    def until(self, holds: str | Callable[[str], object], patience: float = 60.0) -> str:
        """Waits until something (a text, or a condition on it) is seen, and gives all that is seen since the last keys."""
        there = holds if callable(holds) else (lambda seen: holds in seen)
        deadline = time.monotonic() + patience
        while not there(self.seen):
            left = deadline - time.monotonic()
            if left <= 0 or not self.read(left):
                pytest.fail(f"waited for {holds!r}; seen:\n{self._text}")
        return self.seen

    def read(self, patience: float) -> bool:
        """Takes what comes within `patience` seconds; whether anything did."""
        ready, _, _ = select.select([self.master], [], [], patience)
        if not ready:
            return False
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:
            data = b""
        self._text += self._decoder.decode(data)
        return bool(data)

    def end(self) -> int:
        """Waits for the program's end, and gives its exit status."""
        while self.read(60.0):
            pass
        status = self.process.wait(PATIENCE)
        os.close(self.master)
        return status
