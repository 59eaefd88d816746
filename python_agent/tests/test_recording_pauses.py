"""Garbage collections and compilations have rows, and steps say what their thread had of processors."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import torch
from recording_support import Net, Recorder, in_process, train
from torch import nn

torch.set_num_threads(1)


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


def loop(model: nn.Module, between: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(5):
        train(model, optimizer, torch.ones(4, 32), 1)
        between(number)


def test_a_garbage_collection_is_a_row_and_a_part_of_its_step(recorder: Recorder) -> None:
    gc.collect()
    recorder.take()

    def between(number: int) -> None:
        if number == 2:
            kept = [Cycle() for _ in range(20_000)]
            del kept
            assert gc.collect() >= 20_000

    loop(Net(), between)
    rows = recorder.take()
    full = [row for row in rows["python.pauses"] if row["generation"] == 2]
    assert len(full) >= 1
    row = max(full, key=lambda row: row["collected"])
    step = next(step for step in rows["python.steps"] if step["step"] == row["step"])
    assert row["kind"] == "garbage collection" and row["part"] == "other" and row["compile_id"] is None
    assert row["collected"] >= 20_000 and row["uncollectable"] == 0
    assert 0 < row["duration"] <= step["gc_time"] <= step["duration"]
    assert step["other_time"] >= row["duration"]
    assert all(step["gc_time"] >= 0 for step in rows["python.steps"])


def test_cpu_time_is_what_the_thread_ran_and_not_what_it_slept(recorder: Recorder) -> None:
    def between(number: int) -> None:
        if number == 2:
            time.sleep(0.2)
        if number == 3:
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass

    loop(Net(), between)
    steps = recorder.take()["python.steps"]
    slept, worked = steps[3], steps[4]
    assert slept["duration"] >= 0.2 and slept["cpu_time"] - slept["gc_time"] < 0.1
    assert worked["cpu_time"] >= 0.1
    assert all(step["run_delay"] is None or step["run_delay"] >= 0 for step in steps[1:])
    # The three are read one after another, and a busy machine may stop the thread between them in one of the steps.
    beyond = sorted(step["cpu_time"] + (step["run_delay"] or 0.0) - step["duration"] * 1.05 for step in steps[1:])
    assert beyond[-2] <= 0.002, beyond


def compiled() -> None:
    """In a process of its own: torch.compile changes much of it."""
    import probe_agent.torch as agent
    from probe_agent.torch import pauses

    callbacks = list(gc.callbacks)
    agent.install()
    assert len(gc.callbacks) == len(callbacks) + 1
    recorder = Recorder()
    model: Any = torch.compile(nn.Linear(8, 8), backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for size in (2, 2, 3):
        model(torch.ones(size, 8)).sum().backward()
        optimizer.step()
    rows = [row for row in recorder.take()["python.pauses"] if row["kind"] == "compilation"]
    said = [(row["compile_id"], row["generation"], row["collected"]) for row in rows]
    assert ("0/0", None, None) in said and ("0/1", None, None) in said, said
    assert all(row["duration"] > 0 for row in rows)
    agent.uninstall()
    assert gc.callbacks == callbacks
    handler = sys.modules["torch._dynamo.callback"].callback_handler  # type: ignore[attr-defined]
    ours = (pauses._compilation_begins, pauses._compilation_ends)
    assert not any(ours[0] is of or ours[1] is of for of in handler.start_callbacks + handler.end_callbacks)


def test_a_compilation_is_a_row_and_the_callbacks_are_gone_afterwards() -> None:
    in_process(compiled)


def without() -> None:
    import probe_agent.torch as agent

    callbacks = list(gc.callbacks)
    agent.install()
    assert gc.callbacks == callbacks
    recorder = Recorder()
    loop(Net(), lambda number: gc.collect())
    rows = recorder.take()
    assert not rows.get("python.pauses")
    assert all(step["gc_time"] is None for step in rows["python.steps"])
    assert all(step["cpu_time"] is not None for step in rows["python.steps"][1:])


def test_without_the_layer_nobody_knows() -> None:
    in_process(without, "-pauses")
