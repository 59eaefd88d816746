"""Ranges and numbers that a program names, and batches that no DataLoader loads."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import probe_agent
import pytest
import torch
from recording_support import Net, Recorder, in_process, train

torch.set_num_threads(1)


def test_ranges_nest_and_know_their_step(recorder: Recorder) -> None:
    model = Net()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 32)

    @probe_agent.span("decorated")
    def work(value: int) -> int:
        return value + 1

    @probe_agent.span("awaited")
    async def later() -> int:
        return 7

    for _ in range(2):
        with probe_agent.span("outer"):
            with torch.profiler.record_function("mine"):
                assert work(1) == 2
            train(model, optimizer, x, 1)
    again = probe_agent.span("again")
    with again, again:
        pass
    with pytest.raises(KeyError), probe_agent.span("raises"):
        raise KeyError
    assert asyncio.run(later()) == 7 and work.__name__ == "work"
    rows = recorder.take()
    first = rows["python.steps"][0]["step"]
    found = [
        (row["step"] - first, row["name"], row["kind"], row["depth"], row["parent"]) for row in rows["python.spans"]
    ]
    steps = [
        [
            (step, "decorated", "span", 2, "mine"),
            (step, "mine", "record_function", 1, "outer"),
            (step, "outer", "span", 0, None),
        ]
        for step in (0, 1)
    ]
    rest = [
        (2, "again", "span", 1, "again"),
        (2, "again", "span", 0, None),
        (2, "raises", "span", 0, None),
        (2, "awaited", "span", 0, None),
    ]
    assert found == steps[0] + steps[1] + rest
    outer = [row for row in rows["python.spans"] if row["name"] == "outer"]
    for row, step in zip(outer, rows["python.steps"]):
        # The range began before the first interval of its step, and ended after its optimizer.
        assert row["duration"] >= step["forward_time"] + step["backward_time"] + step["optimizer_time"]
    # A range takes no time away from what is within it.
    assert all(step["forward_time"] > 0 and step["backward_time"] > 0 for step in rows["python.steps"])
    assert rows["probe.drops"] == {} and recorder.native.problem() == ""


def test_ranges_that_end_in_any_order_and_on_any_thread(recorder: Recorder) -> None:
    first, second = probe_agent.span("first"), probe_agent.span("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)

    def elsewhere() -> None:
        with probe_agent.span("elsewhere"):
            pass

    with probe_agent.span("here"):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    rows = recorder.take()["python.spans"]
    assert [(row["name"], row["depth"], row["parent"]) for row in rows] == [
        ("first", 0, None),
        ("second", 1, "first"),
        ("elsewhere", 0, None),
        ("here", 0, None),
    ]
    # Ranges that never end make room for others, and are counted.
    never = [probe_agent.span("never") for _ in range(40)]
    for span in never:
        span.__enter__()
    with probe_agent.span("after"):
        pass
    rows = recorder.take()
    assert [row["name"] for row in rows["python.spans"]] == ["after"]
    assert rows["probe.drops"] == {("python.spans", "too many open"): 9}
    for span in never:
        span.__exit__(None, None, None)
    assert len(recorder.take()["python.spans"]) == 31


def test_nvtx_ranges(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.cuda import nvtx

    calls: list[str] = []

    class Binding:
        def rangePushA(self, message: str) -> int:
            calls.append(message)
            return len(calls) - 1

        def rangePop(self) -> int:
            calls.append("pop")
            return 0

        def markA(self, message: str) -> None:
            calls.append(f"mark {message}")

    monkeypatch.setattr(nvtx._nvtx, "_original", Binding())
    assert nvtx.range_push("loss") == 0
    with nvtx.range("inner {}", 3):
        nvtx.mark("here")
    assert nvtx.range_pop() == 0
    assert calls == ["loss", "inner 3", "mark here", "pop", "pop"]
    rows = recorder.take()["python.spans"]
    assert [(row["name"], row["kind"], row["parent"]) for row in rows] == [
        ("inner 3", "nvtx", "loss"),
        ("loss", "nvtx", None),
    ]


def test_ranges_of_torch_s_own_are_left_out(recorder: Recorder) -> None:
    model = Net()
    loader = torch.utils.data.DataLoader([torch.zeros(32)] * 4, batch_size=2)  # type: ignore[arg-type]
    for batch in loader:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), batch, 1)
    assert recorder.take()["python.spans"] == []


def two_thousand_names() -> list[int]:
    """How many ranges of as many names are rows, and how many were dropped for their name."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    for index in range(2000):
        with probe_agent.span(f"range {index}"):
            pass
    rows = recorder.take()
    return [len(rows["python.spans"]), rows["probe.drops"][("python.spans", "too many names")]]


def test_names_are_bounded_and_what_is_lost_is_counted() -> None:
    kept, lost = in_process(two_thousand_names)
    assert kept + lost == 2000 and 900 < lost < 1500


class _Unwilling:
    def __float__(self) -> float:
        raise RuntimeError("never")

    def __repr__(self) -> str:
        raise RuntimeError("never")


def test_numbers(recorder: Recorder) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, torch.randn(4, 32), 1)
    # After the optimizer's step: the step just finished is meant.
    probe_agent.log(loss=0.5)
    loss = model(torch.randn(4, 32)).square().mean()
    # Within the next one.
    probe_agent.log(
        {"train/loss": loss, "wide": 10**400}, integer=3, flag=True, numpy=np.float32(0.25), whole=np.int64(7)
    )
    probe_agent.log(
        meta=torch.ones((), device="meta"), words="0.5", several=torch.ones(2), unwilling=_Unwilling(), none=None
    )
    probe_agent.log(complex=torch.tensor(1j), nan=float("nan"), parameter=torch.nn.Parameter(torch.tensor(2.0)))
    loss.backward()
    optimizer.step()
    rows = recorder.take()
    first = rows["python.steps"][0]["step"]
    found = {row["name"]: (row["step"] - first, row["value"], row["reason"]) for row in rows["python.metrics"]}
    # One step of 16 has it.
    found.pop("torch.loss", None)
    assert found.pop("nan")[1] != found.pop("nan", (0, 0.0))[1]
    assert found == {
        "loss": (0, 0.5, None),
        "train/loss": (1, pytest.approx(loss.item()), None),
        "wide": (1, None, "not a number"),
        "integer": (1, 3.0, None),
        "flag": (1, 1.0, None),
        "numpy": (1, 0.25, None),
        "whole": (1, 7.0, None),
        "meta": (1, None, "on a device"),
        "words": (1, None, "not a number"),
        "several": (1, None, "not a number"),
        "unwilling": (1, None, "not a number"),
        "none": (1, None, "not a number"),
        "complex": (1, None, "not a number"),
        "parameter": (1, 2.0, None),
    }


def test_nothing_that_is_passed_raises(recorder: Recorder) -> None:
    odd: Any
    for odd in (None, 3, b"bytes", "\ud800", _Unwilling(), ["list"]):
        with probe_agent.span(odd):
            pass
    probe_agent.log({1: 2.0, "\ud800": 1.0})  # type: ignore[dict-item]
    probe_agent.log(3)  # type: ignore[arg-type]
    probe_agent.log({"good": 1})
    rows = recorder.take()
    assert [row["name"] for row in rows["python.spans"]] == ["None", "3", "b'bytes'", "['list']"]
    assert rows["python.metrics"][-1]["name"] == "good"
    # Errors become problems, and are not raised.
    assert recorder.native.problem().startswith("probe_agent.log: TypeError")
    recorder.native.set_problem("")


def test_batches_of_any_iterable(recorder: Recorder) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Batches:
        epoch = 0

        def __iter__(self) -> Iterator[torch.Tensor]:
            for _ in range(3):
                yield torch.randn(5, 32)

        def __len__(self) -> int:
            return 3

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    batches = probe_agent.watch(Batches())
    assert len(batches) == 3 and probe_agent.watch(batches) is batches  # type: ignore[arg-type]
    batches.set_epoch(4)  # type: ignore[attr-defined]
    for _ in range(2):
        for x in batches:
            train(model, optimizer, x, 1)
    rows = recorder.take()
    assert [row["batch_index"] for row in rows["python.data_trace"]] == [0, 1, 2] * 2
    for row, step in zip(rows["python.data_trace"], rows["python.steps"]):
        assert (row["dataset"], row["num_workers"], row["pinned"]) == ("Batches", None, None)
        assert (row["samples"], row["bytes"], step["samples"]) == (5, 640, 5)
        assert 0 < row["wait"] <= step["data_time"] * (1 + 1e-9)
    # Iterators, copies, errors, and a DataLoader, which is watched anyway.
    iterator = probe_agent.watch(iter([1, 2]))
    assert next(iterator) == 1 and list(iterator) == [2]  # type: ignore[call-overload]
    assert (
        list(pickle.loads(pickle.dumps(probe_agent.watch([1])))) == list(copy.deepcopy(probe_agent.watch([1]))) == [1]
    )
    with pytest.raises(TypeError, match="not an iterator"):
        next(probe_agent.watch([1]))  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        iter(probe_agent.watch(3))  # type: ignore[arg-type]
    loader = torch.utils.data.DataLoader([1])  # type: ignore[arg-type]
    assert probe_agent.watch(loader) is loader


def test_a_snippet_stops_where_a_watched_iterable_is_asked(recorder: Recorder) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    at: list[int] = []

    def boundary() -> None:
        recorder.native.want_boundary(False)
        at.append(len(seen))

    recorder.native.set_boundary_callback(boundary)
    seen: list[int] = []
    for x in probe_agent.watch([torch.randn(2, 32) for _ in range(3)]):
        seen.append(1)
        train(model, optimizer, x, 1)
        if len(seen) == 2:
            recorder.native.want_boundary(True)
    recorder.native.set_boundary_callback(None)
    # Before the third batch was asked for, not in the middle of its step.
    assert at == [2]


def with_everything_off() -> dict[str, Any]:
    """Uses all of it under PROBE_LAYERS that forbid it."""
    import probe_agent.torch as agent

    agent.install()
    recorder = Recorder()
    with probe_agent.span("no"), torch.profiler.record_function("no"):
        probe_agent.log(loss=1.0)
    assert list(probe_agent.watch([1, 2])) == [1, 2]
    rows = recorder.take()
    return {name: rows[f"python.{name}"] for name in ("spans", "metrics", "data_trace", "environment")}


def test_switched_off_there_is_nothing() -> None:
    found = in_process(with_everything_off, layers="-spans,-metrics,-data,-environment")
    assert found == {"spans": [], "metrics": [], "data_trace": [], "environment": []}


def test_without_an_agent_it_is_nothing_and_needs_no_torch() -> None:
    script = (
        "import sys, probe_agent\n"
        "with probe_agent.span('a'): probe_agent.log(loss=1)\n"
        "assert list(probe_agent.watch(range(3))) == [0, 1, 2]\n"
        "assert probe_agent.span('b')(len)([1]) == 1\n"
        "assert 'torch' not in sys.modules and 'probe_agent._native' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def switched_while_running() -> list[list[str]]:
    """Names of ranges and numbers in steps with and without their layers; and of the tables that have rows in the latter."""
    import probe_agent.torch as agent

    # A collection is a row of python.pauses.
    gc.disable()
    agent.install()
    recorder = Recorder()
    model = Net()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 32)
    found = []
    for index, layers in enumerate(["all", "-spans,-metrics,-memory,-process,-environment", "all"]):
        recorder.native.configure({"layers": layers})
        train(model, optimizer, x, 1)
        recorder.take()
        with probe_agent.span(f"range {index}"):
            probe_agent.log({f"number {index}": 1})
            train(model, optimizer, x, 1)
        rows = recorder.take()
        names = [row["name"] for row in rows["python.spans"] + rows["python.metrics"]]
        found.append(
            names if index != 1 else names + [name for name in rows if rows[name] and not name.startswith("probe.")]
        )
    return found


def test_layers_are_switched_while_training_runs() -> None:
    off = ["python.torch_trace", "python.steps"]
    assert in_process(switched_while_running) == [["range 0", "number 0"], off, ["range 2", "number 2"]]
