"""Processes that have torch from their start: forked from a process that has imported torch and nothing of ours.

An interpreter with torch takes two seconds to start, a fork of one a hundredth of that. What is forked is as good as
started for a test that imports the agent itself; where the start is the point (activation, LD_PRELOAD, import order), start one.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

HERE = Path(__file__).resolve().parent


class Done(NamedTuple):
    """How a process ended (negative: by this signal) and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


class Child:
    """A forked process, which may still run."""

    def __init__(self, server: ForkServer, pid: int, output: tempfile.TemporaryDirectory[str]) -> None:
        self._server, self.pid, self._output = server, pid, output

    def wait(self, timeout: float = 240) -> Done:
        """How the process ended; after `timeout` seconds it is killed, and the test fails with its output so far."""
        returncode = self._server.ended(self.pid, timeout)
        if returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            self._server.ended(self.pid, 60)
        with self._output as directory:
            out, errors = (Path(directory, name).read_text(errors="replace") for name in ("out", "err"))
        assert returncode is not None, f"not over after {timeout} s:\n{out}\n{errors}"
        return Done(returncode, out, errors)


class ForkServer:
    """The process that forks, which ends with this one."""

    def __init__(self) -> None:
        # The environment of a test's program comes with its request, also for threads. This one has only what must be known
        # before torch is imported.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "fork_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._unread = b""
        self._ended: dict[int, int] = {}
        atexit.register(self._process.kill)

    def start(self, name: str, arguments: tuple[Any, ...] = (), **environment: str) -> Child:
        """Calls `module:function` with arguments of JSON; the result is the last line of its output, after RESULT."""
        output = tempfile.TemporaryDirectory()
        request = {
            "name": name, "arguments": arguments, "environment": {**os.environ, **environment}, "output": output.name,
        }  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + 120
        while (told := self._next(deadline)) is None or "started" not in told:
            assert told is not None, "the process that forks does not answer"
        return Child(self, told["started"], output)

    def ended(self, pid: int, timeout: float) -> int | None:
        """The exit status of a child, once it has one."""
        deadline = time.monotonic() + timeout
        while pid not in self._ended:
            if self._next(deadline) is None:
                return None
        return self._ended.pop(pid)

    def _next(self, deadline: float) -> dict[str, int] | None:
        """The next line of the server; None if there is none before the deadline."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))[0]:
                return None
            more = os.read(descriptor, 65536)
            assert more, f"the process that forks has ended: {self._process.wait()}"
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        told: dict[str, int] = json.loads(line)
        if "ended" in told:
            self._ended[told["ended"]] = told["status"]
        return told


@functools.cache
def fork_server() -> ForkServer:
    """The fork server of this process, made at the first use."""
    return ForkServer()


def _say(answers: IO[str], **what: int) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def _serve() -> dict[str, Any] | None:
    """Forks for each line read; in a child the request, and None when the input has ended."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    questions, answers = os.fdopen(0, "rb", buffering=0, closefd=False), os.fdopen(1, "w", closefd=False)
    pending = b""
    while True:
        for ready in select.select([0, read], [], [])[0]:
            if ready == read:
                os.read(read, 4096)
                continue
            more = questions.read(65536)
            if not more:
                return None
            pending += more
        *lines, pending = pending.split(b"\n")
        for line in lines:
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(read)
                os.close(write)
                request: dict[str, Any] = json.loads(line)
                return request
            _say(answers, started=pid)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            _say(answers, ended=pid, status=os.waitstatus_to_exitcode(status))


def _run(request: dict[str, Any]) -> None:
    """Does in a child what a fresh interpreter does at its start."""
    import importlib

    import torch

    for descriptor, name in ((0, os.devnull), (1, "out"), (2, "err")):
        opened = os.open(os.path.join(request["output"], name), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environment"])
    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    module, function = request["name"].split(":")
    result = getattr(importlib.import_module(module), function)(*request["arguments"])
    print("RESULT " + json.dumps(result), flush=True)
    # The child ends as those of multiprocessing do: an ordinary end of the interpreter takes a second with torch.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(0)


def result(stdout: str) -> Any:
    """The result of the function, from the output of its process; None if it did not finish."""
    lines = [line for line in stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1][len("RESULT ") :]) if lines else None


if __name__ == "__main__":
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch._dynamo
    import torch.distributed
    import torch.utils.data  # noqa: F401

    gc.collect()
    gc.freeze()  # What is there will be there in every child.
    assert not any(name.startswith("probe_agent.") for name in sys.modules), "the agent is for the children to import"
    if asked := _serve():
        _run(asked)
