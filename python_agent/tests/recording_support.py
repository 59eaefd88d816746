"""Helpers of the recording tests: a recorder around a test, models, and scripts run in a process of their own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Callable

import torch
from fork_server import fork_server, result
from probe_agent.torch.collectives import WITHOUT_HOOKS
from torch import nn

PACKAGE = Path(__file__).resolve().parent.parent
#: On PYTHONPATH, it makes a training process start and end in less than half the time.
QUICK_START = str(PACKAGE.parent / "tests" / "quick_start")

Row = dict[str, Any]

#: Process groups have hooks in torch 2.14 and later. Before, collectives are recorded only by patched functions of
#: torch.distributed, and `problem` says so.
HOOKS_OF_GROUPS = hasattr(torch.distributed.ProcessGroup, "register_pre_hook")
_HOOKED = getattr(torch._C._distributed_c10d, "HookOpName", None)
#: The name in hooks of an operation that takes one tensor for all ranks: torch 2.14 names it as the one that takes a list.
AS_HOOKS_NAME = (
    {}
    if hasattr(_HOOKED, "ALLGATHER_BASE")
    else {
        "all_gather_into_tensor": "all_gather",
        "reduce_scatter_tensor": "reduce_scatter",
        "all_to_all_single": "all_to_all",
    }
)
#: The expected `problem` with process groups when nothing is wrong.
NO_PROBLEM = "" if HOOKS_OF_GROUPS else WITHOUT_HOOKS


class Recorder:
    """Rows recorded since it was made, or since :meth:`take` was last called."""

    def __init__(self) -> None:
        from probe_agent import _native

        self.native = _native
        self.drops: dict[tuple[str, str], int] = {}
        _native.mark_step()  # What the test before left open is no part of the first step.
        self.take()

    def take(self) -> dict[str, Any]:
        """Table name -> rows; ``probe.drops`` counts since the last time."""
        rows = self.native.take_rows()
        now = rows["probe.drops"]
        rows["probe.drops"] = {
            key: count - self.drops.get(key, 0) for key, count in now.items() if count > self.drops.get(key, 0)
        }
        self.drops = now
        return rows


def by_stage(rows: list[Row], column: str = "duration") -> dict[str, float]:
    """Sum of a column by stage."""
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[row["stage"]] += row[column]
    return dict(sums)


def by_module(rows: list[Row], stage: str) -> dict[str | None, float]:
    """Sum of own time by module, of one stage."""
    sums: dict[str | None, float] = defaultdict(float)
    for row in rows:
        if row["stage"] == stage:
            sums[row["module"]] += row["duration"]
    return dict(sums)


def of_step(rows: list[Row], step: Row) -> list[Row]:
    """The rows of a step."""
    return [row for row in rows if row["step"] == step["step"]]


def median_ratio(parts: Iterable[float], wholes: Iterable[float]) -> float:
    """The ratio of two columns in the median step: a busy machine may take the processor away between two clocks, which
    falsifies one step and not the others."""
    return statistics.median(part / whole for part, whole in zip(parts, wholes))


def least_difference(parts: Iterable[float], wholes: Iterable[float]) -> float:
    """By how much of it one column differs from another in the quarter of the steps where they differ least: what neighbours of a
    machine's memory take between two clocks only adds to a difference, and one that the recording makes is in every step."""
    return statistics.quantiles((abs(part / whole - 1) for part, whole in zip(parts, wholes)), n=4)[0]


class PassClock:
    """When the first autograd node of a loss began and the last one of some parameters ended, which a backward pass is measured
    by: the call of backward() also frees what the graph held, and starts the engine in cold caches."""

    def __init__(self, *last: nn.Parameter) -> None:
        self.begin = self.end = 0.0
        for parameter in last:
            parameter.register_post_accumulate_grad_hook(self._ended)

    def _began(self, _gradient: torch.Tensor) -> None:
        self.begin = time.perf_counter()

    def _ended(self, _parameter: torch.Tensor) -> None:
        self.end = time.perf_counter()

    def watch(self, loss: torch.Tensor) -> torch.Tensor:
        loss.register_hook(self._began)
        return loss


def accounted(steps: list[Row], trace: list[Row], column: str, *stages: str) -> float:
    """The share of a part of a step that its rows account for, in the median step."""
    sums = [by_stage(of_step(trace, step)) for step in steps]
    return median_ratio((sum(of[stage] for stage in stages) for of in sums), (step[column] for step in steps))


def median_by_module(steps: list[Row], trace: list[Row], stage: str) -> dict[str | None, float]:
    """Own time by module, of one stage, in each module's median step."""
    by_step = [by_module(of_step(trace, step), stage) for step in steps]
    names = {name for times in by_step for name in times}
    return {name: statistics.median(times.get(name, 0.0) for times in by_step) for name in names}


class Block(nn.Module):
    """A residual block of two Linears."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """Blocks below a list, and a head: qualified names of three levels."""

    def __init__(self, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(model: nn.Module, optimizer: Any, x: torch.Tensor, steps: int) -> list[float]:
    """Trains plainly; returns the losses."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def name_of(body: Callable[..., Any] | str) -> str:
    """``module:name`` of a function of a test module."""
    return body if isinstance(body, str) else f"{body.__module__}:{body.__name__}"


def in_process(body: Callable[..., Any] | str, layers: str = "", arguments: tuple[Any, ...] = ()) -> Any:
    """Call a function of a test module in a process of its own that has torch already, with ``PROBE_LAYERS``: its result,
    by way of JSON."""
    done = fork_server().start(name_of(body), arguments, PROBE_LAYERS=layers).wait()
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return result(done.stdout)


def in_interpreter(body: Callable[..., Any] | str, layers: str = "", arguments: tuple[Any, ...] = ()) -> Any:
    """Call a function of a test module in an interpreter that is started for it, with ``PROBE_LAYERS``: its result, by way of
    JSON. Where it matters what comes before torch, as with LD_PRELOAD."""
    module, function = name_of(body).split(":")
    script = (
        "import json, sys, importlib\n"
        f"result = getattr(importlib.import_module({module!r}), {function!r})(*json.loads(sys.argv[1]))\n"
        "print('RESULT ' + json.dumps(result))\n"
    )
    path = os.pathsep.join([str(PACKAGE / "tests"), QUICK_START, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PROBE_LAYERS": layers}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return result(done.stdout)
