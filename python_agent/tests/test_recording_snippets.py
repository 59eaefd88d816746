"""Functions of recording for eval: step boundaries, suspended and beside threads, callbacks."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from recording_support import Net, Recorder, train
from torch import nn

torch.set_num_threads(1)


def test_the_boundary_is_between_steps_only(recorder: Recorder) -> None:
    reached = recorder.native.boundary_reached
    seen: list[tuple[str, bool]] = []

    class Looks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(("forward", reached()))
            return super().forward(x)

    model = Looks(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.append(("optimizer", reached())))
    optimizer.register_step_post_hook(lambda *_: seen.append(("optimizer hook", reached())))
    model.weight.register_hook(lambda _: seen.append(("backward", reached())))
    train(model, optimizer, torch.randn(2, 4), 1)
    assert reached() and recorder.native.training_thread() == threading.get_ident()
    seen.clear()
    loss = model(torch.randn(2, 4)).sum()
    seen.append(("before backward", reached()))
    loss.backward()
    seen.append(("before the optimizer", reached()))
    optimizer.step()
    assert [moment for moment, _ in seen] == [
        "forward", "before backward", "backward", "before the optimizer", "optimizer", "optimizer hook"
    ]  # fmt: skip
    assert not any(is_boundary for _, is_boundary in seen)
    assert reached()
    elsewhere: list[bool] = []
    thread = threading.Thread(target=lambda: elsewhere.append(reached()))
    thread.start()
    thread.join()
    assert elsewhere == [False]


def test_time_in_a_suspended_snippet_is_no_ones(recorder: Recorder) -> None:
    native, model = recorder.native, Net()
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 32)
    train(model, optimizer, x, 3)
    recorder.take()
    clock = time.perf_counter
    whole = clock()
    recorder.native.mark_step()
    steps = native.step()
    before = native.thread_mode(native.ThreadMode.SUSPENDED)
    snippet = clock()
    assert before == native.ThreadMode.RECORD and not native.boundary_reached()
    # So few that clocks that do not go alike make no difference of it.
    train(model, optimizer, x, 20)
    assert native.step() == steps
    snippet = clock() - snippet
    assert native.thread_mode(native.ThreadMode.RECORD) == native.ThreadMode.SUSPENDED and native.boundary_reached()
    inner = clock()
    # Without what follows the optimizer, which is the next step's.
    model(x).square().mean().backward()
    inner = clock() - inner
    optimizer.step()
    whole = clock() - whole
    rows = recorder.take()
    rows["python.steps"] = rows["python.steps"][1:]  # The first one ended with the mark.
    assert len(rows["python.steps"]) == 1
    (step,) = rows["python.steps"]
    assert step["micro_steps"] == 1
    parts = ["data_time", "forward_time", "backward_time", "optimizer_time", "comm_time", "other_time"]
    assert sum(step[part] for part in parts) == pytest.approx(step["duration"], rel=1e-6)
    # Twenty steps are not in it, and nothing else is missing: whatever a busy machine does between two clocks.
    assert inner <= step["duration"] <= whole - snippet
    assert len([row for row in rows["python.torch_trace"] if row["stage"] == "forward"]) == 14


def test_a_beside_thread_must_not_train(recorder: Recorder) -> None:
    native, model = recorder.native, Net()
    native.set_beside_message("not here")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    leaf = torch.ones(2, requires_grad=True)
    loss = (leaf * 2).sum()
    outcome: dict[str, Any] = {}

    def beside() -> None:
        native.thread_mode(native.ThreadMode.BESIDE)
        for name, run in {
            "training": lambda: model(torch.randn(2, 32)),
            "optimizer": optimizer.step,
            "backward": loss.backward,
            "grad": lambda: torch.autograd.grad(loss, leaf),
            "no_grad": lambda: torch.no_grad()(model)(torch.randn(2, 32)),
            "eval": lambda: Net().eval()(torch.randn(2, 32)),
        }.items():
            try:
                run()
                outcome[name] = None
            except RuntimeError as error:
                outcome[name] = str(error)

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    refused = dict.fromkeys(("training", "optimizer", "backward", "grad"), "not here")
    assert outcome == {**refused, "no_grad": None, "eval": None} and leaf.grad is None
    rows = recorder.take()
    assert rows["python.torch_trace"] == [] and rows["python.steps"] == []
    # The graph was not freed.
    loss.backward()
    assert leaf.grad is not None


def test_waiting_snippets_run_at_the_dataloader_or_the_forward(recorder: Recorder) -> None:
    native, model = recorder.native, nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ran: list[tuple[str, int]] = []
    moment = ""

    def snippet() -> None:
        before = native.thread_mode(native.ThreadMode.SUSPENDED)
        ran.append((moment, native.step()))
        model(torch.ones(1, 1)).sum().backward()
        native.thread_mode(before)

    native.set_boundary_callback(snippet)
    try:
        train(model, optimizer, torch.ones(2, 1), 2)
        first = native.step()
        assert ran == []
        native.want_boundary(True)
        loader = iter(torch.utils.data.DataLoader(torch.ones(8, 1), batch_size=2))
        moment = "loader"
        x = next(loader)
        moment = "forward"
        train(model, optimizer, x, 1)
        assert ran == [("loader", first)]
        moment = "forward without loader"
        train(model, optimizer, x, 1)
        assert ran == [("loader", first), ("forward without loader", first + 1)]
        native.want_boundary(False)
        train(model, optimizer, x, 1)
        assert len(ran) == 2
    finally:
        native.want_boundary(False)
        native.set_boundary_callback(None)
    assert {step["micro_steps"] for step in recorder.take()["python.steps"]} == {1}


def test_the_first_use_is_said_once_and_errors_are_swallowed(recorder: Recorder) -> None:
    native, calls = recorder.native, []

    def first() -> None:
        calls.append(1)
        raise ValueError("nobody home")

    native.set_first_use_callback(first)
    assert calls == []
    for _ in range(3):
        nn.Linear(1, 1)(torch.ones(1, 1))
    assert calls == [1]
    assert "nobody home" in native.problem()
    native.set_problem("")


def test_marked_steps_count_where_no_optimizer_does(recorder: Recorder) -> None:
    model = nn.Linear(2, 2)
    recorder.take()
    for _ in range(3):
        model(torch.ones(5, 2))
        recorder.native.mark_step()
    steps = recorder.take()["python.steps"]
    assert [step["samples"] for step in steps] == [5, 5, 5]
    assert all(step["forward_time"] > 0 for step in steps)
