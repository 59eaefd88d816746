"""Expressions are timed between two steps, and training goes on to the last bit as if nothing had run."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from probe_agent.benchmark import kept_state, request
from probe_agent.benchmark.kept_state import KeptState, training_objects
from probe_agent.eval.ended import SnippetEnded
from recording_support import in_interpreter
from torch import nn

Names = dict[str, Any]


class Training:
    """A small training whose every part has a state: dropout, running statistics, momenta, a schedule, a scale."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        random.seed(7)
        numpy.random.seed(7)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        self.x = torch.randn(4, 8)
        self.losses: list[str] = []

    def step(self) -> None:
        # At a boundary the gradients of the step before are kept.
        self.optimizer.zero_grad()
        noise = random.random() + float(numpy.random.rand()) + torch.randn(4, 8)
        loss = self.model(self.x + noise).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.losses.append(loss.item().hex())

    def names(self) -> Names:
        return {"torch": torch, "random": random, "numpy": numpy, **vars(self)}


@pytest.fixture
def plain() -> list[str]:
    training = Training()
    for _ in range(8):
        training.step()
    return training.losses


def asked(capsys: pytest.CaptureFixture[str], names: Names, *expressions: str, last: bool = True) -> dict[str, Any]:
    text = json.dumps({"expressions": expressions, "seconds": 0.02, "is_last": last})
    request.answer(text, names)
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


CHANGING = (
    "model(x).square().mean().backward()",
    "scaler.scale(model(x).sum()).backward(), scaler.step(optimizer), scaler.update(), scheduler.step()",
    "optimizer.step()",
    "optimizer.zero_grad(set_to_none=True)",
    "optimizer.zero_grad(set_to_none=False)",
    "model.eval()(x)",
    "model[1].reset_parameters()",
    "[p.data.mul_(3) for p in model.parameters()]",
    "[setattr(p, 'data', p.data * 3) for p in model.parameters()]",
    "setattr(model[0], 'weight', torch.nn.Parameter(torch.zeros(16, 8)))",
    "len(model.append(torch.nn.Linear(1, 1)))",
    "model.register_forward_hook(lambda *_: torch.zeros(()))",
    "optimizer.param_groups[0].update(lr=9.0)",
    "optimizer.state.clear()",
    "(torch.manual_seed(0), random.seed(0), numpy.random.seed(0))",
    "(torch.randn(3), random.random(), numpy.random.rand(3))",
)


@pytest.mark.parametrize("expression", CHANGING)
def test_training_goes_on_as_if_nothing_had_run(
    capsys: pytest.CaptureFixture[str], plain: list[str], expression: str
) -> None:
    training = Training()
    for step in range(8):
        # Before the first step the optimizer has no state, and parameters have no gradients.
        if step in (0, 4):
            said = asked(capsys, training.names(), expression)
            assert len(said["timings"]) == 1 and min(said["timings"][0]["samples"]) > 0
            # The step of an optimizer without gradients does nothing.
            assert len(said["remarks"]) == (expression == "optimizer.step()" and step == 0), said["remarks"]
        training.step()
    assert training.losses == plain


def test_it_does_so_after_an_exception_and_after_an_end_from_outside(plain: list[str]) -> None:
    training = Training()
    calls = []

    def stop() -> None:
        calls.append(1)
        if len(calls) > 3:
            raise SnippetEnded

    for step in range(8):
        if step == 2:
            with pytest.raises(ZeroDivisionError):
                request.answer(
                    json.dumps({"expressions": ["optimizer.step() or 1 / 0"], "seconds": 1, "is_last": True}),
                    training.names(),
                )
        if step == 5:
            with pytest.raises(SnippetEnded):
                request.answer(
                    json.dumps({"expressions": ["(optimizer.step(), stop())"], "seconds": 1, "is_last": True}),
                    {**training.names(), "stop": stop},
                )
        training.step()
    assert training.losses == plain


def test_an_end_while_state_is_put_back_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    training.step()
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    kept = KeptState(torch, training_objects(torch))
    with torch.no_grad():
        for value in training.model.state_dict().values():
            value.add_(1)
    restore, calls = KeptState._restore, []

    def interrupted(self: KeptState, each: Any) -> bool:
        calls.append(1)
        if len(calls) % 3 == 1:
            raise SnippetEnded
        return restore(self, each)

    monkeypatch.setattr(KeptState, "_restore", interrupted)
    with pytest.raises(SnippetEnded):
        kept.put_back()
    assert all(torch.equal(value, before[name]) for name, value in training.model.state_dict().items())


def test_no_room_for_copies_is_an_error_and_nothing_is_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    monkeypatch.setattr(kept_state, "_free_memory", lambda: 100)
    said = asked(capsys, {**training.names(), "ran": (ran := [])}, "ran.append(1)")
    assert "memory" in said["error"] and said["hint"] and not ran


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    def call(model: nn.Module, training: Any, *expressions: str) -> dict[str, Any]:
        """The timings of modules once training has called them."""
        names = {"torch": torch, "model": model}
        assert "watching" in asked(capsys, names, *expressions, last=False)
        training()
        assert not model._forward_pre_hooks
        said = asked(capsys, names, *expressions, last=False)
        assert not any(part._forward_pre_hooks for part in model.modules())
        return said

    yield call


def test_a_module_is_called_as_training_calls_it(called: Any) -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    said = called(model, lambda: model(torch.tensor([[1, 9], [3, 2]])).sum().backward(), "model[0]", "model[1]")
    assert [(each["index"], each["part"], each["inputs"]) for each in said["timings"]] == [
        (0, "forward", "(2, 2) int64"),
        (0, "forward and backward", "(2, 2) int64"),
        (1, "forward", "(2, 2, 4) float32"),
        (1, "forward and backward", "(2, 2, 4) float32"),
    ]


def test_gradients_and_autocast_are_as_they_were(called: Any) -> None:
    seen = []

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, *, scale: dict[str, Any]) -> tuple[torch.Tensor, None]:
            seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), scale["by"], x.stride()))
            return self.inner(x) * scale["by"], None

    model = Module()

    def training() -> None:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.ones(4, 6).T, scale={"by": 3})

    said = called(model, training, "model")
    assert [each["part"] for each in said["timings"]] == ["forward"]
    assert set(seen) == {(False, True, 3, (1, 4))} or set(seen) == {(False, True, 3, (1, 6))}


def test_an_argument_that_cannot_be_made_again_is_said(called: Any) -> None:
    class Module(nn.Module):
        def forward(self, x: object) -> torch.Tensor:
            return torch.ones(1)

    model = Module()
    said = called(model, lambda: model(object()), "model")
    assert "an argument is a object" in said["error"] and "arguments of its own" in said["hint"]


def test_a_module_that_training_does_not_call_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(1, 1)
    assert "watching" in asked(capsys, {"model": model}, "model", last=False)
    said = asked(capsys, {"model": model}, "model")
    assert "has not called this Linear" in said["error"] and not model._forward_pre_hooks


def test_names_of_the_loop_hide_none_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    names = {"calls": [], "probe": 1, "torch": torch}
    said = asked(capsys, names, "calls.append(probe)", "[probe for _ in calls]")
    assert [each["index"] for each in said["timings"]] == [0, 1] and len(names["calls"]) > 3  # type: ignore[arg-type]
    assert set(names) <= {"calls", "probe", "torch", "__builtins__"}


def test_gradients_stay_where_they_are_when_a_copy_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be views of one buffer, which a reducer or a CUDA graph writes to."""
    buffer = torch.zeros(8)
    model = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))])
    for number, parameter in enumerate(model):
        parameter.grad = buffer[4 * number : 4 * number + 4]
    gradients = [parameter.grad for parameter in model]
    clone = torch.Tensor.clone

    def ended(self: torch.Tensor, *more: Any, **words: Any) -> torch.Tensor:
        if self.data_ptr() == buffer[4:].data_ptr():
            raise SnippetEnded
        return clone(self, *more, **words)

    monkeypatch.setattr(torch.Tensor, "clone", ended)
    with pytest.raises(SnippetEnded):
        asked(capsys, {}, "1 + 1")
    monkeypatch.undo()
    assert all(parameter.grad is gradient for parameter, gradient in zip(model, gradients))
    said = asked(capsys, {"model": model, "gradients": gradients}, "[p.grad is g for p, g in zip(model, gradients)]")
    assert "timings" in said and all(parameter.grad is gradient for parameter, gradient in zip(model, gradients))


def timing_between_ranks() -> dict[str, Any]:
    import sys

    torch.cuda.is_available = lambda: asked_for.append("cuda")  # type: ignore[assignment, func-returns-value, return-value]
    torch.accelerator.synchronize = lambda: asked_for.append("accelerator")  # type: ignore[assignment]
    torch.accelerator.current_accelerator = lambda: torch.device("cuda")  # type: ignore[assignment]
    asked_for: list[str] = []
    before = set(sys.modules)
    with request._refusing_mode(torch):
        torch.ones(1) + 1
    model = nn.Linear(2, 2)
    request.answer(
        json.dumps({"expressions": ["model.weight + 1"], "seconds": 0.02, "is_last": True}), {"model": model}
    )
    imported = {name for name in set(sys.modules) - before if name.split(".")[1:2] in (["_dynamo"], ["_inductor"])}
    return {"imported": sorted(imported), "asked_for": asked_for}


def test_timing_imports_no_compiler_and_leaves_cuda_alone() -> None:
    """A program that trains on the CPU of a machine with a GPU may fork children that use it."""
    assert in_interpreter(timing_between_ranks) == {"imported": [], "asked_for": []}
