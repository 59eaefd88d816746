"""Modules have the names they have in the model, whenever they come and go."""

from __future__ import annotations

import torch
from recording_support import (
    Block,
    Net,
    Recorder,
    by_module,
    train,
)
from torch import nn

torch.set_num_threads(1)


def test_qualified_names_and_indices(recorder: Recorder) -> None:
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 32), 1)
    rows = recorder.take()
    trace = rows["python.torch_trace"]
    forward = {row["module"]: row for row in trace if row["stage"] == "forward"}
    names = {"Net", "head"} | {f"layers.{i}{part}" for i in range(3) for part in ("", ".norm", ".up", ".down")}
    assert set(forward) == names
    assert forward["layers.1.up"]["module_type"] == "Linear"
    assert (forward["Net"]["depth"], forward["layers.1"]["depth"], forward["layers.1.up"]["depth"]) == (0, 1, 2)
    assert forward["Net"]["input_shape"] == "[4, 32]" and forward["head"]["input_shape"] is None
    assert all(row["device"] == "cpu" and not row["compiled"] for row in forward.values())
    backward = by_module(trace, "backward")
    # Every module with parameters did backward work, and so did the loss, outside them all.
    assert {f"layers.{i}.{part}" for i in range(3) for part in ("norm", "up", "down")} | {"head", None} <= set(backward)
    optimizer = [row for row in trace if row["stage"] == "step"]
    assert [(row["module"], row["module_type"]) for row in optimizer] == [("SGD", "SGD")]
    assert rows["probe.drops"] == {}


def test_a_module_called_twice_has_indices(recorder: Recorder) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.shared(self.shared(x))

    model = Twice()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 8), 2)
    trace = recorder.take()["python.torch_trace"]
    for stage in ("forward", "backward"):
        calls = sorted(
            (row["step"], row["call_index"]) for row in trace if row["stage"] == stage and row["module"] == "shared"
        )
        first = calls[0][0]
        assert calls == [(first, 0), (first, 1), (first + 1, 0), (first + 1, 1)]


def test_two_trainings_in_one_process_and_modules_that_died(recorder: Recorder) -> None:
    for width in (8, 16, 24):
        model = nn.Sequential(nn.Linear(width, width), Block(width))
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, width), 1)
        names = {row["module"] for row in recorder.take()["python.torch_trace"] if row["stage"] == "forward"}
        assert names == {"Sequential", "0", "1", "1.norm", "1.up", "1.down"}
        del model


def test_modules_that_no_list_of_torch_has_get_their_class_name(recorder: Recorder) -> None:
    class Hides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = nn.Linear(8, 8)
            self.hidden = [nn.LayerNorm(8)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.hidden[0](self.seen(x))

    model = Hides()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 8), 3)
    trace = recorder.take()["python.torch_trace"]
    assert {row["module"] for row in trace if row["stage"] == "forward"} == {"Hides", "seen", "LayerNorm"}


def test_modules_added_later_are_named(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 8)
    train(model, optimizer, x, 1)
    model.append(nn.Tanh())
    for _ in range(3):  # Named at the latest two calls after rows without their names were read.
        train(model, optimizer, x, 1)
        names = {row["module"] for row in recorder.take()["python.torch_trace"] if row["stage"] == "forward"}
    assert names == {"Sequential", "0", "1"}


def test_the_whole_model_renames_a_part_that_was_called_first(recorder: Recorder) -> None:
    model = Net()
    model.layers[0](torch.randn(2, 32))
    model(torch.randn(2, 32))
    trace = recorder.take()["python.torch_trace"]
    assert "layers.0.up" in {row["module"] for row in trace}
    model.layers[1](torch.randn(2, 32))
    assert {row["module"] for row in recorder.take()["python.torch_trace"]} == {
        "layers.1", "layers.1.norm", "layers.1.up", "layers.1.down"
    }  # fmt: skip
