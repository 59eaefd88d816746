"""Ranges that a program opens during backward passes, where torch's callback of ranges is absent in most steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recording_support import Net, Recorder, in_process

torch.set_num_threads(1)


class _Ranged(torch.autograd.Function):
    """Opens a range in its backward pass."""

    is_on = True

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if not _Ranged.is_on:
            return gradient
        with torch.profiler.record_function("in backward"):
            return gradient.clone()


def ranges_in_backward(stride: int, first: int) -> dict[str, Any]:
    """The steps in which a range in the backward pass was recorded; the program opens one from step `first` on."""
    import probe_agent.torch as agent

    agent.install()
    recorder, model = Recorder(), Net()
    begin = recorder.native.step()
    assert recorder.native.set_policy(begin + 1, stride, "all", False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(64):
        _Ranged.is_on = step >= first
        with torch.profiler.record_function("outside"):
            _Ranged.apply(model(torch.randn(4, 32))).sum().backward()
        optimizer.step()
    rows = recorder.take()["python.spans"]
    found = {name: [row["step"] - begin for row in rows if row["name"] == name] for name in ("outside", "in backward")}
    return {**found, "begin": begin, "problem": recorder.native.problem()}


@pytest.mark.parametrize("stride", [0, 8, 64])
def test_a_program_that_opens_ranges_in_backward_has_all_of_them(stride: int) -> None:
    found = in_process(ranges_in_backward, arguments=(stride, 0))
    assert found["outside"] == found["in backward"] == list(range(64)) and found["problem"] == ""


@pytest.mark.parametrize("stride", [0, 8, 64])
def test_a_program_that_begins_late_to_open_ranges_in_backward_lacks_a_few_and_says_so(stride: int) -> None:
    found = in_process(ranges_in_backward, arguments=(stride, 29))
    # One of eight steps is looked at, by its number.
    first = next(step for step in range(29, 64) if (step + found["begin"]) % 8 == 0)
    assert found["outside"] == list(range(64)) and found["in backward"] == list(range(first, 64))
    words = f"those in the 7 passes before step {first + found['begin']} are not known"
    assert found["problem"] == f"spans: the program opens ranges during backward passes; {words}"
