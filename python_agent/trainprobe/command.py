"""Finds the `probe` command, and runs it as a child process.

Every question is one command, which knows about names of runs, directories, tokens, limits and exit statuses. The answer
comes through a pipe. A command whose pipe is not read any more ends by itself, so none is left behind by an
interpreter that was killed.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pathlib
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import IO, Any, TypeVar, cast

from trainprobe.errors import CommandError, Limit, ProbeError, Unreachable, of_command
from trainprobe.pipe import interruptible

#: Seconds that a command has to end after it was interrupted.
_GRACE = 2.0

#: Lists to which commands that are started in this context are added, so that they can be ended.
_started: ContextVar[tuple[list[Command], ...]] = ContextVar("started", default=())

_Function = TypeVar("_Function", bound=Callable[..., Any])


@contextlib.contextmanager
def noted(commands: list[Command]) -> Iterator[None]:
    """Adds to `commands` the commands that are started within the block."""
    before = _started.set((*_started.get(), commands))
    try:
        yield
    finally:
        _started.reset(before)


def ended_with_errors(function: _Function) -> _Function:
    """A function that leaves no command behind when it raises. An interrupt can come between any two operations, and a
    notebook keeps the traceback, and with it the variables of its frames."""

    @functools.wraps(function)
    def ending(*arguments: Any, **named: Any) -> Any:
        commands: list[Command] = []
        try:
            with noted(commands):
                return function(*arguments, **named)
        except BaseException:
            for command in commands:
                command.end()
            raise

    return cast("_Function", ending)


def binary() -> str:
    """The path of the command: PROBE_BIN, else the one that was installed with this package, else the one on PATH.

    Raises Unreachable where there is none.
    """
    named = os.environ.get("PROBE_BIN")
    beside = pathlib.Path(sysconfig.get_path("scripts")) / "probe"
    found = named or (str(beside) if os.access(beside, os.X_OK) else shutil.which("probe"))
    if not found:
        raise Unreachable(
            "there is no probe command beside this Python or on PATH",
            "name it in the environment: PROBE_BIN=/path/probe",
        )
    return found


class Command:
    """One run of the command. Read `stdout`, then call :meth:`finish`; :meth:`end` stops it before that.

    :param arguments: the words after `probe`.
    :param stdin: what it reads from standard input, or None.
    :param environment: variables in addition to those of this process.
    :param failed: the exception for exit status 1.
    :param apart: whether Ctrl-C and a notebook's interrupt button, which reach all processes of a group, do not reach it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        stdin: str | None = None,
        environment: Mapping[str, str] | None = None,
        failed: type[ProbeError] = CommandError,
        apart: bool = False,
    ) -> None:
        self._failed = failed
        self._stderr = tempfile.TemporaryFile()
        words = [binary(), *arguments]
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                start_new_session=apart,
                env={**os.environ, **(environment or {}), "NO_COLOR": "1"},
            )
        except OSError as error:
            self._stderr.close()
            if error.errno == 7:
                raise Limit(
                    "the parameters are too long for a command line", "shorter text, or a query that finds it"
                ) from error
            raise Unreachable(f"cannot start {words[0]}: {error.strerror}") from error
        assert self._process.stdout is not None
        #: The pipe that the answer comes through.
        self.stdout = interruptible(self._process.stdout)
        self._end = weakref.finalize(self, _end, self._process, self._stderr)
        for commands in _started.get():
            commands.append(self)
        if stdin is not None:
            self._write(stdin)

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            # A command that refuses the input without reading it says so on standard error.
            with (
                contextlib.suppress(BrokenPipeError),
                io.BufferedWriter(cast("io.FileIO", self._process.stdin)) as pipe,
            ):
                pipe.write(text.encode())
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def lines(self) -> Iterator[bytes]:
        """The lines of its output; raises at the end if the exit status is not 0."""
        try:
            yield from self.stdout
            self.finish()
        finally:
            self.end()

    def read(self) -> bytes:
        """Its whole output; raises if the exit status is not 0."""
        try:
            text = self.stdout.read()
            self.finish()
            return text
        finally:
            self.end()

    def finish(self, good: Sequence[int] = (0,)) -> int:
        """Waits for its end, after all output was read. Returns an exit status that is in `good`, and raises for others."""
        status = self._process.wait()
        if status in good:
            self.end()
            return status
        error = of_command(status, self.stderr_text(), self._failed)
        self.end()
        # Where reading its output has failed, the command says why, and the reader's own error says nothing.
        raise error from None

    def stderr_text(self) -> str:
        """Its standard error so far."""
        if self._stderr.closed:
            return ""
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode(errors="replace")

    def interrupt(self) -> None:
        """Has it cancel its query or snippet, as Ctrl-C does, and waits for that."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)
        self.end()

    def kill(self) -> None:
        """Ends the command from another thread than the reading one, which then finds the end of the answer."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def end(self) -> None:
        """Kills the command. Its query is cancelled because its connection closes."""
        self._end()


def _end(process: subprocess.Popen[bytes], stderr: IO[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    for pipe in (process.stdin, process.stdout, stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


@ended_with_errors
def run(
    arguments: Sequence[str],
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    failed: type[ProbeError] = CommandError,
) -> str:
    """The output of a command, as text.

    Raises the exception of its exit status. An interrupt in the meantime ends it.
    """
    command = Command(arguments, stdin, environment, failed)
    try:
        return command.read().decode()
    except KeyboardInterrupt:
        command.interrupt()
        raise
