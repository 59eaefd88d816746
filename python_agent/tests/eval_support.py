"""Helpers for tests of snippets: a training script, a small native half, and the collector's side of a runner."""

from __future__ import annotations

import pathlib
import queue
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from probe_agent._native import At, CommandKind, Outcome, ThreadMode
from probe_agent.eval import boundary
from probe_agent.eval.runner import Runner

# Seconds until a missing reply or condition is an error.
PATIENCE = 60.0

SCRIPT = """
import math
import os
import torch
import torch.nn.functional as F
import torch.distributed as dist
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Config:
    max_position_embeddings = 64

    def __init__(self):
        self.hidden_size = 16
        self.num_attention_heads = 2

    @property
    def loud(self):
        raise RuntimeError("a property ran")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.gradient_checkpointing = False


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.layers = nn.ModuleList([Attention()])


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.history = model, optimizer, [1.0, 2.0]

    def train_step(self):
        raise AssertionError("ran")


def helper(x):
    raise AssertionError("ran")


def local_names():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_loader = torch.utils.data.DataLoader(list(range(8)), batch_size=4)
    trainer = Trainer(model, optimizer)
    batch_size, lr, name, losses = 4, 0.1, "gpt", [0.5, 0.25]
    loss, batch, settings = torch.ones(()), (torch.ones(2), torch.ones(2)), {"lr": 0.1, "model": model}
    generator = (x for x in range(3))
    return {**globals(), **locals()}
"""


def training_names(directory: pathlib.Path) -> dict[str, Any]:
    """The names that the training code of SCRIPT sees, in a file that is the user's own."""
    path = directory / "user_training.py"
    path.write_text(SCRIPT)
    module = types.ModuleType("user_training")
    module.__file__ = str(path)
    sys.modules["user_training"] = module
    exec(compile(SCRIPT, str(path), "exec"), module.__dict__)
    seen: dict[str, Any] = module.local_names()
    for gone in ("__name__", "__builtins__", "__spec__", "__loader__", "__doc__", "__package__"):
        seen.pop(gone, None)
    seen["user_training"] = module
    return seen


@dataclass
class Snippet:
    """As the native half gives them."""

    code: str = ""
    at: At = field(default_factory=lambda: At.AUTO)
    step: int = -1
    hears_arrived: bool = True
    timeout_s: float = 30.0
    waited_s: float = 0.0
    asked_s: float = 0.0
    max_output: int = 1 << 24
    mute: bool = False
    session: str = ""
    end_session: bool = False
    frame: int | None = None
    complete: str = ""


@dataclass
class Command:
    """As the native half gives them."""

    kind: CommandKind
    id: int = 1
    connection: int = 1
    snippet: Snippet | None = None
    reason: str = ""


def _set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class Native:
    """The native half, as far as snippets need it: commands in, replies out, and a step counter."""

    commands: queue.Queue[Any] = field(default_factory=queue.Queue)
    #: One whose methods are written in C, as those of the native half: a snippet that is ended while it prints would leave the
    #: lock of a `queue.Queue` locked, because the exception may come right after the lock was acquired.
    replies: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    steps: int = 0
    wanted: threading.Event = field(default_factory=threading.Event)
    modes: list[ThreadMode] = field(default_factory=list)
    problem: str = ""
    #: While cleared, the connection takes no output.
    room: threading.Event = field(default_factory=_set)
    #: No layer records, so only the guards of eval itself are active.
    recording: dict[str, str] = field(default_factory=dict)

    def layers(self) -> dict[str, str]:
        return self.recording

    def next_command(self, timeout_s: float) -> Any:
        try:
            command = self.commands.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if command is None:
            raise EOFError
        return command

    def step(self) -> int:
        return self.steps

    def want_boundary(self, wanted: bool) -> None:
        (self.wanted.set if wanted else self.wanted.clear)()

    def thread_mode(self, mode: ThreadMode) -> ThreadMode:
        self.modes.append(mode)
        return ThreadMode.RECORD

    def set_problem(self, problem: str) -> None:
        self.problem = problem

    def reply_placed(self, connection: int, id: int, at: At, why: str) -> bool:
        self.replies.put(("placed", id, str(at), why))
        return True

    def reply_armed(self, connection: int, id: int, step: int) -> bool:
        self.replies.put(("armed", id, step))
        return True

    def reply_arrived(self, connection: int, id: int, step: int, groups: list[tuple[str, int]], nexts: int) -> bool:
        self.replies.put(("arrived", id, step, nexts))
        return True

    def wait_for_room(self, connection: int, timeout_s: float) -> bool:
        # Without the event's own lock, for the same reason as above.
        deadline = time.monotonic() + timeout_s
        while not self.room.is_set() and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.room.is_set()

    def reply_output(self, connection: int, id: int, stderr: bool, data: bytes) -> bool:
        self.replies.put(("output", id, stderr, data))
        return True

    def reply_done(
        self,
        connection: int,
        id: int,
        outcome: Outcome,
        error: str,
        seconds: float,
        waited: float,
        step: int,
        still_running: bool = False,
        hint: str = "",
    ) -> bool:
        self.replies.put(("done", id, str(outcome), error, seconds, waited, step, still_running, hint))
        return True


class Collector:
    """The collector's side of a runner that serves on a thread, as in a training process."""

    def __init__(self, native: Native | None = None) -> None:
        self.native = native or Native()
        self.runner = Runner(self.native)
        self.thread = threading.Thread(target=self.runner.serve, daemon=True)
        self.thread.start()
        self.ids = 0

    def send(self, kind: str, code: str = "", **more: Any) -> int:
        brings_snippet = kind in ("decide", "arm")
        self.ids += brings_snippet
        command = Command(getattr(CommandKind, kind.upper()), id=more.pop("id", self.ids))
        command.connection = more.pop("connection", command.connection)
        command.reason = more.pop("reason", command.reason)
        if brings_snippet:
            command.snippet = Snippet(code, getattr(At, more.pop("at", "auto").upper()), **more)
        self.native.commands.put(command)
        return self.ids

    def reply(self) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self.native.replies.get(timeout=PATIENCE)
        return found

    def armed(self) -> tuple[Any, ...]:
        """Waits until the snippet is armed, and returns the reply that says so. The runner replies before it arms the boundary. A
        snippet with a short deadline may be over by then."""
        reply = self.reply()
        assert reply[0] == "armed", reply
        until("it to be armed", lambda: _is_wanted() or not self.native.replies.empty())
        return reply

    def done(self) -> tuple[str, str, str, str]:
        """The output on each stream until the snippet was done, its outcome and its error."""
        printed = {False: b"", True: b""}
        while True:
            reply = self.reply()
            if reply[0] == "output":
                printed[reply[2]] += reply[3]
            elif reply[0] == "done":
                return printed[False].decode(), printed[True].decode(), reply[2], reply[3]

    def run(self, code: str, at: str = "now", **more: Any) -> tuple[str, str, str, str]:
        self.send("decide", code, at=at, **more)
        assert self.reply()[:3] == ("placed", self.ids, "now")
        return self.done()


def _is_wanted() -> bool:
    """Whether a boundary is wanted, and the native half knows that too."""
    with boundary._lock:
        return boundary.is_wanted()


def until(what: str, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.002)


def train_until_done(collector: Collector, steps: int = 10_000) -> tuple[str, str, str, str]:
    """Trains here, with a boundary after each step, until the snippet is done."""
    for _ in range(steps):
        collector.native.steps += 1
        if collector.native.wanted.is_set():
            boundary.run_pending()
        if not collector.native.replies.empty():
            return collector.done()
        time.sleep(0.001)
    raise AssertionError("it never ran")
