"""Steps of loops whose optimizers step during backward passes."""

from __future__ import annotations

from typing import Any

import torch
from recorded_loop import recorded
from recording_support import NO_PROBLEM, Net, in_process
from torch import nn

torch.set_num_threads(1)


def fused() -> dict[str, Any]:
    def loop(model: nn.Module, x: torch.Tensor) -> None:
        optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

        def update(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        for _ in range(6):
            model(x).square().mean().backward()

    return recorded(loop)


def test_optimizers_that_step_in_backward_make_one_step_a_pass() -> None:
    found = in_process(fused)
    assert found["counted"] == 6 and found["kinds"] == ["optimizer"]
    assert found["steps"] == [[number, 1, 4] for number in range(6)] and found["whole"]
    # The pass and the steps of all optimizers belong to the step that the first of them would end.
    assert found["backward"] == list(range(6)) and found["boundary"]
    assert found["optimizers"] == [number for number in range(6) for _ in Net().parameters()]
    assert found["problem"] == NO_PROBLEM and found["drops"] == []


def _by_hooks() -> None:
    """Install the agent when torch has wrapped the optimizer's class already, so that it has no wrapper of ours, and let backward
    passes from the second step on do without the callback of ranges."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    import probe_agent.torch as agent

    agent.install()
    from probe_agent import _native

    assert _native.set_policy(1, 64, "all", False)


def fused_by_hooks() -> dict[str, Any]:
    _by_hooks()
    return fused()


def test_optimizers_that_step_in_backward_are_seen_without_the_callback_of_ranges() -> None:
    found = in_process(fused_by_hooks)
    assert found["counted"] == 6 and found["kinds"] == ["optimizer"]
    assert found["steps"] == [[number, 1, 4] for number in range(6)] and found["whole"]
    assert found["problem"] == NO_PROBLEM and found["drops"] == []


def raising_by_hooks() -> dict[str, Any]:
    _by_hooks()

    def loop(model: nn.Module, x: torch.Tensor) -> None:
        mine, other, raises = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1)), [True]
        other.grad = torch.ones(1)
        inner = torch.optim.SGD([other], lr=0.01)

        def inner_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if raises[0]:
                raise KeyError("in a step")
            inner.step()

        outer = torch.optim.SGD([mine], lr=0.01)
        outer.register_step_pre_hook(inner_step)
        mine.register_post_accumulate_grad_hook(lambda _: outer.step())
        for number in range(6):
            raises[0] = number == 3
            try:
                (model(x).square().mean() * mine).backward()
            except KeyError:
                assert number == 3
        mine._post_accumulate_grad_hooks.clear()
        for _ in range(2):
            model(x).square().mean().backward()
            outer.step()

    return recorded(loop)


def test_an_optimizer_that_raises_in_backward_and_one_within_another_leave_nothing_open() -> None:
    found = in_process(raising_by_hooks)
    # The pass that raised belongs to the step that the next one ends.
    assert [micro for _, micro, _ in found["steps"]] == [1, 1, 1, 2, 1, 1, 1], found["steps"]
    assert found["boundary"] and found["kinds"] == ["optimizer"] and found["problem"] == NO_PROBLEM
