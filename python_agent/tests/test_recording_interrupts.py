"""Exceptions that a signal's handler raises between any two lines of the program."""

from __future__ import annotations

import sys
from typing import Any, Callable

import torch
from recording_support import Net, Recorder
from torch.utils.data import DataLoader


class Stop(Exception):
    pass


def raises_after(number: int, work: Callable[[], None]) -> bool:
    """Run ``work``, and raise when it has called a function of ours for this time. False where there are not so many calls."""
    from probe_agent import _native

    calls = 0

    def profile(frame: Any, event: str, function: Any) -> None:
        nonlocal calls
        if event == "c_return" and getattr(_native, getattr(function, "__name__", ""), None) is function:
            calls += 1
            if calls == number:
                raise Stop

    sys.setprofile(profile)
    try:
        work()
    except Stop:
        pass
    finally:
        sys.setprofile(None)
    return calls >= number


def test_an_exception_after_any_call_of_ours_leaves_nothing_open(recorder: Recorder) -> None:
    import probe_agent

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randn(2, 32), batch_size=2)

    def step() -> None:
        for _ in probe_agent.watch([0]):
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()

    step()
    number = 1
    while raises_after(number, step):
        step()
        assert recorder.native.boundary_reached(), f"not between two steps any more after call {number}"
        number += 1
    assert number > 4
    recorder.native.set_problem("")
    recorder.take()
    step()
    rows = recorder.take()
    assert {row["stage"] for row in rows["python.torch_trace"]} == {"forward", "backward", "step"}
    (last,) = rows["python.steps"]
    assert all(last[part] > 0 for part in ("data_time", "forward_time", "backward_time", "optimizer_time"))
